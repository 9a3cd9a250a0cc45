"""Aligns the times of messages to the receive clock for batching. The batches hold the messages as they were sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from waterclock._support.quoting import quoted
from waterclock.batching.facts import count, each, text, whole
from waterclock.batching.kernels import Kernel
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

ALIGNMENT = Kernel("waterclock.batching.rate.clock_alignment")

TOO_MANY_CLOCKS = (
    f": clocks of at most {ALIGNMENT.interpreted.MOST_STREAMS:,} streams are aligned; the times of further streams are"
    " used as they were sent"
)
"""The text of a warning about a source with more streams."""

Clocks = Literal["as_sent", "align"]
"""By which times messages are batched: as sent, or aligned to the receive clock."""


def checked_clocks(clocks: Clocks) -> bool:
    """Return whether clocks are aligned.

    Raises
    ------
    InvalidArgumentError
        For another value.
    """
    known = get_args(Clocks)
    if clocks not in known:
        raise InvalidArgumentError(f"clocks must be one of {', '.join(map(repr, known))}, got {quoted(clocks)}")
    return clocks == "align"


class AlignedMessage(Message):
    """A message at its aligned event time."""

    __slots__ = ("number", "sent")

    sent: Message  # the message as it was sent
    number: int  # how many messages of its source came before it

    @classmethod
    def of(cls, sent: Message, offset: int, number: int) -> AlignedMessage:
        """Move a message by an offset, ns."""
        # Only the fields that batching reads: the others are in `sent`.
        aligned = cls.trusted(sent.source, sent.stream, sent.event_time + offset, b"", None, None, None, None)
        assert isinstance(aligned, AlignedMessage)  # noqa: S101  # `trusted` creates its own class
        _set_sent(aligned, sent)
        _set_number(aligned, number)
        return aligned

    @property
    def offset(self) -> int:
        """The ns that were added to its event time."""
        return self.event_time - self.sent.event_time


_set_sent = AlignedMessage.__dict__["sent"].__set__
_set_number = AlignedMessage.__dict__["number"].__set__


class ClockAlignment:
    """Aligns the messages of a source, in order of arrival.

    Its state takes about 1.5 KB for each of the first 1,000 streams. Others are not aligned.
    """

    __slots__ = ("_rows", "_taken", "has_left_out")

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._taken = 0
        self.has_left_out = False  # whether a stream was not aligned because there were too many

    def align(self, messages: Sequence[Message]) -> list[Message]:
        """Align messages of a call, which all have receive times."""
        kernel = ALIGNMENT.interpreted
        for message in messages:
            row = self._rows.get(message.stream)
            if row is None and kernel.may_be_aligned(message.event_time, message.receive_time):
                if len(self._rows) == kernel.MOST_STREAMS:
                    self.has_left_out = True
                    continue
                row = self._rows[message.stream] = [0] * kernel.COLUMNS
            if row is not None:
                kernel.meet(row, message.event_time, message.receive_time)
        aligned: list[Message] = []
        for message in messages:
            row = self._rows.get(message.stream)
            offset = 0 if row is None else kernel.offset_of(row, message.event_time, message.receive_time)
            aligned.append(AlignedMessage.of(message, offset, self._taken))
            self._taken += 1
        return aligned

    def facts(self, messages: Sequence[Message]) -> list[Any]:
        """Encode the state, and the offsets and numbers of aligned messages."""
        moved = [(m.offset, m.number) for m in messages if isinstance(m, AlignedMessage)]
        return [self._rows, self._taken, moved]

    @classmethod
    def from_facts(cls, facts: list[Any], messages: Iterable[Message]) -> tuple[ClockAlignment, list[Message]]:
        """Restore from the output of `facts`, and align its messages again; ValueError if it is something else."""
        alignment = cls()
        rows, taken, moved = facts
        alignment._rows = {text(stream): each(row, whole) for stream, row in rows.items()}
        if any(len(row) != ALIGNMENT.interpreted.COLUMNS for row in alignment._rows.values()):
            raise ValueError("the state has a clock with the wrong number of fields")
        alignment._taken = count(taken)
        pairs = zip(messages, each(moved, lambda pair: (whole(pair[0]), count(pair[1]))), strict=True)
        return alignment, [AlignedMessage.of(message, *pair) for message, pair in pairs]


def sent_messages(messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, int]]:
    """Return messages as they were sent, in order of arrival if they were aligned, and the offset of each stream, ns.

    The offset of a stream is that of its latest message by aligned time. Without alignment there are no offsets.
    """
    aligned = [message for message in messages if isinstance(message, AlignedMessage)]
    if not aligned:
        return messages, {}
    aligned.sort(key=lambda message: message.number)
    latest: dict[str, tuple[int, int]] = {}
    for message in aligned:
        at = message.event_time, message.offset
        latest[message.stream] = max(latest.get(message.stream, at), at)
    return [message.sent for message in aligned], {stream: offset for stream, (_, offset) in sorted(latest.items())}
