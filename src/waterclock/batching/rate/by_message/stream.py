"""The state of one stream: its rate, its pulses, and the end of its part of the current window."""

from __future__ import annotations

from waterclock.batching.rate.by_message.pile import Pile
from waterclock.batching.rate.period import KEPT_DIFFERENCES, NEVER, StreamPeriodEstimator
from waterclock.batching.rate.pulse_grid import DRIFT_TOLERANCE, PulseGrid
from waterclock.batching.rate.rule import CUTS, ERA, GATES, HORIZON, RateRule, RateWindow
from waterclock.time import MIN_NS

BEFORE_ALL = MIN_NS - 1

_SECOND = 1_000_000_000


class Track(StreamPeriodEstimator):
    """A tracked stream; one more track serves all streams that may not gate.

    The limits of the window in progress are kept as the stream's event times, so that placing a message takes
    comparisons only. It extends the estimator instead of holding one, because every message goes through both.

    Attributes
    ----------
    role
        `GATES` if it may gate, `CUTS` if its messages are boundaries, each of which waits for the window that it opens.
    grid
        Its pulses once its rate is known; a stream with a grid gates. None else.
    pile
        Its messages for later windows: overflow, or held.
    absent
        Number of consecutive batches without a message of it.
    present, first
        Whether it has a message in this window, and the first event time of these, ns.
    satisfied
        Whether its last slot was reached.
    over_from
        From this event time on (ns) a message belongs to a later window.
    last_from
        From this event time on (ns) a message is in the last slot or beyond. With a disorder, it is so much after the
        window's end that no earlier message of the stream can still come.
    far_from
        From this event time on (ns) a message is more than three further windows ahead.
    notice_from
        From this event time on (ns) a message of this window changes ``present`` or ``satisfied``.
    """

    __slots__ = (
        "_steady",
        "absent",
        "far_from",
        "first",
        "grid",
        "last_from",
        "notice_from",
        "over_from",
        "pile",
        "present",
        "role",
        "satisfied",
    )

    def __init__(self, role: int) -> None:
        super().__init__(KEPT_DIFFERENCES if role == GATES else 0)
        self.role = role
        self.grid: PulseGrid | None = None
        self.pile = Pile()
        self.absent = 0
        self.over_from = self.last_from = self.far_from = NEVER
        self._steady = False  # whether the next window's times are those of this one plus a length
        self._begin()

    def place(self, window: RateWindow, rule: RateRule, steps: int) -> None:
        """Move to a window that begins ``steps`` lengths after the last one, or anywhere (0)."""
        if steps and self._steady and not window.is_cut:
            moved = steps * rule.batch_length
            self.over_from += moved
            self.last_from += moved
            self.far_from += moved
        else:
            self._measure(window, rule)
        if self.newest < window.era_from:
            self.newest = NEVER
        self._begin()

    def is_near(self, window: RateWindow) -> bool:
        """Return whether the newest message is of the window, or of the three lengths before it."""
        return window.near_from <= self.newest <= window.era_until

    def notice(self, event_time: int) -> None:
        """Record a message of this window."""
        if not self.present:
            self.present = True
            self.first = event_time
        if event_time >= self.last_from:
            self.satisfied = True
        self.notice_from = NEVER if self.grid is None or self.satisfied else self.last_from

    def regrid(self, start: int, rule: RateRule) -> None:
        """Build the grid again from the estimated rate, for windows from ``start`` (ns) on.

        A stream without a rate, or with less than one pulse a batch, has no grid and does not gate. The origin is kept
        while it is plausible, that is, not in another era. Otherwise it is the stream's first event time in the window,
        or its newest. If that is implausible too, there is no grid ("broken stream" in *RateAwareMessageBatcher*).

        Beyond *RateAwareMessageBatcher*, a stream without a whole rate may have a stable period of its own. Its grid
        begins again at its newest event time, because an estimated period drifts.
        """
        grids: list[PulseGrid] = []
        rate = self.rate_after(None if self.grid is None or self.grid.per != _SECOND else self.grid.rate)
        if rate is not None:
            origins = [] if self.grid is None else [self.grid.origin]
            grids = [PulseGrid(origin, rate) for origin in (*origins, self.first if self.present else self.newest)]
        elif (period := self.own_period()) is not None:
            grids = [PulseGrid(self.newest, 1, period)]
        farthest = ERA * rule.batch_length
        plausible = (grid for grid in grids if abs(grid.origin - start) <= farthest)
        grid = next((grid for grid in plausible if grid.rate * rule.batch_length >= grid.per), None)
        if grid != self.grid:
            self.grid = grid
            self._steady = False

    def dissolve(self) -> None:
        """Forget the stream's rate and pulses."""
        self.forget()
        self.grid = None
        self._steady = False

    def windows_to(self, event_time: int, window: RateWindow) -> int:
        """Return how many windows after this one a waiting message belongs to; only one is known after a cut one."""
        if window.is_cut:
            return int(event_time >= window.end)
        length = window.end - window.start
        steps = (event_time - window.start) // length
        if self.grid is not None:
            following = self.grid.first_pulse(window.start + (steps + 1) * length)
            if event_time >= self.grid.earliest(following):
                steps += 1
        return steps

    def _measure(self, window: RateWindow, rule: RateRule) -> None:
        self._steady = not window.is_cut
        if self.grid is None:
            last = window.start if self.role == CUTS else window.end - window.is_cut
            self.over_from = last + 1
            self.last_from = self.far_from = NEVER
            return
        grid = self.grid
        # A window that is cut has all pulses before its end, also one that rounding could move there.
        following = grid.first_pulse(window.end + DRIFT_TOLERANCE * window.is_cut)
        self.over_from = window.end if window.is_cut else grid.earliest(following)
        disorder = rule.max_disorder
        self.last_from = self.over_from + disorder if disorder else grid.earliest(following - 1)
        self.far_from = grid.earliest(grid.first_pulse(window.end + HORIZON * rule.batch_length + disorder))
        # Only whole periods are alike in every window.
        self._steady = not window.is_cut and rule.batch_length * grid.rate % grid.per == 0

    def _begin(self) -> None:
        self.present = self.satisfied = False
        self.first = NEVER
        self.notice_from = BEFORE_ALL if self.role == GATES else NEVER
