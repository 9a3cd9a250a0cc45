"""Lengthens the batches of a consumer that does not keep up, and shortens them when it keeps up again."""

from __future__ import annotations

from typing import Any, Literal

from waterclock._support.quoting import quoted
from waterclock.batching.facts import count
from waterclock.errors import InvalidArgumentError
from waterclock.time import Duration, format_duration, to_duration

Adaptive = Literal["adaptive"]
"""A batch length that follows its consumer's capacity."""

_SECOND = 1_000_000_000
_TOO_SLOW_TWICE = 2
_FAST_OR_IDLE = 3
_LARGEST = 8

_FAST = 70
"""Maximum percentage of the window for a batch to count as fast."""

_SPARE = 99
"""Percentage of a shorter length that a batch must stay below before that length is used: about √2 times the 70 %."""


class AdaptiveBatchLength:
    """Suggests the batch length for `RateAwareBatcher.set_batch_length` from how long batches take to process.

    Longer batches cost less per message, so a consumer that falls behind gets longer ones:

    - if processing takes longer than the window twice running, the length doubles, to at most ``longest``;
    - if it takes under 70 % of the window three times running, or nothing came for three windows, the length shrinks
      by √2, to at least the first. After fast batches it shrinks only if they would also keep up with the shorter
      length.

    Lengths are whole pulses, so that every batch has the same number of pulses. To keep the length from oscillating, a
    length that proved too short is not used again until batches take clearly less time (by more than the step between
    the two lengths), or until no messages come.

    Parameters
    ----------
    batch_length
        The first and shortest length; it is rounded to whole pulses.
    rate
        Pulses per second of the main stream, whole Hz.
    longest
        The greatest length, rounded down to whole pulses. Default: 8 times the first.

    Raises
    ------
    InvalidArgumentError
        For a length below one pulse, a rate below 1 Hz, or a greatest length below the first.

    Notes
    -----
    Growing lengths are the first times 1, 2, 4, 8; shrinking ones are steps of √2, rounded. *RateAwareMessageBatcher*
    does not specify these numbers; they come from running such a batcher at a neutron source.
    """

    __slots__ = ("_fast", "_first", "_idle", "_largest", "_pulses", "_rate", "_slow", "_too_short")

    def __init__(self, batch_length: Duration = "1s", rate: int = 1, longest: Duration | None = None) -> None:
        if type(rate) is not int or rate < 1:
            raise InvalidArgumentError(f"rate must be an integer ≥ 1 (pulses per second), got {quoted(rate)}")
        length = to_duration(batch_length, "batch_length", minimum=1)
        self._rate = rate
        self._first = self._pulses = (2 * length * rate + _SECOND) // (2 * _SECOND)
        if self._first < 1:
            raise InvalidArgumentError(
                f"batch_length must span at least one pulse at {rate} Hz, got {quoted(batch_length)}"
            )
        most = None if longest is None else to_duration(longest, "longest", minimum=1)
        # The most pulses whose length, rounded, does not exceed the longest.
        self._largest = _LARGEST * self._first if most is None else (2 * most * rate + rate - 1) // (2 * _SECOND)
        if self._largest < self._first:
            raise InvalidArgumentError(
                f"'longest' must be at least batch_length ({format_duration(self.batch_length)}), got {quoted(longest)}"
            )
        self._slow = self._fast = self._idle = 0
        self._too_short = (0, 0)  # the window (ns) last left because batches took too long, and how long they took (ns)

    @property
    def batch_length(self) -> int:
        """The length to use, ns."""
        return self._length(self._pulses)

    @property
    def pulses(self) -> int:
        """The length to use, in pulses."""
        return self._pulses

    @property
    def bounds(self) -> tuple[int, int]:
        """The shortest and the longest length, ns."""
        return self._length(self._first), self._length(self._largest)

    @property
    def text(self) -> str:
        """The bounds as text for users; equal texts mean equal bounds."""
        shortest, longest = map(format_duration, self.bounds)
        return f"adaptive from {shortest} to {longest}"

    def processed(self, took: Duration, window: Duration | None = None) -> int:
        """Report how long a batch took to process.

        Parameters
        ----------
        took
            From taking the batch to being done.
        window
            Length of the batch's window, ``batch.end - batch.start``, because batches from before a change arrive after
            it. Default: the length in use.

        Returns
        -------
        int
            The length to use from now on, ns.
        """
        took_ns = to_duration(took, "took")
        window_ns = self.batch_length if window is None else to_duration(window, "window", minimum=1)
        self._idle = 0
        self._fast = self._fast + 1 if self._is_fast(took_ns, window_ns) else 0
        self._slow = self._slow + 1 if took_ns > window_ns else 0
        if self._slow == _TOO_SLOW_TWICE:
            self._too_short = (window_ns, took_ns)
            self._use(2 * self._pulses)
        elif self._fast == _FAST_OR_IDLE:
            self._use(self._shorter())
        return self.batch_length

    def nothing_came(self) -> int:
        """Report that a window's length has passed without a batch.

        Returns
        -------
        int
            The length to use from now on, ns.
        """
        self._idle += 1
        if self._idle == _FAST_OR_IDLE:
            self._use(self._shorter())
        return self.batch_length

    def facts(self) -> list[Any]:
        """Encode the whole state, for `from_facts`."""
        counts = [self._slow, self._fast, self._idle]
        return [self._first, self._rate, self._largest, self._pulses, *counts, *self._too_short]

    @classmethod
    def from_facts(cls, facts: list[Any]) -> AdaptiveBatchLength:
        """Restore from the output of `facts`; ValueError if it is something else."""
        known = cls()
        first, known._rate, known._largest, known._pulses, *counts, window, took = map(count, facts)
        known._first = first
        known._slow, known._fast, known._idle = counts
        known._too_short = (window, took)
        if not 1 <= first <= known._pulses <= known._largest or known._rate < 1:
            raise ValueError(f"the batch length must lie between the first and the largest length, got {quoted(facts)}")
        return known

    @classmethod
    def chosen(cls, batch_length: Duration | AdaptiveBatchLength) -> AdaptiveBatchLength | None:
        """Return a new one for ``"adaptive"``, and a copy of an existing one; None for a fixed length."""
        if isinstance(batch_length, AdaptiveBatchLength):
            return cls.from_facts(batch_length.facts())
        return cls() if batch_length == "adaptive" else None

    def _is_fast(self, took: int, window: int) -> bool:
        if 100 * took >= _FAST * window:
            return False
        shorter = self._shorter()
        length = self._length(shorter)
        if 100 * took >= _SPARE * length:
            return False
        too_short, took_there = self._too_short
        # Otherwise the same load, with some noise, would lead back to a length that it has left.
        return length > too_short or took * self.batch_length < took_there * length

    def _shorter(self) -> int:
        return max(round(self._pulses / 2**0.5), self._first)

    def _length(self, pulses: int) -> int:
        return (2 * pulses * _SECOND + self._rate) // (2 * self._rate)

    def _use(self, pulses: int) -> None:
        self._pulses = min(pulses, self._largest)
        self._slow = self._fast = self._idle = 0
        if self.batch_length <= self._too_short[0]:
            self._too_short = (0, 0)
