"""What is remembered of appended messages, and when a repeat is dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.errors import DamagedError
from waterclock.ingest.mapping.format_rule import Published
from waterclock.ingest.storing.evidence import Evidence
from waterclock.ingest.storing.received import Received


@dataclass
class Line:
    """A connection without a socket."""

    session: str = "gateway@broker"
    number: int = 1
    session_present: bool = True
    acked: list[int] = field(default_factory=list)

    def ack(self, packet_ids: Iterable[int]) -> None:
        self.acked.extend(packet_ids)


def message(packet_id: int, payload: bytes = b"1", line: Line | None = None, *, repeat: bool = False) -> Received:
    return Received(Published("a/b", payload), line or Line(), packet_id, 1, repeat)


def test_a_repeat_of_an_appended_message_is_known() -> None:
    evidence = Evidence(10)
    evidence.note(message(7))
    assert evidence.holds(message(7, repeat=True))


@pytest.mark.parametrize(
    "other",
    [
        message(7),  # not marked as a repeat
        message(8, repeat=True),
        message(7, b"2", repeat=True),
        message(7, line=replace(Line(), session_present=False), repeat=True),
        Received(Published("a/c", b"1"), Line(), 7, 1, is_repeat=True),
    ],
)
def test_a_message_that_differs_in_one_of_these_is_not(other: Received) -> None:
    evidence = Evidence(10)
    evidence.note(message(7))
    assert not evidence.holds(other)


@given(st.lists(st.integers(1, 65_535), unique=True), st.integers(1, 5))
def test_the_newest_are_remembered_and_survive_packing(noted: list[int], most: int) -> None:
    evidence = Evidence(most)
    for packet_id in noted:
        evidence.note(message(packet_id))
    read = Evidence.unpack(evidence.pack(), most)
    assert len(read) == min(len(noted), most + 1)
    assert all(read.holds(message(packet_id, repeat=True)) for packet_id in noted[-most:])


def test_nothing_is_dropped_while_a_broker_uses_packet_ids_again() -> None:
    evidence = Evidence(2)
    for payload in (b"on", b"off"):
        evidence.note(message(1, payload))
    # An equal message that was never appended could have this id.
    assert not evidence.holds(message(1, b"off", repeat=True))
    assert not Evidence.unpack(evidence.pack(), 2).holds(message(1, b"off", repeat=True))
    for packet_id in (2, 3):
        evidence.note(message(packet_id))
    assert evidence.copy().holds(message(3, repeat=True))


def test_damaged_bytes_are_refused() -> None:
    with pytest.raises(DamagedError):
        Evidence.unpack(b"123", 1)
