"""Sources in a stream, without Spark: cut anywhere, restored anywhere, they get what the batcher gives."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import get_args
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.event_time.definition import Rule
from tests.batching.event_time.traffic import arrivals, rules
from tests.spark.results import METADATA, in_entries, results_in_rows, results_one_by_one

from waterclock.arrow import to_arrow
from waterclock.batching.event_time.rule import EventTimeRule, OnConflict
from waterclock.columnar.many_sources import ManySources, from_packed, joined, nothing
from waterclock.columnar.packing import ROWS, pack
from waterclock.columnar.records import PLAIN, POSITIONED
from waterclock.columnar.streams import waiting_chunks
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS

MS = 1_000_000
END_MS = MAX_NS // MS + 1
UC = EventTimeRule.checked(50, 20, 0, "split")


def many(messages: list[Message], record: np.dtype, chance: random.Random) -> ManySources:
    """Pack messages in pieces, as several tasks do, in any order."""
    cut = chance.randrange(len(messages) + 1)
    rows: list[pa.RecordBatch] = []
    for piece in (messages[:cut], messages[cut:]):
        for packed in pack([to_arrow(piece, positions=True).select(METADATA)] if piece else [], record):
            known = packed.select(ROWS.names).cast(ROWS)
            rows += [known.slice(number, 1) for number in range(len(known))]
    chance.shuffle(rows)
    return from_packed(pa.Table.from_batches(rows), record) if rows else nothing(record)


@given(
    messages=arrivals(sources="xyz"),
    rule=rules,
    positions=st.booleans(),
    disorder=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    chance=st.randoms(use_true_random=False),
)
def test_a_stream_returns_the_batchers_results_wherever_it_is_cut_and_restored(
    messages: list[Message],
    rule: Rule,
    positions: bool,
    disorder: bool,
    cuts: list[int],
    chance: random.Random,
):
    if disorder and positions:
        chance.shuffle(messages)
    messages = in_entries(messages, 3)
    if not positions:
        messages = sorted(messages, key=lambda m: m.receive_time or 0)
    record = POSITIONED if positions else PLAIN
    checked = EventTimeRule.checked(**rule._asdict())
    stream = EventTimeStream(checked, record)
    outcomes: list[pa.RecordBatch] = []
    for first, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(messages)], strict=True):
        outcomes.append(stream.take(many(messages[first:stop], record, chance), 0))
        stream = EventTimeStream.restore(stream.state(), checked, record)
    outcomes.append(stream.take(nothing(record), END_MS))
    if not positions:
        messages = [m.replace(position=None) for m in messages]
    assert results_in_rows(outcomes) == results_one_by_one(messages, **rule._asdict())


@contextmanager
def tiny_chunks() -> Generator[None]:
    """Have messages wait in chunks however few and however soon they are due."""
    with (
        patch.object(waiting_chunks, "MOST_RECENT", 0),
        patch.object(waiting_chunks, "_MICRO_BATCHES", 0),
        patch.object(waiting_chunks, "_CELLS_OF_DELAY", (8, 3)),
    ):
        yield


@pytest.mark.parametrize("record", [PLAIN, POSITIONED])
@pytest.mark.parametrize("on_conflict", get_args(OnConflict))
def test_messages_that_wait_in_chunks_get_what_the_batcher_gives(on_conflict: OnConflict, record: np.dtype) -> None:
    rule = Rule(window=6, max_delay=60, max_lead=3, on_conflict=on_conflict)
    checked = EventTimeRule.checked(**rule._asdict())
    waited = 0
    for seed in range(4):
        chance = random.Random(seed)  # noqa: S311  # repeatable, nothing secret
        sent = [
            (chance.choice("xyz"), chance.choice("ab"), at := chance.randrange(300), at + chance.randint(-4, 64))
            for _ in range(150)
        ]
        sent = sorted(sent + chance.choices(sent, k=50), key=lambda m: m[3])
        messages = in_entries([Message(a, b, at, receive_time=received) for a, b, at, received in sent], 3)
        chunks: dict[int, bytes] = {}
        stream = EventTimeStream(checked, record, store=chunks)
        outcomes: list[pa.RecordBatch] = []
        with tiny_chunks():
            for first in range(0, len(messages), 15):
                outcomes.append(stream.take(many(messages[first : first + 15], record, chance), 0))
                stream = EventTimeStream.restore(stream.state(), checked, record, chunks)
                waited += len(chunks)
            outcomes.append(stream.take(nothing(record), END_MS))
        assert not chunks
        if record is PLAIN:
            messages = [m.replace(position=None) for m in messages]
        assert results_in_rows(outcomes) == results_one_by_one(messages, **rule._asdict())
    assert waited > 100


def test_messages_that_wait_long_are_not_written_with_each_state() -> None:
    rule = EventTimeRule.checked("50ms", "15m", 0, "split")
    chunks: dict[int, bytes] = {}
    stream = EventTimeStream(rule, PLAIN, store=chunks)
    sizes: list[int] = []
    written: list[int] = []
    found: list[tuple[str, int]] = []
    second, source_count = 1_000 * MS, 5
    with patch.object(waiting_chunks, "MOST_RECENT", 50):
        for step in range(40):
            before = dict(chunks)
            at = step * 30 * second
            arrived = [
                times(*(("a", at + n * second, at + n * second) for n in range(30)), source=f"x{k}")
                for k in range(source_count)
            ]
            found += starts(stream.take(joined(arrived, PLAIN), 0))
            sizes.append(len(stream.state()))
            written.append(sum(len(data) for number, data in chunks.items() if before.get(number) != data))
            stream = EventTimeStream.restore(stream.state(), rule, PLAIN, chunks)
            assert stream.take(nothing(PLAIN), 0).num_rows == 0
            open_ = min(step + 1, 30) * 30 * source_count
            assert open_ <= stream.open_batches <= open_ + 2 * source_count
        found += starts(stream.take(nothing(PLAIN), END_MS))
    assert not chunks
    assert sorted(found) == sorted((f"x{k}", n * second) for k in range(source_count) for n in range(40 * 30))
    # All that waits is some 126 kB. Each message is written three times: as it comes, and at each kind of cell.
    assert max(sizes) < 10_000
    # Compressed, it has at most a third of its size.
    assert sum(written) < 40 * 30 * source_count * PLAIN.itemsize


def test_a_duplicate_of_a_message_that_waits_is_rejected_when_that_is_due() -> None:
    rule = EventTimeRule.checked(50, 1000, 0, "split")
    chunks: dict[int, bytes] = {}
    stream = EventTimeStream(rule, PLAIN, store=chunks)
    with tiny_chunks():
        stream.take(times(("a", 1, 1)), 0)
        stream.take(times(("a", 500, 500), ("a", 501, 501)), 0)
        assert chunks
        assert stream.take(times(("a", 501, 502)), 0)["rejection"].drop_null().to_pylist() == []
        rejected = stream.take(times(("a", 2000, 2000)), 0)
    assert rejected["rejection"].drop_null().to_pylist() == ["duplicate"]


def test_a_chunk_that_is_missing_or_damaged_ends_the_query() -> None:
    rule = EventTimeRule.checked(50, 1000, 0, "split")
    for damage in (dict.clear, lambda chunks: chunks.update({0: b"WCW1" + bytes(8)})):
        chunks: dict[int, bytes] = {}
        stream = EventTimeStream(rule, PLAIN, store=chunks)
        with tiny_chunks():
            stream.take(times(("a", 1, 1)), 0)
            stream.take(times(("a", 500, 500)), 0)
            damage(chunks)
            with pytest.raises(DamagedError, match="a chunk of waiting messages is"):
                stream.take(times(("a", 2000, 2000)), 0)


def times(*sent: tuple[str, int, int], source: str = "x") -> ManySources:
    messages = [Message(source, stream, event_time, receive_time=received) for stream, event_time, received in sent]
    return many(messages, PLAIN, random.Random(1))  # noqa: S311  # repeatable, nothing secret


def test_a_watermark_closes_what_is_due_before_it_and_says_when_to_come_again():
    rule = EventTimeRule.checked("50ms", "20ms", 0, "split")
    stream = EventTimeStream(rule, PLAIN)
    assert starts(stream.take(times(("a", 100 * MS, 100 * MS)), 0)) == []
    assert stream.wakes_at == 171
    assert starts(stream.take(nothing(PLAIN), 170)) == []  # a message received at 170 ms may still come, and belong
    given_out = stream.take(nothing(PLAIN), 171)
    assert [b["closed_at"] for row in given_out["batches"].to_pylist() for b in row] == [170 * MS]


def test_the_first_window_of_any_source_says_when_to_come_again():
    rule = EventTimeRule.checked("50ms", "20ms", 0, "split")
    stream = EventTimeStream(rule, PLAIN)
    two = [times(("a", 130 * MS, 130 * MS)), times(("a", 100 * MS, 100 * MS), source="y")]
    stream.take(joined(two, PLAIN), 0)
    assert (stream.wakes_at, stream.open_batches) == (171, 2)
    assert starts(stream.take(nothing(PLAIN), 171)) == [("y", 100 * MS)]
    assert (stream.wakes_at, stream.open_batches) == (201, 1)
    assert EventTimeStream.restore(stream.state(), rule, PLAIN).wakes_at == 201


def test_every_window_of_a_source_that_is_not_closed_is_counted():
    rule = EventTimeRule.checked("50ms", "200ms", 0, "split")
    stream = EventTimeStream(rule, PLAIN)
    stream.take(times(*(("a", at * MS, 300 * MS) for at in (110, 200, 220, 300)), ("b", 210 * MS, 300 * MS)), 0)
    assert stream.open_batches == 4  # of a, 220 opens a window of its own


def test_a_promise_that_was_broken_is_late_and_not_lost():
    stream = EventTimeStream(UC, PLAIN)
    refused = stream.take(times(("a", 100, 100)), 1)
    assert refused.select(["rejection", "count"]).to_pylist() == [{"rejection": "late", "count": 1}]


def test_a_source_is_forgotten_once_the_promise_says_as_much_as_it_remembers():
    stream = EventTimeStream(EventTimeRule.checked("1ms", "1ms", 0, "split"), PLAIN)
    assert stream.wakes_at is None
    stream.take(times(("a", 5 * MS, 5 * MS), ("a", 0, 9 * MS)), 0)
    with_one = len(stream.state())
    stream.take(times(("a", 3 * MS, 4 * MS), source="y"), 0)
    assert len(stream.state()) > with_one
    assert starts(stream.take(nothing(PLAIN), 8)) == [("y", 3 * MS)]
    assert len(stream.state()) <= with_one  # y knows no more than what is promised
    assert (stream.wakes_at, stream.open_batches) == (9, 0)
    stream.take(nothing(PLAIN), 9)
    assert stream.wakes_at is None
    assert stream.state() == EventTimeStream(EventTimeRule.checked("1ms", "1ms", 0, "split"), PLAIN).state()


def test_clocks_before_1970_are_remembered_where_nothing_is_promised():
    stream = EventTimeStream(UC, PLAIN)
    stream.take(times(("a", -5000, -4000), ("a", -200, -100)), 0)
    stream = EventTimeStream.restore(stream.state(), UC, PLAIN)
    found = stream.take(times(("a", -4000, -4000)), 0)
    assert found["rejection"].to_pylist() == ["late"]  # received at -100, says the clock


def test_a_window_at_the_least_time_of_all_stays_open_while_messages_may_be_received_then():
    rule = EventTimeRule.checked(0, 0, 0, "split")
    stream = EventTimeStream(rule, PLAIN)
    for name in "ab":
        assert starts(stream.take(times((name, MIN_NS, MIN_NS)), 0)) == []
        stream = EventTimeStream.restore(stream.state(), rule, PLAIN)
    (row,) = stream.take(times(("a", MIN_NS + 1, MIN_NS + 1)), 0).to_pylist()
    assert [(b["start"], b["closed_at"], b["count"]) for b in row["batches"]] == [(MIN_NS, MIN_NS, 2)]


def starts(outcomes: pa.RecordBatch) -> list[tuple[str, int]]:
    return [(row["source"], batch["start"]) for row in outcomes.to_pylist() for batch in row["batches"]]


def test_a_state_of_other_options_is_refused_with_what_to_do():
    state = EventTimeStream(UC, PLAIN).state()
    with pytest.raises(InvalidArgumentError, match=r"window = 50ns, .* window = 51ns, .*new checkpoint"):
        EventTimeStream.restore(state, UC._replace(window=51), PLAIN)
    with pytest.raises(InvalidArgumentError, match=r"without positions.* positions"):
        EventTimeStream.restore(state, UC, POSITIONED)


@pytest.mark.parametrize("state", [b"", b"something", b"WCS0", b"WCS0and more"])
def test_a_strange_state_is_refused(state: bytes):
    with pytest.raises(SchemaError, match=f"{len(state)} bytes"):
        EventTimeStream.restore(state, UC, PLAIN)
