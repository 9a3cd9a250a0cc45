"""Times a micro-batch of a bucket of a stream by event time, by how long its windows wait, without Spark.

``python -m benchmarks.spark_long_delays`` feeds a bucket of 125 sources 2,500 messages a second, an eighth of 20,000,
until as many windows close as open, and measures what follows: the processor time of a micro-batch (reading the state,
batching and writing the state) and the bytes that it writes. Messages come in the order in which they happened, or each
after a random part of ``max_delay``. ``whole`` keeps all that waits in the one state that each micro-batch writes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import write_results
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar.many_sources import ManySources, joined
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.time import to_duration

SOURCES = 125
MESSAGES = 2_500
SECOND = 1_000_000_000
_STREAMS = 4


class CountedStore(dict[int, bytes]):
    """Chunks in memory, and how many bytes were written."""

    written = 0

    def __setitem__(self, number: int, chunk: bytes) -> None:
        self.written += len(chunk)
        super().__setitem__(number, chunk)


def arriving(step: int, delay: int, chance: np.random.Generator) -> ManySources:
    """Make what a bucket receives in a second, each message up to ``delay`` ns after it happened."""
    received = step * SECOND + np.arange(MESSAGES) * (SECOND // MESSAGES)
    records = np.zeros(MESSAGES, POSITIONED)
    records["event_time"] = received - (chance.integers(0, delay, MESSAGES) if delay else 0)
    records["receive_time"] = received
    records["ledger"], records["index"] = step, np.arange(MESSAGES)
    sources = (np.arange(MESSAGES) % SOURCES).astype(np.int32)
    streams = (np.arange(MESSAGES) // SOURCES % _STREAMS).astype(np.int32)
    records["stream"] = streams
    source_names = pa.array([f"source-{n}" for n in range(SOURCES)])
    return ManySources(source_names, pa.array([f"s{n}" for n in range(_STREAMS)]), records, sources, streams)


def measured(max_delay: str, *, disorder: bool, whole: bool, micro_batches: int) -> dict[str, float]:
    """Return the mean and the slowest of the micro-batches, ms of processor time, and the bytes that one writes."""
    rule = EventTimeRule.checked("500ms", max_delay, 0, "split")
    chance = np.random.default_rng(1)
    store = None if whole else CountedStore()
    stream, state = EventTimeStream(rule, POSITIONED, store=store), b""
    first = 2 * to_duration(max_delay) // SECOND + 10
    taken: list[float] = []
    written = before = 0
    if whole:
        stream.take(joined([arriving(step, 0, chance) for step in range(first)], POSITIONED), 0)
        state = stream.state()
    for step in range(first if whole else 1, first + micro_batches):
        arrived = arriving(step, rule.max_delay if disorder else 0, chance)
        began = time.process_time()
        if state:
            stream = EventTimeStream.restore(state, rule, POSITIONED, store)
        stream.take(arrived, 0)
        state = stream.state()
        if step == first:
            before = store.written if store else 0
        if step >= first:
            taken.append(time.process_time() - began)
            written += len(state)
    written += (store.written if store else 0) - before
    return {
        "ms": round(1_000 * statistics.fmean(taken), 2),
        "slowest_ms": round(1_000 * max(taken), 2),
        "kilobytes": round(written / len(taken) / 1_000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delays", nargs="+", default=["1s", "15m"])
    parser.add_argument("--micro-batches", type=int, default=120, help="that are measured (default: %(default)s)")
    chosen = parser.parse_args()
    measured("1s", disorder=False, whole=False, micro_batches=3)  # compiles
    figures: dict[str, Any] = {}
    for delay in chosen.delays:
        for disorder in (False, True):
            name = f"{delay}, {'up to max_delay late' if disorder else 'in order'}"
            figures[name] = measured(delay, disorder=disorder, whole=False, micro_batches=chosen.micro_batches)
            print(name, figures[name], flush=True)
        figures[f"{delay}, whole"] = measured(delay, disorder=False, whole=True, micro_batches=5)
        print(f"{delay}, whole", figures[f"{delay}, whole"], flush=True)
    print(f"wrote {write_results('spark_long_delays', figures, ('waterclock', 'pyarrow', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
