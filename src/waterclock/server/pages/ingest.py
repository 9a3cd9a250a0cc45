"""The page of ingests: the progress of their sessions with brokers, their Kafka partitions and their files."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.connection import Database
from waterclock.database.schema.ingest_catalogue import ingest_files, ingest_partitions, ingest_sessions
from waterclock.database.schema.topic_catalogue import topics
from waterclock.monitoring.process_reports import read_reports
from waterclock.server.access import AnyClient
from waterclock.server.api.formats import shapes
from waterclock.server.pages.frame import page
from waterclock.server.pages.pipelines import process_data
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared

MOST_ROWS = 200
"""Maximum rows of each kind: those written last."""

SILENT = 180 * 1_000_000_000
"""Age of the last write after which a session counts as silent, ns: a live process writes every minute."""

router = APIRouter(include_in_schema=False)


@router.get("/ingest")
@shared
def show_ingest(request: Request, caller: AnyClient) -> Response:
    return page(request, "ingest.html", ingest_data(request.app.state.database, caller))


def ingest_data(database: Database, caller: Client) -> dict[str, Any]:
    """List partitions and files whose topics the caller may read, and sessions, which only local callers see."""
    with database.backend.snapshot() as connection:
        now = database.backend.now(connection)
        names = {row.id: row.name for row in connection.execute(sa.select(topics.c.id, topics.c.name))}
        readable = [key for key, name in names.items() if caller.may("read", "topic", name)]
        partitions = _newest(connection, ingest_partitions, readable)
        files = _newest(connection, ingest_files, readable)
        # A session names a host, and is of no topic.
        sessions = _newest(connection, ingest_sessions, None) if caller.rights is None else []
        reports = read_reports(connection, ("ingest",), MOST_ROWS) if caller.rights is None else []
    return {
        "most": MOST_ROWS,
        "processes": [process_data(one, now) for one in reports],
        "sessions": [
            shapes.facts(row, "name", "dropped", "seen_at") | {"silent": row.seen_at < now - SILENT} for row in sessions
        ],
        "partitions": [
            shapes.facts(row, "kafka_topic", "partition", "offset", "seen_at")
            | {"topic": names[row.topic_id], "starts": row.owner_epoch}
            for row in partitions
        ],
        "files": [
            shapes.facts(row, "lines", "seen_at")
            | {"topic": names[row.topic_id], "bytes": row.offset}
            | {"path": row.path if caller.rights is None else None}
            for row in files
        ],
    }


def _newest(connection: sa.Connection, rows: sa.Table, readable: list[int] | None) -> list[Any]:
    newest = sa.select(rows).order_by(rows.c.seen_at.desc()).limit(MOST_ROWS)
    if readable is not None:
        newest = newest.where(rows.c.topic_id.in_(readable))
    return list(connection.execute(newest))
