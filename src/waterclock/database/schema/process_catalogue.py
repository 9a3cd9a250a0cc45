"""The catalogue of processes that ingest or batch. It holds their progress, which the web pages show."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, LongText, Name, key_part, required

ProcessKind = Literal["ingest", "batch", "pipeline"]

process_reports = sa.Table(
    "waterclock_process_reports",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True, doc="`ingest`, `batch` or `pipeline`."),
    key_part("name", Name, doc="The source of an ingest, the target of batches, or the pipeline."),
    key_part("topic_id", BigInt, doc="The topic that is read; 0: an ingest."),
    required("starts", BigInt, doc="How many times the process was started."),
    required("started_at", BigInt, doc="When the process was last started, ns."),
    required("seen_at", BigInt, doc="When the process last wrote this row, ns."),
    required("facts", LongText, doc="The counts since the last start, and the rate, as JSON."),
)
"""One row for each ingest, live batching and pipeline. The process writes the row about every ten seconds."""
