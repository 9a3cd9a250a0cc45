"""Session windows: ours beside those of Polars and DuckDB, in processor time a message, all checked against one oracle.

The rows are shuffled, as a data frame may have them. Polars and DuckDB have no other rule of ours: no lateness, no
duplicates, no window that a conflict cuts, no learning of rates. What they have is measured: sessions of a source that
end at a silence. Polars' sort of the same rows alone is measured too, since any batcher of shuffled rows sorts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from benchmarks.measure import in_turns, write_results
from waterclock.batching.event_time.columns import assign_batches
from waterclock.time import to_duration

_DUCKDB_SESSIONS = """
    SELECT min(event_time) OVER (PARTITION BY source, session) AS start FROM (
        SELECT row, source, event_time, sum(begins) OVER (PARTITION BY source ORDER BY event_time) AS session
        FROM (
            SELECT row, source, event_time,
                   coalesce(event_time - lag(event_time) OVER (PARTITION BY source ORDER BY event_time) > ?, false)::INT
                   AS begins
            FROM messages
        )
    ) ORDER BY row
"""

Ints = npt.NDArray[np.int64]

SIZES = (1_000_000, 5_000_000)
SOURCES = 50
STREAMS = 20
GAP = "2s"
SPACING = 500_000_000
BEGIN = 1_700_000_000_000_000_000
LONG = "30d"
"""The longest session and delay: longer than the traffic, since the peers have no such limits."""

ROUNDS = 3


def rows_of(messages: int) -> pa.Table:
    """Lay out shuffled messages, each source's half a second apart on average, all at different times."""
    chance = np.random.default_rng(39)
    sources = chance.integers(0, SOURCES, messages).astype(np.int32)
    span = messages * SPACING // SOURCES
    event_times = BEGIN + chance.permutation(messages) * (span // messages) + chance.integers(0, 9, messages)
    return pa.table(
        {
            "source": pa.DictionaryArray.from_arrays(sources, [f"press-{k:02}" for k in range(SOURCES)]),
            "stream": pa.DictionaryArray.from_arrays(
                chance.integers(0, STREAMS, messages).astype(np.int32), [f"stream-{k}" for k in range(STREAMS)]
            ),
            "event_time": event_times,
            "receive_time": event_times + 1_000_000,
        }
    )


def oracle(rows: pa.Table) -> Ints:
    """Find the start of each row's session, one message after the other."""
    gap = to_duration(GAP, "gap")
    sources = rows.column("source").combine_chunks().indices.to_numpy()
    times = rows.column("event_time").to_numpy()
    starts = np.empty(len(times), np.int64)
    last: dict[int, tuple[int, int]] = {}
    for row in np.argsort(times, kind="stable").tolist():
        source, time = int(sources[row]), int(times[row])
        start, newest = last.get(source, (time, time))
        last[source] = (start if time - newest <= gap else time, time)
        starts[row] = last[source][0]
    return starts


def with_waterclock(rows: pa.Table) -> Ints:
    found = assign_batches(rows, window=LONG, max_delay=LONG, gap=GAP)
    return found.column("batch_start").to_numpy()


def with_polars(frame: pl.DataFrame) -> Ints:
    gap = to_duration(GAP, "gap")
    ordered = frame.select("source", "event_time").with_row_index("row").sort("source", "event_time")
    before = pl.col("event_time").shift(1)
    begins = (pl.col("source") != pl.col("source").shift(1)) | (pl.col("event_time") - before > gap)
    started = ordered.with_columns(session=begins.fill_null(value=True).cum_sum())
    starts = started.with_columns(start=pl.col("event_time").min().over("session"))
    return starts.sort("row").get_column("start").to_numpy()


def with_duckdb(connection: duckdb.DuckDBPyConnection) -> Ints:
    return connection.execute(_DUCKDB_SESSIONS, [to_duration(GAP, "gap")]).fetchnumpy()["start"]  # pyright: ignore[reportReturnType]  # of numbers it is an array


def measure(messages: int) -> dict[str, Any]:
    rows = rows_of(messages)
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    # The type that Polars sorts fastest; it has the order of the names too.
    frame = frame.with_columns(pl.col("source").cast(pl.Enum([f"press-{k:02}" for k in range(SOURCES)])))
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET enable_progress_bar = false")
    connection.register("arrived", rows.append_column("row", pa.array(np.arange(messages))))
    connection.execute("CREATE TABLE messages AS SELECT row, source::VARCHAR AS source, event_time FROM arrived")
    runs: dict[str, Callable[[], Ints]] = {
        "waterclock": lambda: with_waterclock(rows),
        "polars": lambda: with_polars(frame),
        "duckdb": lambda: with_duckdb(connection),
    }
    expected = oracle(rows)
    for name, run in runs.items():
        assert (run() == expected).all(), name
    sort = {"polars_sort_alone": lambda: frame.select("source", "event_time").sort("source", "event_time")}
    seconds = in_turns({**runs, **sort}, ROUNDS)
    return {f"{name}_ns_per_message": round(taken / messages * 1e9, 1) for name, taken in seconds.items()} | {
        "sessions": len(np.unique(expected)),
        "polars_sort_to_waterclock": round(seconds["polars_sort_alone"] / seconds["waterclock"], 2),
    }


def main() -> dict[str, Any]:
    figures: dict[str, Any] = {"sources": SOURCES, "streams": STREAMS, "gap": GAP, "messages": {}}
    for messages in SIZES:
        measured = figures["messages"][str(messages)] = measure(messages)
        print(f"{messages:,} messages: {measured}", flush=True)
    print(f"wrote {write_results('batching_peers', figures, ('waterclock', 'numba', 'numpy', 'polars', 'duckdb'))}")
    return figures


if __name__ == "__main__":
    main()
