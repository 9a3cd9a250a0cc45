"""A pipeline file, the topic that it reads, and what has to land."""

from __future__ import annotations

from pathlib import Path

import waterclock as wc
from waterclock.spark.pipeline.definition import Pipeline
from waterclock.spark.pipeline.file import PipelineFile
from waterclock.time import MAX_NS

SECOND = 1_000_000_000


START = 1_782_900_000 * SECOND


PIPELINE = """\
# The press shop.
[source]
url = "sqlite:///{folder}/f.db"
topic = "telemetry"
start = "2026-07-01T10:00:00Z"
max_messages_per_trigger = 70

[batching]
window = "500ms"
max_delay = "400ms"

[[output]]
what = "batches"
table = "batches"

[[output]]
what = "batches"
parquet = "{folder}/batches"

[[output]]
what = "rejected"
topic = "rejected"

[run]
checkpoint = "{folder}/checkpoint"
trigger = "5s"
"""


def write(folder: Path, text: str = PIPELINE) -> Path:
    path = folder / "press.toml"
    path.write_text(text.replace("{folder}", str(folder)), encoding="utf-8")
    return path


def read(path: Path) -> Pipeline:
    """Read a file with one pipeline."""
    (pipeline,) = PipelineFile.read(path).pipelines
    return pipeline


def expected(database: wc.Database) -> tuple[dict[str, bytes], list[wc.Rejection]]:
    batcher = wc.BySource(lambda: wc.EventTimeBatcher(window="500ms", max_delay="400ms"))
    batches = [batch for message in database.topic("telemetry").read() for batch in batcher.add(message)]
    batches += batcher.advance(MAX_NS)
    return {batch.id: batch.to_bytes() for batch in batches}, batcher.take_rejected()


def landed(database: wc.Database, name: str = "batches") -> dict[str, bytes]:
    table = database.table(name)
    with table.context.backend.snapshot() as connection:
        return {row.id: row.message for row in connection.execute(table.context.rows.select())}
