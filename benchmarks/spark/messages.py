"""The topic that the benchmarks of Spark read: sealed ledgers of a million messages or so, all sources mixed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import waterclock as wc

STREAMS = ("temperature", "pressure", "humidity", "voltage", "current")
LEDGER_SCHEMA = (
    "source STRING, stream STRING, event_time BIGINT, publish_time BIGINT, entry BIGINT, `index` INT,"
    " receive_time BIGINT"
)
"""What Spark's own readers are asked for of the ledgers' files."""

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_ENTRY = 10_000


def generate(
    folder: Path,
    *,
    sources: int,
    ledgers: int,
    bursts: int,
    every_ms: int = 1_000,
    streams: Sequence[str] = STREAMS,
    payload: bytes = b"x" * 40,
    all_sources: int = 0,
) -> None:
    """Fill a topic with messages in order of receive time.

    A ledger holds ``bursts`` bursts of each source: every ``every_ms`` each stream sends once within 200 ms. If there
    are more ``all_sources``, each ledger has the next ``sources`` of these.
    """
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    chance = np.random.default_rng(1)
    shape = (bursts, sources, len(streams))
    count = bursts * sources * len(streams)
    source_of = np.broadcast_to(np.arange(sources)[:, None], shape).ravel()
    stream_of = np.broadcast_to(np.arange(len(streams)), shape).ravel()
    every = every_ms * _NS_PER_MS
    phases = chance.integers(0, every, sources)
    names = pa.array([f"source-{n:04d}" for n in range(max(sources, all_sources))])
    with wc.connect(_url(unfinished)) as database:
        topic = database.create_topic("telemetry", roll_after=None, roll_size=1 << 40)
        for number in range(ledgers):
            began = 1_790_000_000 * _NS_PER_S + (np.arange(bursts) + number * bursts) * every
            times = (began[:, None, None] + phases[:, None] + chance.integers(0, 200 * _NS_PER_MS, shape)).ravel()
            received = times + chance.integers(0, 300 * _NS_PER_MS, count)
            order = np.argsort(received, kind="stable")
            messages = pa.table(
                {
                    "source": names.take(pa.array((source_of[order] + number * sources) % len(names))),
                    "stream": pa.array(streams).take(pa.array(stream_of[order])),
                    "event_time": times[order],
                    "publish_time": received[order],
                    "receive_time": received[order],
                    "payload": pa.array([payload] * count, pa.binary()),
                }
            )
            for first in range(0, count, _ENTRY):
                topic.append(messages.slice(first, _ENTRY))
            topic.roll()
            topic.seal()
    unfinished.rename(folder)


def options(folder: Path) -> dict[str, str]:
    """Say where the topic is, as the options of a read of its messages, packed."""
    return {"url": _url(folder), "topic": "telemetry", "packed": "true"}


def files(folder: Path) -> list[str]:
    """List the ledgers' files."""
    return [str(path) for path in sorted(_ledgers(folder).rglob("*.parquet"))]


def read_files(spark: SparkSession, folder: Path) -> DataFrame:
    """Read the ledgers' files with Spark's own reader."""
    return spark.read.schema(LEDGER_SCHEMA).parquet(*files(folder))


def stream_files(spark: SparkSession, folder: Path) -> DataFrame:
    """Stream the ledgers' files with Spark's own reader, one a micro-batch, in order of their age."""
    stream = spark.readStream.schema(LEDGER_SCHEMA).option("maxFilesPerTrigger", 1)
    stream = stream.option("recursiveFileLookup", True).option("pathGlobFilter", "*.parquet")
    return stream.parquet(str(_ledgers(folder)))


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'factory.db'}"


def _ledgers(folder: Path) -> Path:
    return folder / "factory.db-ledgers"
