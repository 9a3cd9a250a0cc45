"""The page of a message table: its messages by state, its failures, and a search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.server.access import Act, ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.api.tables import counts_of
from waterclock.server.pages.frame import page
from waterclock.server.pages.tables.failures import failures_of
from waterclock.server.pages.tables.selections import NAMES, message_filter, selection_of
from waterclock.server.shared_reads import shared
from waterclock.tables.messages.inspecting.histograms import BOUNDS, count_by_time
from waterclock.tables.messages.inspecting.searching import (
    SCANNED,
    FoundMessage,
    SearchState,
    find_messages,
    read_window,
)

MOST_SHOWN, MOST_FAILURES = 50, 10
"""Maximum messages and groups of failures on a page."""

router = APIRouter(include_in_schema=False)


@router.get("/tables/{table:name}")
@shared
def show_table(act: ReadTable, request: Request) -> Response:
    return page(request, "tables/table.html", table_data(act, selection_of(request.query_params)))


def table_data(act: Act, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Describe a table, and search it."""
    table = act.table()
    context = table.context
    wanted = message_filter(context.options.id_type, chosen)
    with context.backend.snapshot(indexed=True) as connection:
        now = context.backend.now(connection)
        counts = counts_of(act, context, connection, now)
        window = read_window(context, connection)
        by_time = count_by_time(context, connection, window)
        failures = list(failures_of(context, connection, MOST_FAILURES, window))
        found = find_messages(context, connection, wanted, MOST_SHOWN, window)
    return {
        "name": table.name,
        "paused_until": shapes.time(table.paused_until),
        "options": shapes.table_options(table),
        **counts,
        "bounds_seconds": [shapes.seconds(one) for one in BOUNDS],
        "due": list(by_time.due),
        "later": list(by_time.later),
        "failures": failures,
        "selection": {name: chosen.get(name) for name in NAMES},
        "states": list(get_args(SearchState)),
        "scanned": SCANNED,
        "found": {
            "messages": [found_message(one) for one in found.messages],
            "more": found.more,
            "complete": found.complete,
        },
    }


def found_message(one: FoundMessage) -> dict[str, Any]:
    """Describe a message that was found, without its payload."""
    facts: dict[str, Any] = {**asdict(one), "id": str(one.id), "headers": _headers(one.headers)}
    return facts | {name: shapes.time(facts[name]) for name in ("time_scheduled", "time_next", "time_created")}


def _headers(text: str | None) -> dict[str, str]:
    """Parse headers; plain SQL may have written anything."""
    try:
        found: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
