"""Writes what became of some messages to the outputs of a pipeline, so that doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from waterclock.connection import connect
from waterclock.spark.pipeline.definition import Output, Pipeline, Source, place_options
from waterclock.spark.session.describing import described
from waterclock.spark.session.workers import freezing_imports
from waterclock.spark.streaming.batch_rows import Payloads, encoded
from waterclock.spark.streaming.batching import batches_of, rejected_of

_ENCODED_SCHEMA = (
    "id STRING, source STRING, start BIGINT, `end` BIGINT, closed_at BIGINT, reason STRING, count INT, payload BINARY"
)
_FACTS = ("id", "source", "start", "end", "closed_at", "reason", "count")
_BATCHES_AT_ONCE = 500


def write_outcomes(pipeline: Pipeline, outcomes: DataFrame, *, run: str, producer: str, micro_batch: int) -> None:
    """Write batches and rejected messages to every output.

    Parameters
    ----------
    outcomes
        What `event_time_outcomes` gave, of a micro-batch or of a whole replay.
    run
        Who writes, for the names of files: a stream by its id, a replay by what it reads.
    producer
        Who writes, for topics: as ``run``, and a replay by its pipeline besides.
    micro_batch
        Which of the run's micro-batches this is.
    """
    for output in pipeline.outputs:
        rows = batches_of(outcomes) if output.what == "batches" else rejected_of(outcomes)
        with described(outcomes.sparkSession, f"{pipeline.name} {micro_batch}: {output.what} to {output.name}"):
            if output.kind == "parquet":
                _write_parquet(rows, output, pipeline.source, f"{run}-{micro_batch:010d}")
                continue
            options = place_options(output.url, output.ledgers) | {output.kind: output.target}
            options |= {"payloads": pipeline.source.topic, **_elsewhere(output, pipeline.source)}
            options |= pipeline.source.losses
            if output.kind == "topic":
                options |= {"producer": f"{producer}-{output.name}", "microBatch": str(micro_batch)}
            rows.write.format("waterclock").options(**options).mode("append").save()


def _elsewhere(output: Output, source: Source) -> dict[str, str]:
    """Say where the payloads are, if that is not the output's own database."""
    if (output.url, output.ledgers) == (source.url, source.ledgers):
        return {}
    return place_options(source.url, source.ledgers, "payloadsUrl", "payloadsLedgers")


def _write_parquet(rows: DataFrame, output: Output, source: Source, run: str) -> None:
    """Write into a folder of the run's own, which a repeat replaces; Spark reads all of them as one table."""
    if output.what == "batches":
        rows = rows.mapInArrow(freezing_imports(_encode, source=source), _ENCODED_SCHEMA)
    rows.write.mode("overwrite").parquet(f"{output.target.rstrip('/')}/run={run}")


def _encode(batches: Iterator[pa.RecordBatch], source: Source) -> Iterator[pa.RecordBatch]:
    with connect(source.url, source.ledgers) as database:
        topic = database.topic(source.topic)
        payloads = Payloads.to_write(topic, fail_on_data_loss=source.fail_on_data_loss, on_damage=source.on_damage)
        for rows in batches:
            for first in range(0, rows.num_rows, _BATCHES_AT_ONCE):
                some = rows.slice(first, _BATCHES_AT_ONCE)
                payload = pa.array(list(encoded(some, payloads)), pa.binary())
                yield pa.record_batch([*(some.column(name) for name in _FACTS), payload], [*_FACTS, "payload"])
