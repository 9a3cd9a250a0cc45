"""Routes that create, show, change, pause and remove message tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from pydantic import Field, StrictFloat, StrictInt, StrictStr

from waterclock.errors import NotFoundError, SchemaError
from waterclock.server.access import Act, AnyClient, ManageTable, ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import Body, DurationValue, TimeValue
from waterclock.server.opened_tables import OpenedTables
from waterclock.server.shared_reads import shared
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.estimating import (
    count_acked,
    estimate_groups,
    estimate_messages,
    rate_of_acks,
)
from waterclock.tables.messages.rows.process_heartbeat import RATE_SECONDS, everywhere
from waterclock.tables.model.options import OptionChanges
from waterclock.time import to_time

router = APIRouter(tags=["tables"])

MOST_COLUMNS = 200
"""Additional columns of a table. Databases refuse tables of some 1,000 columns, or of fewer if rows are long."""


class OptionChangesBody(Body):
    """Options of a message table that can change, as in `Database.create_table`."""

    ack_wait: DurationValue = "30s"
    purge_after: DurationValue | None = "1d"
    batch_size: StrictInt = 10
    cache_size: StrictInt = 10_000
    poll_interval: DurationValue = "30s"
    min_backoff: DurationValue | None = None
    max_backoff: DurationValue | None = None
    jitter: StrictFloat | StrictInt = 0.33
    max_attempts: StrictInt | None = None
    attempts_kept: StrictInt = 5
    dead_letter: StrictStr | None = None
    rate_limit: StrictFloat | StrictInt | None = None
    on_exhausted: StrictStr = "dead_letter"
    on_expired: StrictStr = "drop"
    group_idle: DurationValue | None = None
    rebalance: StrictStr = "manual"
    limit: dict[str, StrictInt] | None = Field(None, max_length=1)
    rate: dict[str, StrictStr | StrictFloat | StrictInt] | None = Field(None, max_length=1)
    weights: dict[str, StrictInt] | None = Field(None, max_length=1_000)


class TableOptionsBody(OptionChangesBody):
    """All options of a new message table."""

    groups: StrictStr | None = None
    group_header: StrictStr = "waterclock.group"
    ungrouped: StrictStr = "default"
    ack_order: StrictStr = "strict"
    columns: dict[str, StrictStr] | None = Field(None, max_length=MOST_COLUMNS)
    id_type: StrictStr = "bigint"
    payload: StrictStr = "bytes"
    purge_by: StrictStr = "rows"
    fair_by: StrictStr | None = None


class PauseBody(Body):
    """Until when nothing is sent; null: until it is resumed."""

    until: TimeValue | None = None


@router.get("/tables")
@shared
def list_tables(caller: AnyClient, request: Request) -> list[dict[str, Any]]:
    """List the message tables that you may read, with their options."""
    state = request.app.state
    names = caller.readable("table", state.database.tables())
    return [found for name in names if (found := _listed(state.tables, name)) is not None]


@router.put("/tables/{table:name}")
def create_table(act: ManageTable, body: TableOptionsBody, exist_ok: bool = False) -> dict[str, Any]:
    """Create a message table."""
    act.details = body.given()
    _require_dead_letters(act, body)
    options: dict[str, Any] = body.given()
    act.database.create_table(act.name, exist_ok=exist_ok, **options)
    act.tables.forget(act.name)
    return _described(act.table())


@router.get("/tables/{table:name}")
@shared
def show_table(act: ReadTable) -> dict[str, Any]:
    """Describe a message table, and count its messages by state: exactly up to 1,000, estimated beyond."""
    table = act.table()
    context = table.context
    with context.backend.snapshot(indexed=True) as connection:
        counts = counts_of(act, context, connection, context.backend.now(connection))
        acked, more = count_acked(context, connection)
    return {**_described(table), **counts, "acked": {"count": acked, "more": more}}


def counts_of(act: Act, context: TableContext, connection: sa.Connection, now: int) -> dict[str, Any]:
    """Count a table's messages at a time, ns, with bounded statements."""
    found = estimate_messages(context, connection, now)
    groups = estimate_groups(context, connection)
    active = everywhere(context, connection, now)
    return {
        "counts": {"depth": found.depth, "exact": found.exact, **found.messages},
        "oldest_age_seconds": shapes.seconds(found.oldest_age),
        "blocked_groups": {"count": groups.blocked, "more": not groups.exact},
        "sent_per_second": active.sent / RATE_SECONDS,
        "acked_per_second": rate_of_acks(context, connection, now),
        "subscribers": active.subscribers,
        "failing": active.failing,
        "failure": active.failure if act.caller.rights is None else None,  # it may name hosts and paths
    }


@router.patch("/tables/{table:name}")
def alter_table(act: ManageTable, body: OptionChangesBody) -> dict[str, Any]:
    """Change the given options."""
    act.details = body.given()
    _require_dead_letters(act, body)
    table = act.table()
    table.alter(**OptionChanges(**act.details))
    return _described(table)


@router.delete("/tables/{table:name}")
def remove_table(act: ManageTable) -> dict[str, Any]:
    """Remove a message table with its messages."""
    act.table().drop()
    act.tables.forget(act.name)
    return {"removed": act.name}


@router.post("/tables/{table:name}/pause")
def pause(act: ManageTable, body: PauseBody) -> dict[str, Any]:
    """Send no messages until a time, or until the table is resumed."""
    act.details = body.given()
    table = act.table()
    table.pause(None if body.until is None else to_time(body.until, "until"))
    return _described(table)


@router.post("/tables/{table:name}/resume")
def resume(act: ManageTable) -> dict[str, Any]:
    """End a pause."""
    table = act.table()
    table.resume()
    return _described(table)


@router.post("/tables/{table:name}/purge")
def purge(act: ManageTable) -> dict[str, Any]:
    """Delete messages that were acked longer ago than ``purge_after``."""
    act.rows = act.table().purge()
    return {"purged": act.rows}


def _listed(tables: OpenedTables, name: str) -> dict[str, Any] | None:
    """Describe a table, or the problem with which it cannot be opened; None if it was dropped meanwhile."""
    try:
        return _described(tables.table(name))
    except NotFoundError:
        return None
    except SchemaError as error:
        return {"name": name, "problem": str(error)}


def _described(table: MessageTable) -> dict[str, Any]:
    paused = shapes.time(table.paused_until)
    return {"name": table.name, "paused_until": paused, "options": shapes.table_options(table)}


def _require_dead_letters(act: Act, body: OptionChangesBody) -> None:
    """Require the right to manage the table that gets the dead letters."""
    if body.dead_letter is not None:
        act.require("manage", "table", body.dead_letter)
    elif body.max_attempts is not None:
        act.require("manage", "table", f"{act.name}_dead")
