"""Decides by the sequence numbers of an append's messages whether it is new, a repeat or a mistake. Does no I/O.

A producer's sequence numbers only grow. The catalogue remembers them in two lists: the producer's last appends, with
position and checksum, and the numbers appended so far, as ranges. Both lists are limited in length, so early numbers
are forgotten. An append with forgotten numbers is an error, because dropping it as a repeat could silently lose
messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from waterclock._support.quoting import counted
from waterclock.errors import InvalidArgumentError, ProducerFencedError
from waterclock.message import Position

REMEMBERED = 5
"""Appends of a producer whose positions and contents are remembered."""

RANGES = 32
"""Ranges of appended numbers remembered per producer; lower numbers are forgotten."""

LARGEST = (1 << 63) - 1
"""The largest number that a message may have."""


class NumbersUsedError(InvalidArgumentError):
    """An append has numbers that its producer used for other messages, or whose messages are forgotten."""


class ProducerAppend(NamedTuple):
    """A producer, and the numbers of the messages in an append."""

    name: str  # the producer's name in its topic
    # Numbers of the first and the last message of the append.
    first: int
    last: int
    producer_epoch: int | None  # which instance of the producer it is; None: any
    checksum: int  # of the messages' contents (`waterclock.topics.format.content_checksum`)


class Verdict(NamedTuple):
    """How an append with rejected messages was judged, so that a repeat is judged alike."""

    judged_at: int  # when, ns
    max_ahead: int  # the limit of the topic at that time, ns
    rejected: int  # how many were rejected


class Repeat(NamedTuple):
    """An append that the topic already holds."""

    first: Position | None  # its position; None if it is forgotten, or if all of its messages were rejected
    verdict: Verdict | None = None  # None if no message was rejected, or if that is forgotten


class AppendMetadata(NamedTuple):
    """One of a producer's last appends."""

    # Numbers of its first and its last message.
    first: int
    last: int
    # Its position; None if all of its messages were rejected.
    ledger: int | None
    entry: int | None
    checksum: int  # of the messages that were given
    verdict: Verdict | None = None  # as of `Repeat`

    @classmethod
    def read(cls, values: Sequence[Any]) -> Self:
        """Read the catalogue's record of an append."""
        found = cls(*values)
        return found if found.verdict is None else found._replace(verdict=Verdict(*found.verdict))

    @property
    def position(self) -> Position | None:
        """Position of its first message."""
        return None if self.ledger is None or self.entry is None else Position(self.ledger, self.entry, 0)


class Range(NamedTuple):
    """Appended numbers, inclusive; if ``first`` is None, forgotten numbers."""

    first: int | None
    last: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A topic's record of one producer."""

    producer_epoch: int  # its newest instance
    last: int | None = None  # number of its last message; None if it has none
    recent: tuple[AppendMetadata, ...] = ()  # its last appends, oldest first, at most `REMEMBERED`
    covered: tuple[Range, ...] = ()
    """The numbers that it has appended, as ranges, adjacent ones joined, at most `RANGES`."""

    @classmethod
    def read(cls, producer_epoch: int, last: int | None, recent: str, covered: str) -> Self:
        """Read a row of the catalogue."""
        appends = tuple(AppendMetadata.read(each) for each in json.loads(recent))
        return cls(producer_epoch, last, appends, tuple(Range(*each) for each in json.loads(covered)))

    def columns(self) -> dict[str, Any]:
        """Name the values as the catalogue does."""
        return {
            "producer_epoch": self.producer_epoch,
            "last_sequence": self.last,
            "recent": json.dumps(self.recent),
            "covered": json.dumps(self.covered),
        }

    def holds(self, number: int) -> bool | None:
        """Return whether a message of this number was appended; None if that is forgotten."""
        for each in self.covered:
            if number <= each.last:
                return None if each.first is None else number >= each.first
        return False

    def find_repeat(self, append: ProducerAppend, topic: str) -> Repeat | None:
        """Return the earlier append if this one is a repeat; None if it is new.

        Raises `ProducerFencedError` if a newer instance of the producer has taken over. Raises `NumbersUsedError` if
        its numbers were used for other messages, were appended in part, or are lower than the last number but were
        never appended.
        """
        if append.producer_epoch is not None and append.producer_epoch < self.producer_epoch:
            raise ProducerFencedError(
                f"producer {append.name!r} of topic {topic!r}: producer epoch {self.producer_epoch} has"
                f" replaced this instance, which has producer epoch {append.producer_epoch}. Stop this instance"
            )
        if self.last is None or append.first > self.last:
            return None
        for each in self.recent:
            if (each.first, each.last) == (append.first, append.last):
                if each.checksum != append.checksum:
                    raise NumbersUsedError(
                        f"{_numbers(append)} were already used for other messages. Use numbers greater than {self.last}"
                    )
                return Repeat(each.position, each.verdict)
        before = not self.recent or append.last < self.recent[0].first
        if before and any(_within(append, each) for each in self.covered):
            return Repeat(None)
        raise NumbersUsedError(self._reason(append))

    def _reason(self, append: ProducerAppend) -> str:
        unknown = self.covered[0].last if self.covered and self.covered[0].first is None else None
        if unknown is not None and append.first <= unknown and not self._meets_recent(append):
            return (
                f"{_numbers(append)} are older than the remembered appends of the producer, which end at {self.last},"
                " so the topic may or may not hold these messages. Read the topic, and append missing messages with"
                f" numbers after {self.last}, or as another producer"
            )
        if not any(
            each.first is None or (append.first <= each.last and append.last >= each.first) for each in self.covered
        ):
            return (
                f"{_numbers(append)} were never appended, and the producer has appended up to {self.last}. Append these"
                f" messages with numbers after {self.last}, or as another producer"
            )
        return (
            f"{_numbers(append)} overlap earlier appends of the producer, which end at {self.last}. Repeat an"
            f" append unchanged, or continue after {self.last}"
        )

    def _meets_recent(self, append: ProducerAppend) -> bool:
        return any(append.first <= each.last and append.last >= each.first for each in self.recent)

    def appended(
        self, append: ProducerAppend, position: Position | None, verdict: Verdict | None = None
    ) -> ProducerState:
        """Record an append whose numbers follow all others; parameters as in `AppendMetadata`."""
        place = (None, None) if position is None else position[:2]
        newest = AppendMetadata(append.first, append.last, *place, append.checksum, verdict)
        return replace(
            self,
            last=append.last,
            recent=(*self.recent, newest)[-REMEMBERED:],
            covered=_joined(self.covered, append.first, append.last),
        )


def check_sequence(sequence: object, messages: int) -> int:
    """Check the number of the first of some messages.

    Raises `InvalidArgumentError` if it is not an int from 0 on, or the last message's number would be larger than
    `LARGEST`.
    """
    if not isinstance(sequence, int) or isinstance(sequence, bool):
        raise InvalidArgumentError(f"sequence must be an int, the number of the first message, got {sequence!r}")
    if not 0 <= sequence <= LARGEST - messages + 1:
        raise InvalidArgumentError(
            f"sequence must be from 0 to {LARGEST - messages + 1} in an append of {counted(messages, 'message')},"
            f" got {sequence}"
        )
    return sequence


def _joined(covered: Sequence[Range], first: int, last: int) -> tuple[Range, ...]:
    if covered and covered[-1].last + 1 == first and covered[-1].first is not None:
        return (*covered[:-1], Range(covered[-1].first, last))
    ranges = (*covered, Range(first, last))
    if len(ranges) <= RANGES:
        return ranges
    # The oldest are forgotten: repeating those becomes an error, which is better than losing a message.
    return (Range(None, ranges[1].last), *ranges[2:])


def _within(append: ProducerAppend, numbers: Range) -> bool:
    return numbers.first is not None and append.first >= numbers.first and append.last <= numbers.last


def _numbers(append: ProducerAppend) -> str:
    return f"numbers {append.first} to {append.last} of producer {append.name!r}"
