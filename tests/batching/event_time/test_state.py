from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.arrow import batches_from_ipc, from_ipc, to_arrow, to_ipc
from waterclock.batching import state_bytes
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.checksum import FRAME_BYTES, framed
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message, Position

KEY = b"waterclock.event_time_batcher"


def busy_batcher() -> EventTimeBatcher:
    batcher = EventTimeBatcher(window=50, max_delay=20, max_lead=3, on_conflict="isolate", streams=["a", "b"])
    for stream, event_time in [("a", 100), ("b", 110), ("a", 120), ("b", 122), ("a", 125), ("b", 130), ("a", 20)]:
        received = max(event_time, 120)
        batcher.add(
            Message(
                "device",
                stream,
                event_time,
                b"\x00 payload",
                publish_time=event_time + 1,
                receive_time=received,
                headers={"unit": "°C"},
                position=Position(1, 2, event_time),
            )
        )
    return batcher


def with_facts(**changes: object) -> bytes:
    """Write a state whose facts are changed; None removes one."""
    columns = from_ipc(busy_batcher().state()[FRAME_BYTES:])
    facts = json.loads(columns.schema.metadata[KEY]) | changes
    facts = {name: value for name, value in facts.items() if value is not None}
    return framed(b"WCE1", to_ipc(columns.replace_schema_metadata({KEY: json.dumps(facts).encode()})))


def test_a_state_larger_than_a_record_batch_is_written_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = busy_batcher()
    whole, rejected = batcher.flush(), batcher.take_rejected()
    for size in (1, 40, 60):
        monkeypatch.setattr(state_bytes, "_LARGEST_RUN", size)
        state = busy_batcher().state()
        assert len(batches_from_ipc(state[FRAME_BYTES:])) > 1
        restored = EventTimeBatcher.restore(state)
        assert restored.flush() == whole
        assert restored.take_rejected() == rejected
    rates = RateAwareBatcher(batch_length="1s", timeout=None)
    rates.add([Message("device", "a", 10**18 + at * 10**8, b"payload") for at in range(40)])
    assert RateAwareBatcher.restore(rates.state()).flush() == rates.flush()


def test_messages_come_back_whole() -> None:
    batcher = busy_batcher()
    restored = EventTimeBatcher.restore(batcher.state())

    assert restored.state() == batcher.state()
    assert restored.take_rejected() == batcher.take_rejected()
    assert restored.next_deadline == batcher.next_deadline
    assert restored.flush() == batcher.flush()


def test_messages_emitted_early_are_still_known() -> None:
    batcher = EventTimeBatcher(window=50, max_delay=100)
    batcher.add(Message("device", "a", 100, receive_time=100))
    batcher.flush()
    restored = EventTimeBatcher.restore(batcher.state())
    restored.add(Message("device", "a", 100, receive_time=101))
    restored.add(Message("device", "b", 100, receive_time=101))

    assert [reason for _, reason in restored.take_rejected()] == ["duplicate", "late"]


def test_a_batcher_that_saw_nothing_comes_back() -> None:
    restored = EventTimeBatcher.restore(EventTimeBatcher("1s", "1s").state())
    assert restored.next_deadline is None
    assert restored.flush() == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        to_ipc(to_arrow([])),
        to_ipc(pa.record_batch({"a": [1]}).replace_schema_metadata({KEY: b"{}"})),
        busy_batcher().flush()[0].to_bytes(),
    ],
)
def test_an_invalid_state_is_refused(data: bytes) -> None:
    with pytest.raises(SchemaError):
        EventTimeBatcher.restore(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": None},
        {"windows": 7},
        {"windows": [[1, 2]]},
        {"windows": [[1, 2, False, False, 0]]},
        {"rejected": ["late"] * 9},
        {"rejected": ["bored"]},
        {"rule": [1]},
        {"rule": [-1, 2, 3, "split"]},
        {"newest": [1]},
        {"floor": "0"},
        {"frontier": 2**70},
        {"given_out": [["a", None, 1]]},
        {"version": None},
    ],
)
def test_facts_that_were_never_written_are_damage(changes: dict[str, object]) -> None:
    with pytest.raises(DamagedError, match="the state of an event-time batcher is corrupt"):
        EventTimeBatcher.restore(with_facts(**changes))


def test_another_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(SchemaError, match=r"version 2, and this Waterclock reads 1. Replay"):
        EventTimeBatcher.restore(with_facts(version=2))


@given(st.integers(4, len(busy_batcher().state()) - 1))
def test_a_state_that_was_cut_off_is_damaged(length: int) -> None:
    with pytest.raises(DamagedError):
        EventTimeBatcher.restore(busy_batcher().state()[:length])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((SchemaError, DamagedError)):
        EventTimeBatcher.restore(data)


@pytest.mark.parametrize("batcher", [EventTimeBatcher, RateAwareBatcher])
@pytest.mark.parametrize("state", ["text", None, 5])
def test_a_value_that_is_not_bytes_is_not_a_state(
    batcher: type[EventTimeBatcher] | type[RateAwareBatcher], state: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"state must be bytes that hold"):
        batcher.restore(state)
