"""Batching by event time: messages a second of the columns, sort included, and of the batcher, in turns on one core."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.measure import in_turns, write_results
from waterclock.arrow import from_arrow
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.columns import assign_batches

MESSAGES = 1_000_000
BATCHER_MESSAGES = 100_000
STREAMS = 20
WINDOW = "500ms"
MAX_DELAY = "400ms"
JITTER = 400_000_000
ROUNDS = 7
BEGIN = 1_700_000_000_000_000_000


class Traffic(NamedTuple):
    """How the messages of one source come.

    Attributes
    ----------
    spacing
        Event time between two messages, ns; the streams take turns.
    jittered
        In order of receive time, up to `JITTER` after it happened; otherwise in order of event time.
    """

    spacing: int
    jittered: bool


TRAFFIC = {
    "jittered, 40 messages a second": Traffic(25_000_000, jittered=True),
    "jittered, 1000 messages a second": Traffic(1_000_000, jittered=True),
    "in order, 40 messages a second": Traffic(25_000_000, jittered=False),
    "in order, 1000 messages a second": Traffic(1_000_000, jittered=False),
}


def table(traffic: Traffic) -> pa.Table:
    """Lay out the messages; source and stream are dictionaries."""
    chance = np.random.default_rng(20)
    event_times = BEGIN + np.arange(MESSAGES) * traffic.spacing + chance.integers(0, traffic.spacing // 2, MESSAGES)
    delays = chance.integers(0, JITTER + 1, MESSAGES)
    received = event_times + delays if traffic.jittered else np.maximum.accumulate(event_times + delays // 100)
    order = np.argsort(received, kind="stable")
    codes = (np.arange(MESSAGES) % STREAMS).astype(np.int32)[order]
    return pa.table(
        {
            "source": pa.DictionaryArray.from_arrays(np.zeros(MESSAGES, np.int32), ["press-01"]),
            "stream": pa.DictionaryArray.from_arrays(codes, [f"cpu-{k}/percent" for k in range(STREAMS)]),
            "event_time": event_times[order],
            "receive_time": received[order],
        }
    )


def as_text(rows: pa.Table) -> pa.Table:
    """Write source and stream out as plain texts."""
    return rows.cast(pa.schema([("source", pa.string()), ("stream", pa.string()), *list(rows.schema)[2:]]))


def run_batcher(messages: list[Any]) -> None:
    add = EventTimeBatcher(WINDOW, MAX_DELAY).add
    for message in messages:
        add(message)


def measure(traffic: Traffic) -> dict[str, Any]:
    rows = table(traffic)
    texts = as_text(rows)
    messages = from_arrow(texts.slice(0, BATCHER_MESSAGES))
    seconds = in_turns(
        {
            "columns": lambda: assign_batches(rows, window=WINDOW, max_delay=MAX_DELAY),
            "text columns": lambda: assign_batches(texts, window=WINDOW, max_delay=MAX_DELAY),
            "batcher": lambda: run_batcher(messages),
        },
        ROUNDS,
    )
    columns = MESSAGES / seconds["columns"]
    batcher = BATCHER_MESSAGES / seconds["batcher"]
    return {
        "columns_per_second": round(columns),
        "text_columns_per_second": round(MESSAGES / seconds["text columns"]),
        "batcher_per_second": round(batcher),
        "columns_to_batcher": round(columns / batcher, 1),
    }


def main() -> dict[str, Any]:
    figures: dict[str, Any] = {
        "messages": MESSAGES,
        "batcher_messages": BATCHER_MESSAGES,
        "streams": STREAMS,
        "window": WINDOW,
        "max_delay": MAX_DELAY,
        "traffic": {},
    }
    for name, traffic in TRAFFIC.items():
        measured = figures["traffic"][name] = measure(traffic)
        print(
            f"{name}: columns {measured['columns_per_second'] / 1e6:.1f} M/s"
            f" (of text {measured['text_columns_per_second'] / 1e6:.1f} M/s),"
            f" {measured['columns_to_batcher']:.0f} times the batcher's {measured['batcher_per_second'] / 1e6:.2f} M/s",
            flush=True,
        )
    print(f"wrote {write_results('assign_batches', figures, ('waterclock', 'numba', 'numpy', 'pyarrow'))}")
    return figures


if __name__ == "__main__":
    main()
