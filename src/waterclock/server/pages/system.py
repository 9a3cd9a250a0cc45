"""The page of the system: the database, its storage, long transactions that keep dead rows, and upkeep."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.database.deadlines import answers_within
from waterclock.database.held_snapshots import held_snapshots
from waterclock.database.sizes import DatabaseSizes, TableSizes, read_sizes
from waterclock.errors import ForbiddenError, UnavailableError
from waterclock.server.access import AnyClient
from waterclock.server.api.formats import shapes
from waterclock.server.pages.frame import page
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared
from waterclock.work.upkeep import Upkeep

MOST_TASKS = 200
"""Maximum tasks of upkeep on the page; failed and due ones come first."""

STORAGE_WITHIN = 2.0
"""Seconds for reading sizes, which waits for a transaction that locks a table. The page must not."""

router = APIRouter(include_in_schema=False)


@router.get("/system")
@shared
def show_system(request: Request, caller: AnyClient) -> Response:
    return page(request, "system.html", system_data(request.app.state.database, caller))


def system_data(database: Database, caller: Client) -> dict[str, Any]:
    """Describe the database, and the upkeep of everything that the caller may read."""
    backend = database.backend
    tasks = [one for one in Upkeep(database).status() if caller.may("read", one.kind, one.name)]
    tasks.sort(key=lambda one: (one.error is None, one.due_at or 0, one.kind, one.name, one.task))
    with backend.snapshot() as connection:
        server = connection.dialect.server_version_info
        now = backend.now(connection)
    return {
        "waterclock": version("waterclock"),
        "database": {"kind": backend.engine.dialect.name, "version": ".".join(map(str, server or ()))},
        "now": shapes.time(now),
        "transactions": _transactions(database) if caller.rights is None else None,
        "storage": _storage(database, caller),
        "tasks": [
            {
                **shapes.facts(one, "kind", "name", "task", "ran_at", "did"),
                "took_seconds": shapes.seconds(one.took),
                "due_at": "now" if one.due_at is None else shapes.time(one.due_at),
                "failed": one.error is not None,
                "error": one.error if caller.rights is None else None,  # it may name hosts and paths
            }
            for one in tasks[:MOST_TASKS]
        ],
        "more": len(tasks) > MOST_TASKS,
    }


def _storage(database: Database, caller: Client) -> dict[str, Any] | None:
    """Describe the space that the database takes; None if it does not show that, or not in time."""
    try:
        with answers_within(STORAGE_WITHIN), database.backend.patience(STORAGE_WITHIN):
            found = read_sizes(database.backend)
    except (ForbiddenError, UnavailableError):
        return None
    tables = None if found.tables is None else [_table(one) for one in found.tables if _is_shown(one, caller)]
    return {**(_whole(found) if caller.rights is None else {}), "tables": tables}


def _whole(found: DatabaseSizes) -> dict[str, int | None]:
    return {name: getattr(found, name) for name in ("size", "free", "log_size", "unpurged")}


def _is_shown(one: TableSizes, caller: Client) -> bool:
    return caller.may("read", "table", one.name) if _is_message_table(one) else caller.rights is None


def _is_message_table(one: TableSizes) -> bool:
    return not one.name.startswith("waterclock_")


def _table(one: TableSizes) -> dict[str, Any]:
    sizes = shapes.facts(one, "name", "rows", "dead_rows", "size", "index_size", "cleaned_at")
    return sizes | {"is_message_table": _is_message_table(one)}


def _transactions(database: Database) -> list[dict[str, Any]] | None:
    """List open transactions, oldest first; None if the database does not show them."""
    try:
        held = held_snapshots(database.backend, longest=1)
    except ForbiddenError:
        return None
    if held is None:
        return None
    longest = sorted(held, key=lambda one: one.seconds, reverse=True)[:MOST_TASKS]
    return [
        {"process": one.process, "seconds": one.seconds, "user": one.user, "program": one.program} for one in longest
    ]
