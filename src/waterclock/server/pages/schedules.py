"""The page of all schedules: their rules in words, their next ticks, and buttons for their commands."""

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import message_tables
from waterclock.database.schema.table_catalogue import schedules as schedule_rows
from waterclock.errors import NotFoundError, SchemaError
from waterclock.server.access import AnyClient, ManageTable
from waterclock.server.api.formats import shapes
from waterclock.server.pages.cron_words import in_words
from waterclock.server.pages.form_tokens import Form
from waterclock.server.pages.frame import page, see_other
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.putting.scheduling import Schedule
from waterclock.tables.model.timing.cron import next_tick

MOST_TABLES = 50
"""Tables whose schedules are shown."""

_TICKS = 5

router = APIRouter(include_in_schema=False)


@router.get("/schedules")
@shared
def show_schedules(request: Request, caller: AnyClient) -> Response:
    return page(request, "schedules.html", schedules_data(request.app.state.database, caller))


def schedules_data(database: Database, caller: Client) -> dict[str, Any]:
    """List the schedules of the tables that the caller may read."""
    with database.backend.snapshot() as connection:
        with_some = sa.select(message_tables.c.name).where(
            sa.exists().where(schedule_rows.c.table_id == message_tables.c.table_id)
        )
        every = list(connection.scalars(with_some.order_by(message_tables.c.name)))
    names = caller.readable("table", every)
    tables: list[MessageTable] = []
    broken: list[str] = []
    for name in names[:MOST_TABLES]:
        try:
            tables.append(database.table(name))
        except (NotFoundError, SchemaError):  # dropped or changed by plain SQL
            broken.append(name)
    return {
        "broken": broken,
        "schedules": [_described(table.name, one) for table in tables for one in table.schedules()],
        "more": len(names) > MOST_TABLES,
    }


def _described(table: str, one: Schedule) -> dict[str, Any]:
    return {
        "table": table,
        **shapes.facts(one, "name", "cron", "timezone", "paused", "last_tick"),
        "words": in_words(one.cron),
        "last_id": None if one.last_id is None else str(one.last_id),
        "ahead_seconds": shapes.seconds(one.ahead),
        "history": shapes.past_ticks(one)[::-1],
        "next_ticks": [shapes.time(tick) for tick in _ticks(one)],
    }


def _ticks(one: Schedule) -> list[int]:
    found: list[int] = []
    tick = one.next_tick
    while tick is not None and len(found) < _TICKS:
        found.append(tick)
        tick = next_tick(one.cron, one.timezone, tick)
    return found


@router.post("/tables/{table:name}/schedules/{schedule:name}/{command}")
def run(act: ManageTable, form: Form, schedule: str, command: Literal["run", "pause", "resume"]) -> Response:
    """Put the schedule's message now, pause the schedule, or resume it."""
    act.details = {"schedule": schedule, **form}
    schedules = act.table().schedules
    {"run": schedules.run, "pause": schedules.pause, "resume": schedules.resume}[command](schedule)
    act.rows = 1
    return see_other("/schedules", done=command, rows=1)
