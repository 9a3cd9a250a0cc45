"""The page of all message tables."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.monitoring.database_facts import Facts
from waterclock.monitoring.table_facts import TableCounts, TableRecord
from waterclock.server.access import AnyClient
from waterclock.server.api.formats import shapes
from waterclock.server.pages.frame import page
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared

router = APIRouter(include_in_schema=False)


@router.get("/tables")
@shared
def show_tables(request: Request, caller: AnyClient) -> Response:
    return page(request, "tables/tables.html", {"tables": tables_data(request.app.state.facts.get(), caller)})


def tables_data(facts: Facts, caller: Client) -> list[dict[str, Any]]:
    """List the message tables that the caller may read, with their counts."""
    return [
        _described(one, facts.counts[one.name])
        for one in sorted(facts.tables, key=lambda one: one.name)
        if one.name in facts.counts and caller.may("read", "table", one.name)
    ]


def _described(record: TableRecord, counts: TableCounts) -> dict[str, Any]:
    found = counts.messages
    return {
        "name": record.name,
        "paused": record.is_paused,
        "depth": found.depth,
        "exact": found.exact,
        "ready": found.messages["ready"],
        "in_flight": found.messages["in_flight"],
        "delayed": found.messages["delayed"],
        "oldest_age_seconds": shapes.seconds(found.oldest_age),
        "sent_per_second": record.sent_rate,
        "acked_per_second": counts.ack_rate,
        "subscribers": record.subscribers,
    }
