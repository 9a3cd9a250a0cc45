"""The messages that the benchmarks of Spark read: Parquet files as a topic's sealed ledgers hold them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STREAMS = ("temperature", "pressure", "humidity", "voltage", "current")
MESSAGES_SCHEMA = (
    "source STRING, stream STRING, event_time BIGINT, receive_time BIGINT, ledger BIGINT, entry BIGINT, `index` INT"
)
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


def generate(folder: Path, *, sources: int, files: int, bursts: int) -> None:
    """Write messages in order of receive time, all sources mixed.

    A file holds ``bursts`` bursts of each source: every second each stream sends once within 200 ms.
    """
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    chance = np.random.default_rng(1)
    shape = (bursts, sources, len(STREAMS))
    count = bursts * sources * len(STREAMS)
    source_of = np.broadcast_to(np.arange(sources)[:, None], shape).ravel()
    stream_of = np.broadcast_to(np.arange(len(STREAMS)), shape).ravel()
    phases = chance.integers(0, _NS_PER_S, sources)
    for number in range(files):
        seconds = 1_790_000_000 * _NS_PER_S + (np.arange(bursts) + number * bursts) * _NS_PER_S
        times = (seconds[:, None, None] + phases[:, None] + chance.integers(0, 200 * _NS_PER_MS, shape)).ravel()
        received = times + chance.integers(0, 300 * _NS_PER_MS, count)
        order = np.argsort(received, kind="stable")
        table = pa.table(
            {
                "source": pa.array([f"source-{n:04d}" for n in range(sources)]).take(pa.array(source_of[order])),
                "stream": pa.array(STREAMS).take(pa.array(stream_of[order])),
                "event_time": times[order],
                "receive_time": received[order],
                "ledger": np.full(count, number),
                "entry": np.arange(count) // 1_000,
                "index": (np.arange(count) % 1_000).astype(np.int32),
            }
        )
        path = unfinished / f"{number:03}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=2**17)
        # A stream of files takes them in order of this.
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    unfinished.rename(folder)
