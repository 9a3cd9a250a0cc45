"""The page of the system: the database, upkeep, and transactions that keep dead rows."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.database.held_snapshots import held_snapshots
from waterclock.errors import ForbiddenError
from waterclock.server.access import AnyClient
from waterclock.server.api.formats import shapes
from waterclock.server.pages.frame import page
from waterclock.server.rights import Client
from waterclock.work.upkeep import Upkeep

MOST_TASKS = 200
"""Maximum tasks of upkeep on the page; failed and due ones come first."""

router = APIRouter(include_in_schema=False)


@router.get("/system")
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
        "tasks": [
            {
                "kind": one.kind,
                "name": one.name,
                "task": one.task,
                "ran_at": shapes.time(one.ran_at),
                "took_seconds": shapes.seconds(one.took),
                "did": one.did,
                "due_at": "now" if one.due_at is None else shapes.time(one.due_at),
                "failed": one.error is not None,
                "error": one.error if caller.rights is None else None,  # it may name hosts and paths
            }
            for one in tasks[:MOST_TASKS]
        ],
        "more": len(tasks) > MOST_TASKS,
    }


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
