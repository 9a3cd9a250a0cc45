"""The page of workers: processes that receive messages, and consumers that hold messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import heartbeats, message_tables
from waterclock.monitoring.database_facts import Facts
from waterclock.server.access import AnyClient
from waterclock.server.api.formats import shapes
from waterclock.server.pages.frame import page
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.inspecting.searching import read_window
from waterclock.tables.messages.rows.process_heartbeat import LASTS, RATE_SECONDS
from waterclock.tables.model.row_conditions import is_waiting

MOST_PROCESSES, MOST_TABLES, MOST_CONSUMERS, MOST_HANDLERS = 200, 20, 50, 50
"""Maximum processes on the page, tables whose messages in flight are read, consumers of each, and running handlers."""

_NS = 1_000_000_000

router = APIRouter(include_in_schema=False)


@router.get("/workers")
@shared
def show_workers(request: Request, caller: AnyClient) -> Response:
    state = request.app.state
    return page(request, "workers.html", workers_data(state.database, state.facts.get(), caller))


def workers_data(database: Database, facts: Facts, caller: Client) -> dict[str, Any]:
    """List live processes, running handlers, and consumers with messages, of the tables that the caller may read."""
    names = ("session", "subscribers", "sent", "beat_at", "failing", "failure", "stuck", "handlers")
    beats, its = heartbeats.c, message_tables.c
    with database.backend.snapshot() as connection:
        now = database.backend.now(connection)
        rows = connection.execute(
            sa.select(its.name, *(heartbeats.c[name] for name in names))
            .join_from(heartbeats, message_tables, its.table_id == beats.table_id)
            .where(beats.beat_at > now - LASTS)
            .order_by(beats.stuck.desc(), beats.failing.desc(), its.name, beats.session)
            .limit(MOST_PROCESSES + 1)
        ).all()
    mine = [row for row in rows[:MOST_PROCESSES] if caller.may("read", "table", row.name)]
    processes = [
        {
            "table": row.name,
            "session": str(row.session),
            "subscriptions": row.subscribers,
            "sent_per_second": row.sent / RATE_SECONDS,
            "beat_at": shapes.time(row.beat_at),
            "failing": row.failing,
            "stuck": row.stuck,
            "failure": row.failure if caller.rights is None else None,  # it may name hosts and paths
        }
        for row in mine
    ]
    handlers = [
        {
            "table": row.name,
            "message_id": one["id"],
            "consumer": one["consumer"],
            "since": shapes.time(one["since"]),
            "seconds": max(0, now - one["since"]) / _NS,
            "stuck": one["stuck"],
        }
        for row in mine
        for one in json.loads(row.handlers or "[]")
    ]
    handlers.sort(key=lambda one: (not one["stuck"], one["since"]))
    busy = [
        one.name
        for one in facts.tables
        if caller.may("read", "table", one.name)
        and (counts := facts.counts.get(one.name)) is not None
        and counts.messages.messages["in_flight"]
    ]
    consumers = [one for name in busy[:MOST_TABLES] for one in _consumers(database.table(name).context)]
    return {
        "processes": processes,
        "more": len(rows) > MOST_PROCESSES,
        "handlers": handlers[:MOST_HANDLERS],
        "consumers": consumers,
    }


def _consumers(context: TableContext) -> Iterator[dict[str, Any]]:
    rows = context.rows
    with context.backend.snapshot(indexed=True) as connection:
        now = context.backend.now(connection)
        window = read_window(context, connection)
        leased = is_waiting(rows) & rows.c.claim_id.is_not(None) & (rows.c.time_next > now)
        found = connection.execute(
            sa.select(
                rows.c.consumer,
                sa.func.count().label("in_flight"),
                sa.func.min(rows.c.time_next).label("first_end"),
                sa.func.max(rows.c.epoch).label("epoch"),
                sa.func.min(rows.c.time_scheduled).label("oldest"),
            )
            .where(leased, window.holds(context))
            .group_by(rows.c.consumer)
            .order_by(sa.func.min(rows.c.time_scheduled))
            .limit(MOST_CONSUMERS),
            window.parameters,
        ).all()
    for row in found:
        yield {
            "table": context.name,
            "consumer": row.consumer,
            "in_flight": row.in_flight,
            "first_lease_ends": shapes.time(row.first_end),
            "most_attempts": row.epoch,
            "oldest_due": shapes.time(row.oldest),
        }
