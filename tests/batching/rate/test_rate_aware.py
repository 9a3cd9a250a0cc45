"""What the scenarios do not tell of the batcher: its options, its errors, what it says of itself."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from tests.batching.rate.traffic import SECOND, T0, at, by_time, feed, frozen, message, pulses

from waterclock.arrow import from_ipc, to_ipc
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.checksum import FRAME_BYTES, framed
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_length": 0}, "batch_length must be at least .*, got 0"),
        ({"batch_length": "-1s"}, "batch_length must .*, got '-1s'"),
        ({"batch_length": float("nan")}, "batch_length must .*, got nan"),
        ({"batch_length": "31d"}, "batch_length must be at most 30d, got '31d'"),
        ({"timeout": "3001ms"}, r"timeout must be at most 3 batch lengths \(3s\), got '3001ms'"),
        ({"timeout": 0}, "timeout must .*, got 0"),
        ({"timeout": float("nan")}, "timeout must be .* or math.inf, got nan"),
        ({"timeout": -math.inf}, "timeout must be .* or math.inf, got -inf"),
        ({"gated": "det"}, "gated must be a collection of streams, got 'det'"),
        ({"gated": 1}, "gated must be True, False, .*, got 1"),
        ({"gated": b"det"}, "gated must hold names of streams, got 100"),
        ({"gated": ["det", None]}, "gated must hold names of streams, got None"),
    ],
)
def test_an_invalid_option_is_refused_with_its_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        RateAwareBatcher(**options)


def test_an_invalid_new_batch_length_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"batch_length must .*, got 0"):
        RateAwareBatcher().set_batch_length(0)


def test_an_adaptive_length_follows_the_time_of_the_batches_from_the_next_window_on() -> None:
    batcher = RateAwareBatcher("adaptive", clock=frozen)
    batches = feed(batcher, pulses("det", 14, 0, 3))
    assert [batcher.processed("3s", batch) for batch in batches] == [SECOND, SECOND, 2 * SECOND, 2 * SECOND]
    restored = RateAwareBatcher.restore(batcher.state(), clock=frozen)
    for each in (batcher, restored):
        assert each.batch_length == SECOND
        feed(each, pulses("det", 14, 3, 5))
        assert (each.batch_length, each.timeout) == (2 * SECOND, 24 * SECOND // 10)
        assert [each.nothing_came() for _ in range(3)] == [2 * SECOND, 2 * SECOND, SECOND]
        assert [each.processed("10ms") for _ in range(3)] == [SECOND] * 3
    bounded = RateAwareBatcher(AdaptiveBatchLength("500ms", rate=14, longest="1s"))
    assert [bounded.processed("10s") for _ in range(4)] == [SECOND // 2] + [SECOND] * 3
    assert bounded.batch_length == SECOND


def test_the_time_of_a_batch_means_nothing_to_a_length_that_stays() -> None:
    with pytest.raises(InvalidArgumentError, match="batch_length must be 'adaptive' for processed"):
        RateAwareBatcher("1s").processed("1s")
    with pytest.raises(InvalidArgumentError, match="batch_length must be a duration, got 'adaptive'"):
        RateAwareBatcher("1s").set_batch_length("adaptive")


def test_the_timeout_is_1_2_lengths_and_stays_in_proportion() -> None:
    batcher = RateAwareBatcher("1s")
    assert batcher.timeout == 1_200_000_000
    batcher.set_batch_length("500ms")
    assert (batcher.batch_length, batcher.timeout) == (500_000_000, 600_000_000)
    assert RateAwareBatcher("1s", timeout="3s").timeout == 3 * SECOND
    assert RateAwareBatcher("1s", timeout=math.inf).timeout == math.inf


def test_a_new_length_waits_for_the_next_window() -> None:
    batcher = RateAwareBatcher()
    batcher.add(pulses("det", 14, -1, 0))
    batcher.set_batch_length("2s")
    assert batcher.batch_length == SECOND
    feed(batcher, pulses("det", 14, 0, 1.1))
    assert batcher.batch_length == 2 * SECOND
    window = batcher.window
    assert window is not None
    assert window[1] - window[0] == 2 * SECOND


@pytest.mark.parametrize("wrong", [message("det", T0), [message("det", T0), None], ["det"], 3, None])
def test_a_value_that_is_not_a_list_of_messages_is_refused_and_changes_nothing(wrong: Any) -> None:
    batcher = RateAwareBatcher(clock=frozen)
    before = batcher.state()
    with pytest.raises(InvalidArgumentError, match="messages must be a list of messages"):
        batcher.add(wrong)
    assert batcher.state() == before


def test_a_message_of_another_source_is_refused_and_changes_nothing() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add([message("det", T0)])
    before = batcher.state()
    with pytest.raises(InvalidArgumentError, match=r"source must be 's', as in earlier messages, got 'other'"):
        batcher.add([message("det", T0 + 1), Message("other", "det", T0 + 2)])
    with pytest.raises(InvalidArgumentError, match="source"):
        RateAwareBatcher().add([message("det", T0), Message("other", "det", T0)])
    assert batcher.state() == before


def test_any_iterable_of_messages_will_do() -> None:
    batcher = RateAwareBatcher()
    assert [len(b.messages) for b in batcher.add(m for m in pulses("det", 14, -1, 0))] == [14]
    assert batcher.add(()) == []


def test_before_the_first_message_there_is_nothing() -> None:
    batcher = RateAwareBatcher()
    assert batcher.add([]) == []
    assert batcher.flush() == []
    assert batcher.window is None
    assert batcher.high_water_mark is None
    assert batcher.tracked_streams == set()
    assert batcher.gating_streams == set()
    assert batcher.buffered == 0


def test_it_says_who_is_tracked_and_who_gates() -> None:
    batcher = RateAwareBatcher(gated=lambda stream: stream != "log")
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("slow", 1, -3, 0), [message("log", at(-0.5))]))
    assert batcher.tracked_streams == {"det", "slow"}
    assert batcher.gating_streams == {"det"}
    assert RateAwareBatcher(gated=False).add(pulses("det", 14, -1, 0)) != []


def test_messages_of_a_batch_are_in_order_of_event_time_then_stream() -> None:
    batcher = RateAwareBatcher()
    batch = batcher.add([message("b", T0), message("a", T0 + 1), message("a", T0, b"1"), message("a", T0, b"2")])[0]
    assert [(m.stream, m.event_time - T0, m.payload) for m in batch.messages] == [
        ("a", 0, b"1"),
        ("a", 0, b"2"),
        ("b", 0, b""),
        ("a", 1, b""),
    ]


def test_closed_at_is_the_high_water_mark_at_closing() -> None:
    batcher = RateAwareBatcher()
    batcher.add([*pulses("det", 14, -1, 0), message("det", T0)])
    batch = feed(batcher, pulses("det", 14, 1 / 14, 1))[0]
    assert batch.reason == "slots"
    assert batch.closed_at == batch.messages[-1].event_time


def test_a_stream_that_slows_down_below_a_pulse_a_batch_no_longer_gates() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    feed(batcher, by_time(pulses("det", 14, -2, 90), pulses("mon", 5, -2, 1), pulses("mon", 1, 1, 5)))
    assert "mon" not in batcher.gating_streams


def test_streams_that_may_not_gate_leave_no_trace_however_many_there_are() -> None:
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    feed(batcher, pulses("det", 14, -1, 0), 20)
    for k in range(100):
        riding = [message(f"log {k} {j}", at(k / 14)) for j in range(100)]
        batcher.add([message("det", at(k / 14)), *riding])
    assembly = batcher._assembly
    assert assembly is not None
    assert len(assembly.track_of) < 6_000


def test_a_collection_changed_afterwards_changes_nothing() -> None:
    gated = {"det"}
    batcher = RateAwareBatcher(gated=gated, clock=frozen)
    before = batcher.state()
    gated.add("log")
    assert batcher.state() == before


def test_a_function_that_chooses_has_to_be_given_again() -> None:
    batcher = RateAwareBatcher(gated=lambda stream: stream == "det")
    batcher.add(pulses("det", 14, -1, 0) + pulses("log", 14, -1, 0))
    with pytest.raises(InvalidArgumentError, match=r"gated must be .*, as in the saved batcher"):
        RateAwareBatcher.restore(batcher.state())
    restored = RateAwareBatcher.restore(batcher.state(), gated=lambda stream: stream == "det")
    assert restored.gating_streams == {"det"}
    with pytest.raises(InvalidArgumentError, match="gated"):
        RateAwareBatcher.restore(RateAwareBatcher().state(), gated=lambda _: True)


def test_the_wait_for_a_stall_continues_after_a_restore() -> None:
    now = 0.0
    batcher = RateAwareBatcher(clock=lambda: now)
    batcher.add(pulses("det", 14, -1, 0))
    batcher.add(pulses("det", 14, 0, 0.5))
    now = 6.0
    state = batcher.state()
    now = 1000.0
    restored = RateAwareBatcher.restore(state, clock=lambda: now)
    now = 1003.9
    assert restored.add([]) == []
    now = 1004.0
    assert [batch.reason for batch in restored.add([])] == ["stall"]


def test_a_strange_state_is_refused() -> None:
    with pytest.raises(SchemaError):
        RateAwareBatcher.restore(b"something")
    with pytest.raises(SchemaError, match="not the state of a rate-aware batcher"):
        RateAwareBatcher.restore(EventTimeBatcher("1s", "1s").state())
    columns = from_ipc(RateAwareBatcher().state()[FRAME_BYTES:])
    (key,) = columns.schema.metadata
    facts = json.loads(zlib.decompress(columns.schema.metadata[key])) | {"version": 99}
    newer: pa.RecordBatch = columns.replace_schema_metadata({key: zlib.compress(json.dumps(facts).encode())})
    with pytest.raises(SchemaError, match="version 99"):
        RateAwareBatcher.restore(framed(b"WCR1", to_ipc(newer)))


def changed_state(changes: dict[str, object], of_assembly: dict[str, object]) -> bytes:
    """Write the state of a batcher with other facts, and a checksum that matches them."""
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add(pulses("det", 14, -1, 0))
    batcher.add(pulses("det", 14, 0, 0.5))
    columns = from_ipc(batcher.state()[FRAME_BYTES:])
    (key,) = columns.schema.metadata
    facts = json.loads(zlib.decompress(columns.schema.metadata[key])) | changes
    facts["assembly"] |= of_assembly
    written = columns.replace_schema_metadata({key: zlib.compress(json.dumps(facts).encode())})
    return framed(b"WCR1", to_ipc(written))


@pytest.mark.parametrize(
    ("changes", "of_assembly"),
    [
        ({"rule": [0, None]}, {}),
        ({"rule": [10**9, [1, 0]]}, {}),
        ({"gated": "det"}, {}),
        ({"unmoved": -1}, {}),
        ({"elsewhere": [[1]]}, {}),
        ({}, {"runs": [[1, 2, 0]]}),
        ({"waited": "long"}, {}),
        ({}, {"tracks": []}),
        ({}, {"active": 10**9}),
        ({}, {"active": 0}),
        ({}, {"start": None}),
        ({}, {"tracks": [["", 0, [], [0, 0], 0, 0, False, False, 0]]}),
    ],
)
def test_facts_that_were_never_written_are_damage(changes: dict[str, object], of_assembly: dict[str, object]) -> None:
    with pytest.raises(DamagedError, match="the state of a rate-aware batcher is corrupt"):
        RateAwareBatcher.restore(changed_state(changes, of_assembly))


def test_compressed_zeros_do_not_fill_the_memory() -> None:
    columns = from_ipc(RateAwareBatcher().state()[FRAME_BYTES:])
    (key,) = columns.schema.metadata
    bomb = zlib.compress(b"0" * 1000, 9) + bytes(1000)
    with pytest.raises(DamagedError, match="truncated or too long"):
        RateAwareBatcher.restore(framed(b"WCR1", to_ipc(columns.replace_schema_metadata({key: bomb}))))
    bomb = zlib.compress(bytes(10**6))
    with (
        patch("waterclock.batching.rate.by_message.state._MOST_FACTS", 100),
        pytest.raises(DamagedError, match="truncated"),
    ):
        RateAwareBatcher.restore(framed(b"WCR1", to_ipc(columns.replace_schema_metadata({key: bomb}))))
