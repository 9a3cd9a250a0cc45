"""The options of batching by rate, the constants of its rules, and the check that event times are plausible."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from typing import NamedTuple

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS, MIN_NS, Duration, format_duration, to_duration

# The kernel compiles in these numbers: after a change of one, save `kernel.py`, too.

HORIZON = 3
"""Batch lengths that a plausible event time may be ahead: of the window's start for the high-water mark, of its end
for a message to be held, of the next window for an overflow to satisfy its stream's gate; and the widest gap within
plausible traffic."""

ERA = 1000
"""A message more batch lengths than this from the window is in another era."""

STALLED = 10
"""After this many batch lengths without a closed window, the window is placed again."""

MOVING = 5
"""Batch lengths.

If a window is placed again, traffic that covers this many outranks more numerous traffic, which may come from a stopped
clock.
"""

MOST_ERAS = 16
"""Maximum number of other eras distinguished until the window stalls: one for each wrong clock.

If there are more, those with the latest messages count.
"""

PACE = 2
"""If other eras' traffic advances more than this many times as far as the window, it is a gateway's backlog and does
not count against the window.
"""

MOST_UNMOVED = 100_000
"""Maximum messages that join a window while the high-water mark stays; then it closes.

This bounds the buffer even if no clock shows a stall and the streams' clocks have stopped.
"""

MOST_AWAITED = 2
"""Batch lengths: a longer delay is not waited for, since the timeout is at most three."""

FORGETS = 8
"""A delay that is waited for shrinks by this part a batch if no message is as late again: an outage of one stream is
forgotten after some 20 batches, and a delay that every third batch has is still waited for."""

ABSENT = 5
"""A stream without messages in this many consecutive batches is forgotten."""

MAX_BATCH_LENGTH = 30 * 86_400 * 10**9
"""Maximum batch length, ns, for which an era's distance fits 64-bit nanoseconds."""

_DEFAULT_TIMEOUT = Fraction(6, 5)

Gated = bool | Collection[str] | Callable[[str], bool]
"""Which streams may gate: all, none, those named, or those for which a function returns True."""

RIDES, GATES, CUTS = range(3)
"""The role of a stream: it rides along, it may gate, or its messages are boundaries."""


class RateRule(NamedTuple):
    """The checked options of batching by rate."""

    batch_length: int  # length of a window, ns
    timeout: int | float
    """Distance of the high-water mark from the window's start at which the window closes, ns, or infinity."""
    factor: Fraction | None  # the timeout in batch lengths, which stays when the length changes; None for no timeout
    auto: bool = False  # each window's timeout follows the delays in earlier ones; the factor is its minimum
    max_disorder: int = 0
    """How far (ns) a message may be behind an earlier one of its stream and still find its window open."""

    @classmethod
    def of(cls, batch_length: int, factor: Fraction | None, *, auto: bool = False, max_disorder: int = 0) -> RateRule:
        """Create the rule of a length (ns), a timeout in lengths, and a disorder (ns)."""
        timeout = math.inf if factor is None else int(factor * batch_length)
        if max_disorder > HORIZON * batch_length:
            raise InvalidArgumentError(
                f"max_disorder must be at most {HORIZON} batch lengths ({format_duration(HORIZON * batch_length)}), got"
                f" {format_duration(max_disorder)!r}"
            )
        return cls(batch_length, timeout, factor, auto, max_disorder)

    @classmethod
    def checked(cls, batch_length: Duration, timeout: Duration | float | None, max_disorder: Duration = 0) -> RateRule:
        """Read the options as users write them.

        Raises
        ------
        InvalidArgumentError
            For a length that is not above zero or beyond 30 days; for a timeout that is not above zero, or above three
            lengths and not infinite: the high-water mark stops there, so a longer timeout would never be reached. For a
            disorder above three lengths: it delays every batch.
        """
        length, disorder = _length(batch_length), to_duration(max_disorder, "max_disorder")
        if timeout is None or timeout == "auto":
            return cls.of(length, _DEFAULT_TIMEOUT, auto=timeout == "auto", max_disorder=disorder)
        if isinstance(timeout, float):
            if timeout == math.inf:
                return cls.of(length, None, max_disorder=disorder)
            raise InvalidArgumentError(
                f"timeout must be a string such as '1.5s', an int (ns), 'auto' or math.inf, got {quoted(timeout)}"
            )
        ns = to_duration(timeout, "timeout", minimum=1)
        if ns > HORIZON * length:
            raise InvalidArgumentError(
                f"timeout must be at most {HORIZON} batch lengths ({format_duration(HORIZON * length)}), got"
                f" {quoted(timeout)}. For no timeout, pass math.inf (on the command line, inf)"
            )
        return cls.of(length, Fraction(ns, length), max_disorder=disorder)

    def with_length(self, batch_length: Duration) -> RateRule:
        """Change the length; the timeout stays in proportion, and the disorder as it is."""
        return RateRule.of(_length(batch_length), self.factor, auto=self.auto, max_disorder=self.max_disorder)

    def awaiting(self, delay: int) -> RateRule:
        """Wait so much (ns) longer than by default, up to three lengths."""
        return self._replace(timeout=min(self.batch_length * 6 // 5 + delay, HORIZON * self.batch_length))


class RateWindow(NamedTuple):
    """The window in progress and the distances that the rules measure from it, all ns."""

    # The window; both ends belong to it for a stream without a grid. If it is cut, its end belongs to the next one.
    start: int
    end: int
    cap: int  # the high-water mark goes no further than this
    timeout_at: int | float  # the high-water mark at which the window closes; infinity for never
    near_from: int  # a message before this is as implausible as one after ``held_until``
    held_until: int  # latest event time that is held for a later window if some stream gates
    # Times outside are in another era. So are the last 999 lengths of 64-bit time: no window is so near its end that
    # a distance from it overflows.
    era_from: int
    era_until: int
    is_cut: bool = False  # whether a boundary ends it

    @classmethod
    def at(cls, start: int, rule: RateRule) -> RateWindow:
        """Open a window of the rule's length at ``start`` (ns)."""
        length = rule.batch_length
        end = start + length
        ahead = HORIZON * length + rule.max_disorder
        return cls(
            start=start,
            end=end,
            cap=start + ahead,
            timeout_at=start + rule.timeout + rule.max_disorder,
            near_from=start - HORIZON * length,
            held_until=end + ahead,
            era_from=start - ERA * length,
            era_until=min(start, _latest_start(length)) + length + ERA * length,
        )

    def cut_at(self, boundary: int | None) -> RateWindow:
        """Cut the window at a boundary (ns), if it is in it."""
        within = boundary is not None and self.start < boundary <= self.end
        return self._replace(end=boundary, is_cut=True) if within else self


def placed(anchor: int, batch_length: int) -> int:
    """Start a window at ``anchor`` (ns), but so far from the ends of 64-bit time that its era fits."""
    return min(max(anchor, MIN_NS + 2 * ERA * batch_length), _latest_start(batch_length))


def _latest_start(batch_length: int) -> int:
    return MAX_NS - 2 * ERA * batch_length


def plausible_range(times: Iterable[int], batch_length: int, *, moving: bool = False) -> tuple[int, int]:
    """Find the bulk of the traffic: the oldest and the newest plausible event time, ns.

    The times are split at gaps wider than three batch lengths; the largest group counts, the later one of equals. So a
    single wrong time does not place a window.

    Parameters
    ----------
    times
        At least one event time, ns.
    batch_length
        ns.
    moving
        Whether a group that covers five batch lengths outranks a larger one that does not.
    """
    ordered = sorted(times)
    widest = HORIZON * batch_length
    least = MOVING * batch_length
    best = (False, 0, ordered[0], ordered[0])
    first = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] - ordered[index - 1] > widest:
            oldest, newest = ordered[first], ordered[index - 1]
            best = max(best, (moving and newest - oldest >= least, index - first, oldest, newest))
            first = index
    return best[2], best[3]


def gate_chooser(gated: Gated) -> Callable[[str], bool]:
    """Convert a user's ``gated`` to a function of the stream's name.

    Raises `InvalidArgumentError` if it is not a bool, a collection of texts or a function; also for one bare text.
    """
    if isinstance(gated, bool):
        return lambda _: gated
    if isinstance(gated, str):
        raise InvalidArgumentError(
            f"gated must be a collection of streams, got {quoted(gated)}. Write {{{quoted(gated)}}}"
        )
    if isinstance(gated, Collection):
        for stream in gated:
            if not isinstance(stream, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
                raise InvalidArgumentError(f"gated must hold names of streams, got {quoted(stream)}")
        return frozenset(gated).__contains__
    if callable(gated):
        return gated
    raise InvalidArgumentError(f"gated must be True, False, a collection of streams or a function, got {quoted(gated)}")


def role_chooser(gated: Gated, boundaries: Collection[str]) -> Callable[[str], int]:
    """Return a function that finds the role of a stream: one of boundaries never gates.

    Raises
    ------
    InvalidArgumentError
        As `gate_chooser`.
    """
    may_gate = gate_chooser(gated)
    return lambda stream: CUTS if stream in boundaries else GATES if may_gate(stream) else RIDES


def _length(batch_length: Duration) -> int:
    if batch_length == "adaptive":
        raise InvalidArgumentError(
            "batch_length must be a duration, got 'adaptive': only RateAwareBatcher, 'waterclock batch --by rate"
            " --into' and pipelines measure how long batches take"
        )
    length = to_duration(batch_length, "batch_length", minimum=1)
    if length > MAX_BATCH_LENGTH:
        raise InvalidArgumentError(f"batch_length must be at most 30d, got {quoted(batch_length)}")
    return length
