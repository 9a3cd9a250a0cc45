"""Records the event times of a source that are already in batches, so that no event time is batched twice."""

from __future__ import annotations

from bisect import insort

from waterclock.time import MIN_NS

MOST_SPANS = 8
"""Maximum number of separate stretches of event time.

Each jump of a clock, in either direction, begins one, and so do silences. If there are more, the narrowest gaps between
stretches count as returned.
"""


class GivenOut:
    """The event times of returned windows.

    Windows are returned in order, and a message before the newest returned event time is refused. Earlier times are
    accepted again only if the receive clock was set again; then the stretches of returned time are kept separately.
    """

    __slots__ = ("_near", "begun_anew", "early", "newest", "run", "spans")

    def __init__(self, near: int) -> None:
        """``near``: windows at most this far apart (ns) form one stretch."""
        self._near = near
        self.newest = MIN_NS - 1  # the last event time of all returned windows, ns
        # Stream and event time of messages returned before their window's closing time, and that time, ns: until then
        # QoS 1 may redeliver them.
        self.early: dict[tuple[str, int], int] = {}
        # First and last event time, ns, of the stretches of returned windows, in order.
        self.spans: list[tuple[int, int]] = []
        self.begun_anew = False  # whether the clock was set again, so that times between the spans may come
        self.run: int | None = None  # event time of the newest boundary in a returned window, ns; None before the first

    def covers(self, event_time: int) -> bool:
        """Return whether this event time, at or before ``newest``, is in a batch already."""
        return not self.begun_anew or any(start <= event_time <= last for start, last in self.spans)

    def add(self, start: int, last: int) -> None:
        """Record a returned window, from its first to its last event time (ns)."""
        self.newest = max(self.newest, last)
        spans = self.spans
        if spans and spans[-1][0] <= start <= spans[-1][1] + self._near:
            spans[-1] = (spans[-1][0], max(spans[-1][1], last))
            return
        insort(spans, (start, last))
        if len(spans) > 1:
            self._join_spans()

    def run_of(self, start: int, *, begins_run: bool) -> int | None:
        """Return the run of a window that is returned now; None if the last boundary is not at or before its start."""
        if begins_run and (self.run is None or start > self.run):
            self.run = start
        return self.run if self.run is not None and self.run <= start else None

    def forget_early(self, floor: int) -> None:
        """Forget early messages whose repeats would be late now; ``floor`` (ns): the earliest receive time to come."""
        early = self.early
        while early and next(iter(early.values())) < floor:
            del early[next(iter(early))]

    def _join_spans(self) -> None:
        spans = self.spans
        while True:
            gap, place = min((spans[k + 1][0] - spans[k][1], k) for k in range(len(spans) - 1))
            if gap > self._near and len(spans) <= MOST_SPANS:
                return
            spans[place : place + 2] = [(spans[place][0], max(spans[place][1], spans[place + 1][1]))]
            if len(spans) == 1:
                return
