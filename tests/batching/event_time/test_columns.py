"""The columns hold what the batcher gives out, and refuse what they cannot mean."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.event_time.definition import LARGEST, Outcome, Rule, batches_of
from tests.batching.event_time.outcomes import assigned
from tests.batching.event_time.traffic import CONFLICT_OPTIONS, STREAMS, arrivals, rules

from waterclock.arrow import to_arrow
from waterclock.batching.batch import RejectReason
from waterclock.batching.by_source import BySource
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.columns import assign_arrays, assign_batches, find_late_and_future
from waterclock.batching.event_time.rule import (
    ACCEPTED,
    CONFLICTS,
    CUT_REASONS,
    FUTURE,
    LATE,
    REJECTIONS,
    UNDECIDED,
    EventTimeRule,
    OnConflict,
)
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message

SOURCES = "xyz"
LENGTHS = {"window": 5, "max_delay": 2}


def columns(messages: Sequence[Message]) -> pa.Table:
    return pa.Table.from_batches([to_arrow(messages)])


def one_row(**changes: Any) -> pa.Table:
    row = {"source": ["x"], "stream": ["a"], "event_time": [1], "receive_time": [1]} | changes
    return pa.table({name: values for name, values in row.items() if values is not None})


def by_definition(messages: Sequence[Message], rule: Rule, now: int = LARGEST) -> list[Outcome]:
    return [batches_of([m for m in messages if m.source == source], rule, now) for source in SOURCES]


def expected(outcomes: list[Outcome]) -> tuple[dict[bytes, tuple[int, int, int | None]], dict[bytes, str]]:
    windows = {m.payload: (w.start, w.end, w.run) for outcome in outcomes for w in outcome.windows for m in w.messages}
    return windows, {m.payload: reason for outcome in outcomes for m, reason in outcome.rejected.items()}


@given(arrivals(sources=SOURCES), rules, st.randoms(use_true_random=False))
def test_the_columns_say_what_the_design_says_in_any_row_order(
    messages: list[Message], rule: Rule, chance: Any
) -> None:
    chance.shuffle(messages)
    rows = assign_batches(columns(messages), **rule._asdict())

    assert assigned(rows) == expected(by_definition(messages, rule))
    added = ["batch_start", "batch_end", "rejected"] + ["batch_run"] * bool(rule.boundaries)
    assert rows.drop_columns(added) == columns(messages)


@given(arrivals(sources=SOURCES), rules, st.integers(-5, 80))
def test_a_reading_of_the_clock_leaves_the_rest_undecided(messages: list[Message], rule: Rule, now: int) -> None:
    rows = assign_batches(columns(messages), **rule._asdict(), now=now)
    batcher = BySource(lambda: EventTimeBatcher(**rule._asdict()))
    batches = batcher.add([m for m in messages if m.receive_time is not None and m.receive_time <= now])
    batches += batcher.advance(now)

    windows = {m.payload: (batch.start, batch.end, batch.run) for batch in batches for m in batch.messages}
    assert assigned(rows) == (windows, {r.message.payload: r.reason for r in batcher.take_rejected()})
    assert assigned(rows) == expected(by_definition(messages, rule, now))


@given(arrivals(), rules)
def test_the_arrays_know_what_cut_windows(messages: list[Message], rule: Rule) -> None:
    streams = np.array([ord(m.stream) - ord("a") for m in messages], np.int32)
    event_times = np.array([m.event_time for m in messages], np.int64)
    receive_times = np.array([m.receive_time for m in messages], np.int64)
    names = pa.array(STREAMS)
    found = assign_arrays(
        np.zeros_like(streams), streams, event_times, receive_times, EventTimeRule(*rule), stream_names=names
    )

    cuts = {m.payload: w.cut for w in batches_of(messages, rule).windows for m in w.messages}
    assert {
        m.payload: CUT_REASONS.get(cut)
        for m, cut, verdict in zip(messages, found.cuts.tolist(), found.verdicts, strict=True)
        if verdict == ACCEPTED
    } == cuts


@given(arrivals(sources=SOURCES), rules)
def test_the_arrays_give_the_order_of_what_can_be_batched(messages: list[Message], rule: Rule) -> None:
    sources = np.array([ord(m.source) - ord("x") for m in messages], np.int32)
    event_times = np.array([m.event_time for m in messages], np.int64)
    receive_times = np.array([m.receive_time for m in messages], np.int64)
    found = assign_arrays(
        sources,
        np.zeros_like(sources),
        event_times,
        receive_times,
        EventTimeRule(*rule),
        stream_names=pa.array(["a"]),
    )

    candidates = [i for i, verdict in enumerate(found.verdicts) if verdict not in (LATE, FUTURE)]
    assert found.order.tolist() == sorted(candidates, key=lambda i: (sources[i], event_times[i]))


@given(arrivals(), rules, st.randoms(use_true_random=False))
def test_disordered_receive_clocks_are_judged_by_their_running_maximum(
    messages: list[Message], rule: Rule, chance: Any
) -> None:
    chance.shuffle(messages)
    batcher = EventTimeBatcher(**rule._asdict())
    batches = [batch for message in messages for batch in batcher.add(message)] + batcher.advance(LARGEST)
    table = columns(messages)
    clock = np.maximum.accumulate(table["receive_time"].to_numpy())
    rows = assign_batches(
        table.set_column(table.schema.get_field_index("receive_time"), "receive_time", pa.array(clock, pa.int64())),
        **rule._asdict(),
    )

    windows = {m.payload: (batch.start, batch.end, batch.run) for batch in batches for m in batch.messages}
    assert assigned(rows) == (windows, {r.message.payload: r.reason for r in batcher.take_rejected()})


edges = st.sampled_from([-(2**63), -(2**63) + 3, -4, 0, 3, 2**63 - 4, 2**63 - 1])
lengths = st.sampled_from([0, 1, 3, 2**62, 2**63 - 1])
edge_rules = st.builds(
    Rule,
    lengths,
    lengths,
    lengths,
    st.sampled_from(CONFLICT_OPTIONS),
    st.none() | lengths,
    st.sampled_from(((), ("b",))),
)


@given(st.lists(st.tuples(st.sampled_from("ab"), edges, edges), max_size=8), edge_rules, edges)
def test_times_at_the_limits_of_int64_do_not_wrap(rows: list[tuple[str, int, int]], rule: Rule, now: int) -> None:
    messages = [Message("x", s, e, str(i).encode(), receive_time=r) for i, (s, e, r) in enumerate(rows)]
    messages.sort(key=lambda m: m.receive_time or 0)
    batcher = EventTimeBatcher(**rule._asdict())
    batches = [batch for message in messages for batch in batcher.add(message)] + batcher.advance(LARGEST)

    windows = {m.payload: (batch.start, batch.end, batch.run) for batch in batches for m in batch.messages}
    outcome = (windows, {r.message.payload: r.reason for r in batcher.take_rejected()})
    assert assigned(assign_batches(columns(messages), **rule._asdict())) == outcome
    assert outcome == expected([batches_of(messages, rule)])
    assert assigned(assign_batches(columns(messages), **rule._asdict(), now=now)) == expected(
        [batches_of(messages, rule, now)]
    )


@pytest.mark.parametrize("spread", ["even", "bursts", "wild", "few times", "sources"])
@pytest.mark.parametrize("count", [49, 5_000])
def test_many_rows_are_sorted_for_any_spread(spread: str, count: int) -> None:
    chance = np.random.default_rng(count)
    times = {
        "even": np.arange(count) * 1000,
        "bursts": np.arange(count) + np.arange(count) // (count // 3) * 10**15,
        "wild": chance.integers(-(2**63), 2**63 - 1, count),
        "few times": chance.integers(0, 5, count),
        "sources": np.arange(count) * 100,
    }[spread]
    event_times = times[np.argsort(np.arange(count) + chance.integers(0, 40, count), kind="stable")]
    sources = chance.integers(0, 40 if spread == "sources" else 1, count).astype(np.int32)
    streams = chance.integers(0, 8, count).astype(np.int32)
    found = assign_arrays(sources, streams, event_times, event_times, EventTimeRule(2_000, 0, 0, "split"))

    # A window's start says where its rows stand in time: sorting must have put no row into another's window.
    accepted = found.verdicts == ACCEPTED
    assert (found.starts[accepted] <= event_times[accepted]).all()
    assert (event_times[accepted] <= found.ends[accepted]).all()
    keys = set(zip(sources.tolist(), streams.tolist(), event_times.tolist(), strict=True))
    assert np.count_nonzero(accepted) == len(keys)
    for source in np.unique(sources):
        batcher = EventTimeBatcher(2_000, 0)
        mine = np.flatnonzero(sources == source)
        mine = mine[np.argsort(event_times[mine], kind="stable")]
        messages = [Message("x", str(streams[i]), event_times[i], str(i).encode()) for i in mine]
        batches = [b for m in messages for b in batcher.add(m, now=m.event_time)] + batcher.flush()
        starts = {int(m.payload): batch.start for batch in batches for m in batch.messages}
        assert starts == {int(i): int(found.starts[i]) for i in mine if accepted[i]}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_text_columns_may_be_of_any_kind_and_in_pieces(kind: pa.DataType) -> None:
    texts = {"source": ["x", "y", "x", "y"], "stream": ["a", "b", "b", "b"]}
    times = {"event_time": [1, 1, 2, 3], "receive_time": [1, 1, 2, 3]}
    pieces = [
        pa.table(
            {
                **{n: pa.array(t[i : i + 2], kind) for n, t in texts.items()},
                **{n: t[i : i + 2] for n, t in times.items()},
            }
        )
        for i in (0, 2)
    ]
    rows = assign_batches(pa.concat_tables(pieces), **LENGTHS)
    assert rows["batch_start"].to_pylist() == [1, 1, 1, 3]
    assert rows["batch_end"].to_pylist() == [6, 3, 6, 8]


def test_a_dictionary_that_repeats_a_text_is_one_stream_still() -> None:
    streams = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", "a"]))
    rows = assign_batches(one_row(source=["x"] * 2, stream=streams, event_time=[1, 3], receive_time=[1, 3]), **LENGTHS)
    assert rows["batch_start"].to_pylist() == [1, 3]


def test_a_slice_of_a_table_is_read_from_its_own_first_row() -> None:
    messages = [Message("x", "a", time, receive_time=time) for time in (0, 10, 20, 30)]
    rows = assign_batches(columns(messages).slice(1, 2), **LENGTHS)
    assert rows["batch_start"].to_pylist() == [10, 20]


def test_an_empty_table_gets_the_columns_too() -> None:
    rows = assign_batches(columns([]), **LENGTHS)
    assert rows.schema.field("batch_start").type == rows.schema.field("batch_end").type == pa.int64()
    assert rows.schema.field("rejected").type.value_type == pa.string()
    assert rows.num_rows == 0
    untyped = pa.table({name: [] for name in ("source", "stream", "event_time", "receive_time")})
    assert untyped.schema.field("source").type == pa.null()
    assert assign_batches(untyped, **LENGTHS).select(rows.column_names[-3:]) == rows.select(rows.column_names[-3:])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_and_zone_land_at_their_moment(unit: str) -> None:
    kind = pa.timestamp(unit, "America/New_York")
    times = {"event_time": pa.array([3 * 10**9], pa.timestamp("ns", "UTC")).cast(kind)}
    times["receive_time"] = times["event_time"].cast(pa.timestamp("us", "UTC"))
    found = assign_batches(one_row(**times), **LENGTHS)
    assert found.column("batch_start").to_pylist() == [3 * 10**9]
    assert found.schema.field("event_time").type == kind


def test_texts_may_be_views_large_or_dictionaries_in_pieces_and_slices() -> None:
    given = columns([Message("s", stream, at, receive_time=at) for at, stream in enumerate("abcabc")])
    wanted = assign_batches(given, **LENGTHS).select(["batch_start", "rejected"]).slice(1)
    for kind in (pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.large_string())):
        place = given.schema.get_field_index("source")
        pieces = pa.concat_tables([given.slice(0, 2), given.slice(2)]).set_column(
            place, "source", pa.chunked_array([pa.array(["s"] * 2, kind), pa.array(["s"] * 9, kind).slice(5)])
        )
        assert assign_batches(pieces, **LENGTHS).select(["batch_start", "rejected"]).slice(1) == wanted


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"receive_time": None},
            r"column 'receive_time' must occur exactly once in table, got columns \['source', 'stream', 'event_time'\]",
        ),
        ({"event_time": [1.0]}, "column 'event_time' must be int64 .*, got double"),
        ({"event_time": pa.array([1], pa.timestamp("ns"))}, r"column 'event_time' must be .*, got timestamp\[ns\]"),
        ({"event_time": pa.array([1], pa.date32())}, r"column 'event_time' must be .*, got date32"),
        ({"receive_time": pa.array([1], pa.duration("ns"))}, r"column 'receive_time' must be .*, got duration\[ns\]"),
        ({"source": [1]}, "column 'source' must hold strings or dictionary-encoded strings, got int64"),
        ({"stream": pa.array([b"a"])}, "column 'stream' must hold .* got binary"),
        ({"batch_start": [1]}, "must not have a column 'batch_start'"),
    ],
)
def test_a_column_that_is_missing_or_of_another_type_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        assign_batches(one_row(**changes), **LENGTHS)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": pa.array([None], pa.string())},
        {"stream": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string()))},
        {"event_time": pa.array([None], pa.int64())},
        {"event_time": pa.nulls(1)},
        {"source": pa.nulls(1)},
        {"receive_time": pa.array([None], pa.int64())},
    ],
)
def test_a_null_is_refused_with_its_column(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"column '{next(iter(changes))}' must not hold nulls, got 1 null"):
        assign_batches(one_row(**changes), **LENGTHS)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"window": -1}, "window must be a duration of 0 or more, got -1"),
        ({"max_delay": 0.5}, "max_delay must be .*, got 0.5"),
        ({"max_lead": "soon"}, "max_lead must be a duration .*, got 'soon'"),
        ({"on_conflict": "merge"}, "on_conflict must be one of split, replace, isolate, keep, got 'merge'"),
        ({"boundaries": "run"}, r"boundaries must be a list of names, got 'run'. Write boundaries=\['run'\]"),
        ({"boundaries": ""}, "boundaries must be a list of names, got ''"),
        ({"boundaries": [1]}, "boundaries must hold non-empty strings, got 1"),
        ({"now": 1.5}, "now must be .*, got 1.5"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        assign_batches(one_row(), **LENGTHS | options)


def test_only_tables_are_taken() -> None:
    with pytest.raises(InvalidArgumentError, match=r"table must be a pyarrow.Table, got a RecordBatch"):
        assign_batches(to_arrow([]), **LENGTHS)


@given(arrivals(), rules)
def test_messages_judged_alone_are_judged_alike_before_the_others_come(messages: list[Message], rule: Rule) -> None:
    event_times = np.array([m.event_time for m in messages], np.int64)
    receive_times = np.array([m.receive_time for m in messages], np.int64)
    streams = np.zeros(len(messages), np.int32)
    names = pa.array(["a"])
    found = assign_arrays(
        streams, streams, event_times, receive_times, EventTimeRule(*rule), stream_names=names
    ).verdicts
    judged = find_late_and_future(event_times, receive_times, EventTimeRule(*rule))
    assert judged.tolist() == [verdict if verdict in (LATE, FUTURE) else ACCEPTED for verdict in found.tolist()]


def test_every_word_of_the_rule_has_a_number() -> None:
    by_id = ("no_id", "undeclared")
    assert (*REJECTIONS.values(), *by_id) == get_args(RejectReason)
    assert sorted([ACCEPTED, *REJECTIONS, UNDECIDED]) == list(range(6))
    assert tuple(CONFLICTS) == get_args(OnConflict)
    assert len(set(CONFLICTS.values())) == len(CONFLICTS)


def test_arrays_must_have_one_length_and_numbers_from_0() -> None:
    rule = EventTimeRule(5, 2, 0, "split")
    none, one, below = np.zeros(0, np.int32), np.zeros(1, np.int32), np.full(1, -1, np.int32)
    time = np.zeros(1, np.int64)
    with pytest.raises(InvalidArgumentError, match="must have equal lengths"):
        assign_arrays(none, one, time, time, rule)
    with pytest.raises(InvalidArgumentError, match="streams must be integers ≥ 0, got -1"):
        assign_arrays(one, below, time, time, rule)


def test_batching_message_by_message_does_not_wait_for_numba() -> None:
    modules = "waterclock.batching.by_source, waterclock.batching.event_time.columns"
    program = f"import sys, {modules}; print('numba' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert process.stdout.strip() == "False"
