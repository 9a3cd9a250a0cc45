"""Tracks how far the event times of streams lag behind their receive times, and warns of long lags. Does no I/O."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping
from typing import NamedTuple

from waterclock._support.quoting import counted
from waterclock.time import format_duration

LATE = 2_000_000_000
"""Lag above which a stream is reported, ns: batches of live data wait a second or two."""

AHEAD = 100_000_000
"""How far an event time may be ahead of the receive time, ns: beyond it, a clock is wrong."""

MOST_STREAMS = 10_000
"""Maximum streams watched: names come from the messages, and a publisher may invent any number."""

_MILLISECOND = 1_000_000

StreamName = tuple[str, str]
"""Source and stream."""


class LagRange(NamedTuple):
    """Receive time minus event time of some messages, ns; negative if the event time is ahead."""

    largest: int
    smallest: int

    def merged(self, other: LagRange) -> LagRange:
        """Return the range of both."""
        return LagRange(max(self.largest, other.largest), min(self.smallest, other.smallest))


class StreamLags:
    """The lags of all streams between two checks. One thread may note and another look."""

    def __init__(self) -> None:
        self.latest: Mapping[StreamName, LagRange] = {}  # the lags of each stream between the last two checks
        self._lock = threading.Lock()
        self._noted: dict[StreamName, LagRange] = {}
        self._late: set[StreamName] = set()
        self._ahead: set[StreamName] = set()

    def note(self, lags: Mapping[StreamName, LagRange]) -> None:
        """Note the lags of messages that were appended."""
        with self._lock:
            for name, lag in lags.items():
                known = self._noted.get(name)
                if known is not None:
                    self._noted[name] = known.merged(lag)
                elif len(self._noted) < MOST_STREAMS:
                    self._noted[name] = lag

    def look(self) -> list[tuple[str, str]]:
        """Begin the next interval; return event names and texts for streams that have become late or are ahead."""
        with self._lock:
            latest, self._noted = self._noted, {}
        self.latest = latest
        late = {name: lag.largest for name, lag in latest.items() if lag.largest > LATE}
        ahead = {name: -lag.smallest for name, lag in latest.items() if lag.smallest < -AHEAD}
        found: list[tuple[str, str]] = []
        if late.keys() - self._late:
            found.append(("lag", _text(late, "behind their receive times")))
        if ahead.keys() - self._ahead:
            found.append(
                ("ahead", f"{_text(ahead, 'ahead of their receive times')}. Check the clocks of these sources")
            )
        self._late, self._ahead = set(late), set(ahead)
        return found

    def worst(self, count: int) -> list[tuple[StreamName, LagRange]]:
        """Return the streams with the largest lags between the last two looks, the largest first."""
        return heapq.nlargest(count, self.latest.items(), key=lambda item: item[1].largest)


def _text(lags: Mapping[StreamName, int], where: str) -> str:
    source, stream = max(lags, key=lags.__getitem__)
    most = format_duration(lags[source, stream] // _MILLISECOND * _MILLISECOND)
    return f"event times of {counted(len(lags), 'stream')} are {where}, by up to {most} ({source} {stream})"
