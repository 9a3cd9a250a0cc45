"""The page of all message tables."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.server.access import AnyClient
from waterclock.server.api import shapes
from waterclock.server.pages.frame import page
from waterclock.server.rights import Client

router = APIRouter(include_in_schema=False)


@router.get("/tables")
def show_tables(request: Request, caller: AnyClient) -> Response:
    return page(request, "tables.html", tables_data(request.app.state.database, caller))


def tables_data(database: Database, caller: Client) -> dict[str, Any]:
    """List the message tables that the caller may read."""
    names = caller.readable("table", database.tables())
    tables = [database.table(name) for name in names]
    return {
        "tables": [
            {"name": table.name, "groups": table.options.groups, "paused_until": shapes.time(table.paused_until)}
            for table in tables
        ]
    }
