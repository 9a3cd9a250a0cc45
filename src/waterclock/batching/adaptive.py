"""Lengthens the batches of a consumer that does not keep up, and shortens them again."""

from __future__ import annotations

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.time import Duration, to_duration

_SECOND = 1_000_000_000
_TOO_SLOW_TWICE = 2
_FAST_OR_IDLE = 3
_FAST = 0.7
_LARGEST = 8


class AdaptiveBatchLength:
    """Suggests the batch length for `RateAwareBatcher.set_batch_length` from how long batches take to process.

    Longer batches cost less a message, so a consumer that falls behind gets longer ones:

    - where processing takes longer than the window twice running, the length doubles, to at most 8 times the first;
    - where it takes under 70 % three times running, or nothing came for three windows, it shrinks by √2, to at least
      the first.

    Lengths are whole pulses, so that every batch has as many.

    Parameters
    ----------
    batch_length
        The first length; it is rounded to whole pulses.
    rate
        Pulses a second of the stream that matters, whole Hz.

    Raises
    ------
    InvalidArgumentError
        For a length below one pulse, or a rate below 1 Hz.

    Notes
    -----
    The lengths up are the first times 1, 2, 4, 8; those down are steps of √2, rounded.
    *RateAwareMessageBatcher* does not say them; the numbers come from running such a batcher at a neutron source.
    """

    __slots__ = ("_fast", "_first", "_idle", "_pulses", "_rate", "_slow")

    def __init__(self, batch_length: Duration = "1s", rate: int = 1) -> None:
        if rate < 1:
            raise InvalidArgumentError(f"rate must be an integer ≥ 1 (pulses per second), got {quoted(rate)}")
        length = to_duration(batch_length, "batch_length", minimum=1)
        self._rate = rate
        self._first = self._pulses = (2 * length * rate + _SECOND) // (2 * _SECOND)
        if self._first < 1:
            raise InvalidArgumentError(
                f"batch_length must hold at least one pulse of {rate} Hz, got {quoted(batch_length)}"
            )
        self._slow = self._fast = self._idle = 0

    @property
    def batch_length(self) -> int:
        """The length to use, ns."""
        return (2 * self._pulses * _SECOND + self._rate) // (2 * self._rate)

    @property
    def pulses(self) -> int:
        """The length to use, in pulses."""
        return self._pulses

    def processed(self, took: Duration, window: Duration | None = None) -> int:
        """Report how long a batch took to process.

        Parameters
        ----------
        took
            From taking the batch to being done.
        window
            Length of the batch's window, ``batch.end - batch.start``: batches from before a change come after it.
            Default: the length in use.

        Returns
        -------
        int
            The length to use from now on, ns.
        """
        took_ns = to_duration(took, "took")
        window_ns = self.batch_length if window is None else to_duration(window, "window", minimum=1)
        self._idle = 0
        self._slow = self._slow + 1 if took_ns > window_ns else 0
        self._fast = self._fast + 1 if took_ns < _FAST * window_ns else 0
        if self._slow == _TOO_SLOW_TWICE:
            self._use(2 * self._pulses)
        elif self._fast == _FAST_OR_IDLE:
            self._shrink()
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
            self._shrink()
        return self.batch_length

    def _shrink(self) -> None:
        self._use(round(self._pulses / 2**0.5))

    def _use(self, pulses: int) -> None:
        self._pulses = min(max(pulses, self._first), _LARGEST * self._first)
        self._slow = self._fast = self._idle = 0
