"""The page of processes that batch topics, with or without Spark, and of their progress."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.database.schema.topic_catalogue import topics
from waterclock.monitoring.process_reports import SILENT, read_reports
from waterclock.server.access import AnyClient
from waterclock.server.api.formats import shapes
from waterclock.server.pages.frame import page
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared

MOST_PIPELINES = 200
"""Maximum pipelines on the page: those that reported last."""

_FORGOTTEN = 86_400 * 1_000_000_000
"""Age of a report, in ns, after which its process counts as ended: someone would have started it again."""

_RULE = (
    "window",
    "max_delay",
    "max_lead",
    "gap",
    "on_conflict",
    "max_skew",
    "batch_length",
    "timeout",
    "clocks",
    "max_disorder",
)
"""Options of a rule that the timeline of batches takes."""

_BOUNDARIES = re.compile(r"boundaries = (?:frozenset\()?[\[{]((?:'[^',\\]+'(?:, )?)+)[\]}]")
"""The streams that cut, unless a name has a comma, which separates the names in a query."""

_FACTS = (
    *("table", "rule", "messages", "messages_per_second", "lag_messages", "lag_seconds", "batches", "open_batches"),
    *(
        "outside",
        "missing_ids",
        "incomplete_batches",
        "appended",
        "waiting",
        "dead",
        "rejected",
        "lost",
        "skipped",
        "lags",
    ),
)
"""The figures of a report that the pages show; an ingest and a pipeline report some of these each."""

router = APIRouter(include_in_schema=False)


@router.get("/pipelines")
@shared
def show_pipelines(request: Request, caller: AnyClient) -> Response:
    return page(request, "pipelines.html", pipelines_data(request.app.state.database, caller))


def pipelines_data(database: Database, caller: Client) -> dict[str, Any]:
    """List the pipelines of the topics that the caller may read."""
    with database.backend.snapshot() as connection:
        now = database.backend.now(connection)
        names = {row.id: row.name for row in connection.execute(sa.select(topics.c.id, topics.c.name))}
        reports = read_reports(connection, ("batch", "pipeline"), MOST_PIPELINES)
    return {
        "most": MOST_PIPELINES,
        "pipelines": [
            {
                **process_data(one, now),
                "kind": one["kind"],
                "topic": names[one["topic_id"]],
                "timeline": timeline_query(one["facts"].get("rule") or ""),
            }
            for one in reports
            if one["topic_id"] in names and caller.may("read", "topic", names[one["topic_id"]])
        ],
    }


def process_data(report: Mapping[str, Any], now: int) -> dict[str, Any]:
    """Describe a process that ingests or batches."""
    facts = report["facts"]
    age = now - report["seen_at"]
    state = "ended" if facts.get("ended") or age > _FORGOTTEN else "silent" if age > SILENT else "runs"
    return {
        "name": report["name"],
        "state": state,
        "restarts": report["starts"] - 1,
        "started_at": shapes.time(report["started_at"]),
        "seen_at": shapes.time(report["seen_at"]),
        "facts": {name: facts.get(name) for name in _FACTS},
    }


def timeline_query(rule: str) -> str:
    """Return the query of the timeline of batches that uses a rule such as ``window = 1s, max_delay = 2s``.

    The query is empty if the timeline cannot use the rule.
    """
    given = dict(part.split(" = ", 1) for part in rule.split(", ") if " = " in part)
    if given.get("batch_length", "").startswith("adaptive"):
        return ""  # the lengths depended on how long the work took, so no rule repeats them
    if given.keys() & {"id_of", "forget_after"} or given.get("gated", "true").lower() != "true":
        return ""
    query = {name: given[name].strip('"') for name in _RULE if name in given}
    if "boundaries = " in rule:
        found = _BOUNDARIES.search(rule)
        if found is None:
            return ""
        query["boundaries"] = found[1].replace("'", "").replace(", ", ",")
    return urlencode({"by": "rate", **query} if "batch_length" in query else query)
