"""Session windows: ours beside those of Polars and DuckDB, in processor time a message, all checked against one oracle.

The rows are shuffled, as a data frame may have them. Polars and DuckDB have no other rule of ours: no lateness, no
duplicates, no window that a conflict cuts, no learning of rates. What they have is measured: sessions of a source that
end at a silence. Polars' sort of the same rows alone is measured too, since any batcher of shuffled rows sorts them.

Bytewax gets messages one after the other, in order, as `BySource` does; ``uv pip install --group bench-peers`` installs
it. The batcher of thin-edge.io has the rule of event time without sessions, in Rust, for one source: THIN_EDGE is the
folder of its source code, and ``cargo`` builds it. The batcher of ESS livedata has the rule by rate, for one source:
ESSLIVEDATA is the folder of its source code, which needs Python 3.12 and structlog.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from benchmarks.measure import in_turns, write_results
from benchmarks.rate_aware import messages_of, regular
from benchmarks.tables.peers import MissingPeerError, package
from waterclock.batching.by_source import BySource
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.columns import assign_batches
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message
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

IN_ORDER = 100_000
CALL = 1_000
"""Messages that arrive one after the other, and how many of them a call brings."""


THIN_EDGE_MESSAGES = 500_000
THIN_EDGE_STREAMS = 5

LIVEDATA_MESSAGES = 50_000
LIVEDATA_RATES = {"detector": 14, "monitor": 5}
LIVEDATA_CALLS = (1, 10, 1_000)


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


def in_order() -> list[tuple[str, int]]:
    """Return sources and event times in order, in whole microseconds, which is all that Bytewax's clock resolves."""
    sources = np.random.default_rng(39).integers(0, SOURCES, IN_ORDER).tolist()
    spacing = SPACING // SOURCES
    return [(f"press-{source:02}", BEGIN + place * spacing) for place, source in enumerate(sources)]


def one_by_one(messages: list[Message]) -> Counter[tuple[str, int]]:
    batcher = BySource(lambda: EventTimeBatcher(LONG, "1s", gap=GAP))
    batches = [batch for k in range(0, IN_ORDER, CALL) for batch in batcher.add(messages[k : k + CALL])]
    return Counter((batch.source, len(batch.messages)) for batch in batches + batcher.flush())


def with_bytewax(items: list[tuple[str, datetime]]) -> Counter[tuple[str, int]]:
    operators, windows, testing = map(package, ("bytewax.operators", "bytewax.operators.windowing", "bytewax.testing"))
    found: list[tuple[str, tuple[int, list[datetime]]]] = []
    flow = package("bytewax.dataflow").Dataflow("sessions")
    arrived = operators.input("arrived", flow, testing.TestingSource(items, batch_size=CALL))
    clock = windows.EventClock(ts_getter=lambda time: time, wait_for_system_duration=timedelta(seconds=1))
    sessions = windows.SessionWindower(gap=timedelta(microseconds=to_duration(GAP, "gap") // 1000))
    closed = windows.collect_window("sessions", arrived, clock, sessions).down
    operators.output("found", closed, testing.TestingSink(found))
    testing.run_main(flow)
    return Counter((source, len(times)) for source, (_, times) in found)


def measure_in_order() -> dict[str, float]:
    """Compare batching message by message with Bytewax."""
    arrived = in_order()
    messages = [Message(source, "stream", time, receive_time=time) for source, time in arrived]
    items = [
        (source, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time // 1000)) for source, time in arrived
    ]
    assert one_by_one(messages) == with_bytewax(items)
    runs = {"waterclock": lambda: one_by_one(messages), "bytewax": lambda: with_bytewax(items)}
    seconds = in_turns(runs, ROUNDS)
    return {f"{name}_us_per_message": round(taken / IN_ORDER * 1e6, 2) for name, taken in seconds.items()} | {
        "waterclock_to_bytewax": round(seconds["waterclock"] / seconds["bytewax"], 2)
    }


def built_thin_edge(folder: str) -> Path:
    """Build thin-edge's batcher without the actors around it."""
    crate = Path(folder)
    (crate / "src").mkdir()
    for name in ("batch", "batchable", "batcher", "config"):
        source = Path(os.environ["THIN_EDGE"]) / "crates/common/batcher/src" / f"{name}.rs"
        (crate / f"src/{name}.rs").write_bytes(source.read_bytes())
    (crate / "src/main.rs").write_bytes(Path(__file__).with_name("thin_edge.rs").read_bytes())
    (crate / "Cargo.toml").write_text(
        '[package]\nname = "peer"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\ntime = "0.3"\n'
    )
    subprocess.run(["cargo", "build", "--release"], cwd=crate, check=True)
    return crate / "target/release/peer"


def measure_thin_edge() -> dict[str, float]:
    """Compare windows of one source, in order and without conflicts, for which both rules have the same result."""
    places = np.arange(THIN_EDGE_MESSAGES)
    streams, times = places % THIN_EDGE_STREAMS, BEGIN + places // THIN_EDGE_STREAMS * 2_000_000_000
    times += streams * 60_000_000
    rows = np.stack([streams, times, times + 1_000_000], axis=1)
    numbers = rows.astype("<i8").tobytes()
    table = pa.table(
        {
            "source": pa.DictionaryArray.from_arrays(np.zeros(len(rows), np.int32), ["press"]),
            "stream": pa.DictionaryArray.from_arrays(streams.astype(np.int32), list("abcde")),
            "event_time": times,
            "receive_time": times + 1_000_000,
        }
    )
    messages = [Message("press", "abcde"[stream], time, receive_time=now) for stream, time, now in rows.tolist()]

    def one_source() -> int:
        batcher = EventTimeBatcher("500ms", "400ms")
        return len([batch for message in messages for batch in batcher.add(message)] + batcher.flush())

    def columns() -> int:
        return len(np.unique(assign_batches(table, window="500ms", max_delay="400ms").column("batch_start").to_numpy()))

    with TemporaryDirectory() as folder:
        peer = built_thin_edge(folder)

        def thin_edge() -> int:
            return len(subprocess.run([peer], input=numbers, stdout=subprocess.PIPE, check=True).stdout.split())

        runs = {"waterclock": one_source, "waterclock_columns": columns, "thin_edge": thin_edge}
        assert {run() for run in runs.values()} == {THIN_EDGE_MESSAGES // THIN_EDGE_STREAMS}
        seconds = in_turns(runs, ROUNDS, lambda: sum(os.times()[:4]))
    return {f"{name}_ns_per_message": round(taken / THIN_EDGE_MESSAGES * 1e9, 1) for name, taken in seconds.items()}


def livedata(name: str) -> Any:
    """Import a file of ESS livedata's core without its packages, which import all of livedata."""
    folder = Path(os.environ["ESSLIVEDATA"]) / "src"
    for package_name in ("ess", "ess.livedata", "ess.livedata.core"):
        stub = ModuleType(package_name)
        stub.__path__ = [str(folder / package_name.replace(".", "/"))]
        sys.modules.setdefault(package_name, stub)
    return package(f"ess.livedata.core.{name}")


def measure_livedata(size: int) -> dict[str, float]:
    """Compare batches by rate of one source, in order, all of whose streams are regular.

    The first call brings a second of messages. ESS livedata closes at most one batch per call, so it is asked again
    until it closes none.
    """
    batcher, message, timestamp = map(livedata, ("rate_aware_batcher", "message", "timestamp"))
    names, codes, times = workload = regular(LIVEDATA_RATES, LIVEDATA_MESSAGES)
    first = sum(LIVEDATA_RATES.values())
    bounds = [0, *range(first, len(times), size), len(times)]
    kinds = (message.StreamKind.DETECTOR_EVENTS, message.StreamKind.MONITOR_EVENTS)
    streams = [message.StreamId(kind=kind, name=name) for kind, name in zip(kinds, names, strict=True)]
    theirs = [
        message.Message(timestamp=timestamp.Timestamp.from_ns(time), stream=streams[code], value=b"")
        for code, time in zip(codes.tolist(), times.tolist(), strict=True)
    ]
    ours = messages_of(*workload)

    def with_livedata() -> list[int]:
        batch = batcher.RateAwareMessageBatcher(1.0, clock=lambda: 0.0).batch
        lengths: list[int] = []
        for begin, end in pairwise(bounds):
            closed = batch(theirs[begin:end])
            while closed is not None:
                lengths.append(len(closed.messages))
                closed = batch([])
        return lengths

    def one_by_one() -> list[int]:
        add = RateAwareBatcher("1s", clock=lambda: 0.0).add
        return [len(closed.messages) for begin, end in pairwise(bounds) for closed in add(ours[begin:end])]

    def columns() -> list[int]:
        return np.diff(RateAwareColumns(names, "1s").add(codes, times, np.array(bounds)).offsets).tolist()

    runs = {"waterclock": one_by_one, "waterclock_columns": columns, "esslivedata": with_livedata}
    windows = Counter(((times[first:] - times[first - 1]) // 1_000_000_000).tolist())
    expected = [first, *(windows[window] for window in sorted(windows))]
    for name, run in runs.items():
        assert run() == expected[: len(run())], name
        assert len(run()) >= len(expected) - 2, name  # the last windows are still open
    seconds = in_turns(runs, ROUNDS)
    return {f"{name}_ns_per_message": round(taken / len(times) * 1e9, 1) for name, taken in seconds.items()}


def main() -> dict[str, Any]:
    figures: dict[str, Any] = {"sources": SOURCES, "streams": STREAMS, "gap": GAP, "messages": {}}
    for messages in SIZES:
        measured = figures["messages"][str(messages)] = measure(messages)
        print(f"{messages:,} messages: {measured}", flush=True)
    try:
        figures["in_order"] = measure_in_order()
        print(f"{IN_ORDER:,} messages in order, one by one: {figures['in_order']}", flush=True)
    except MissingPeerError as error:
        print(f"without Bytewax: {error}", flush=True)
    if "THIN_EDGE" in os.environ:
        figures["thin_edge"] = measure_thin_edge()
        print(f"{THIN_EDGE_MESSAGES:,} messages of one source: {figures['thin_edge']}", flush=True)
    if "ESSLIVEDATA" in os.environ:
        figures["esslivedata"] = {}
        for size in LIVEDATA_CALLS:
            measured = figures["esslivedata"][str(size)] = measure_livedata(size)
            print(f"by rate, {size} a call: {measured}", flush=True)
    print(f"wrote {write_results('batching_peers', figures, ('waterclock', 'numba', 'numpy', 'polars', 'duckdb'))}")
    return figures


if __name__ == "__main__":
    main()
