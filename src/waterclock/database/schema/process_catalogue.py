"""The catalogue of processes that ingest or batch. It holds their progress, which the web pages show."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, LongText, Name

ProcessKind = Literal["ingest", "batch", "pipeline"]

process_reports = sa.Table(
    "waterclock_process_reports",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True, doc="`ingest`, `batch` or `pipeline`."),
    sa.Column("name", Name, primary_key=True, doc="The source of an ingest, the target of batches, or the pipeline."),
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False, doc="The topic that is read; 0: an ingest."),
    sa.Column("starts", BigInt, nullable=False, doc="How often it was started."),
    sa.Column("started_at", BigInt, nullable=False, doc="When it was started last, ns."),
    sa.Column("seen_at", BigInt, nullable=False, doc="When it last wrote this row, ns."),
    sa.Column("facts", LongText, nullable=False, doc="Its counts since it was started, and its rate, as JSON."),
)
"""One row for each ingest, live batching and pipeline, which it writes about every ten seconds."""
