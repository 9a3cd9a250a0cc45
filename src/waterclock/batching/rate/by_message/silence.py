"""Forgets a source after a long silence, as measured by the receive times of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import Duration, to_duration

_receive_time = attrgetter("receive_time")


def checked_silence(forget_after: Duration | None) -> int | None:
    """Check for how long a source may be silent, and return it in ns; None: forever.

    Raises `InvalidArgumentError` if it is not a duration above zero.
    """
    return None if forget_after is None else to_duration(forget_after, "forget_after", minimum=1)


def check_receive_times(messages: Iterable[Message], needed: str) -> None:
    """Raise InvalidArgumentError unless all messages have receive times; ``needed`` is the clause that needs them."""
    for message in messages:
        if message.receive_time is None:
            raise InvalidArgumentError(
                f"receive_time must be set if {needed}, got None in the message of stream"
                f" {quoted(message.stream)} with event_time {message.event_time}"
            )


@dataclass(slots=True)
class Silence:
    """How long a source may be silent, and when its last message was received."""

    after: int | None  # ns; None: forever
    clock: int | None = None  # the greatest receive time, ns; None before the first message

    @classmethod
    def checked(cls, forget_after: Duration | None) -> Silence:
        """Check the option; see `checked_silence`."""
        return cls(checked_silence(forget_after))

    @property
    def forgotten_at(self) -> int | None:
        """The time, ns, at which the source is forgotten if no message received by then comes later."""
        return None if self.after is None or self.clock is None else self.clock + self.after

    def ends_with(self, messages: list[Message]) -> bool:
        """Return whether all messages of a call were received too long after the last one; if not, record them."""
        if not messages:
            return False
        times = [*map(_receive_time, messages)]
        at = self.forgotten_at
        if at is not None and min(times) > at:
            return True
        self.clock = max(times) if self.clock is None else max(self.clock, *times)
        return False


def silences(
    received: npt.NDArray[np.int64],
    calls: npt.NDArray[np.intp],
    before: npt.NDArray[np.int64],
    heard: npt.NDArray[np.bool_],
    after: int,
) -> npt.NDArray[np.bool_]:
    """Return for each call of many sources whether a silence of more than ``after`` ns comes before it.

    Parameters
    ----------
    received
        That of each message, ns.
    calls
        The first message of each call.
    before
        The greatest receive time of its source before each call, ns.
    heard
        Whether the source had messages before. No time can stand for "none": a message may have any receive time.
    """
    oldest = np.minimum.reduceat(received, calls) if len(calls) else received[:0]
    # Distances may exceed the largest signed number.
    apart = oldest.view(np.uint64) - before.view(np.uint64)
    return heard & (oldest > before) & (apart > np.uint64(after))
