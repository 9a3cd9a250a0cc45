"""The current window of batching by rate: its messages, the messages for later windows, and the gating streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from waterclock.batching.batch import Batch, CloseReason
from waterclock.batching.rate.by_message.aligned import sent_messages
from waterclock.batching.rate.by_message.gate import Gate
from waterclock.batching.rate.by_message.stream import BEFORE_ALL, Track
from waterclock.batching.rate.period import NEVER
from waterclock.batching.rate.rule import (
    ABSENT,
    CUTS,
    FORGETS,
    MOST_AWAITED,
    RIDES,
    STALLED,
    RateRule,
    RateWindow,
    placed,
)
from waterclock.batching.rate.runs import run_after
from waterclock.batching.rate.starts import StartRun, Starts
from waterclock.message import Message

_event_time = attrgetter("event_time")
_in_order = attrgetter("event_time", "stream")
_MOST_RIDING = 4096  # maximum remembered names of streams that may not gate


class Assembly:
    """Places the messages of one source, closes its windows and opens the next ones. Its owner decides when to close.

    Attributes
    ----------
    source
        The source of its messages.
    rule, pending
        The options of the window in progress, and those of the next if they change.
    window, high_water
        The window in progress, and the high-water mark, ns.
    held_until
        Latest event time (ns) that is held for a later window if some stream gates: three lengths after the window's
        end or, during catch-up, after the newest waiting message of a gating stream.
    active
        The messages that close with the window.
    strays
        How many of the active messages are of another era.
    piled
        How many messages wait for later windows.
    tracks, riding
        The tracks of streams that may gate, by name, and the one of all others.
    track_of
        The track of each stream's messages, by name.
    gating, contributing
        How many streams gate, and how many of them sent something for the window.
    waiting
        How many gating streams have not reached their last slot; negative if no stream gates.
    doubtful
        Whether only a wrong clock may have placed the window: at the start, or by a stall in another era.
    trusted_from
        The first window's doubt ends with a window that begins here (ns) or later, if two streams agree.
    outnumbered
        Whether other eras' messages outnumbered its own in the window that closed last.
    run
        The newest boundary in a batch, ns; None before the first.
    lost
        Whether the window, which is empty, must be placed again with the next messages.
    starts, setbacks
        The starts of windows, and how often one was placed before the furthest of them.
    slowest, awaited
        The greatest delay of a message of a gating stream that is waited for, ns, in the window in progress, and what
        the earlier windows had, which is slowly forgotten; if the timeout follows delays.
    observers
        Called with each batch of a window.
    """

    __slots__ = (
        "_gate",
        "active",
        "awaited",
        "contributing",
        "doubtful",
        "gating",
        "held_until",
        "high_water",
        "lost",
        "observers",
        "outnumbered",
        "pending",
        "piled",
        "riding",
        "rule",
        "run",
        "setbacks",
        "slowest",
        "source",
        "starts",
        "strays",
        "track_of",
        "tracks",
        "trusted_from",
        "waiting",
        "window",
    )

    def __init__(self, source: str, rule: RateRule, start: int, gate: Gate) -> None:
        self.source = source
        self.rule = rule
        self.pending: RateRule | None = None
        self.window = RateWindow.at(start, rule)
        self.high_water = start
        self.held_until = self.window.held_until
        self.active: list[Message] = []
        self.strays = 0
        self.piled = 0
        self.tracks: dict[str, Track] = {}
        self.riding = Track(RIDES)
        self.track_of: dict[str, Track] = {}
        self.gating = 0
        self.contributing = 0
        self.waiting = -1
        self.starts = Starts(start, [StartRun(start, start, rule.batch_length)])
        self.setbacks = 0
        self.doubtful = False
        self.trusted_from = NEVER
        self.outnumbered = False
        self.lost = False
        self.run: int | None = None
        self.slowest = 0
        self.awaited = 0
        self.observers: tuple[Callable[[Batch], None], ...] = ()
        self._gate = gate

    def learn(self, messages: Iterable[Message]) -> None:
        """Start: learn the streams' rates from messages that are in no window, and open the first one."""
        for message in self._to_observe(messages):
            if self.window.era_from <= message.event_time <= self.window.start:
                self._track(message.stream).observe(message.event_time)
        for track in self.tracks.values():
            track.regrid(self.window.start, self.rule)
        self._turn_to(self.window.start)

    def take(self, messages: list[Message]) -> None:
        """Place messages, and move the high-water mark."""
        newest = BEFORE_ALL
        # With a disorder, every message goes through `place`.
        era_until = BEFORE_ALL if self.rule.max_disorder else self.window.era_until
        track_of = self.track_of.get
        join = self.active.append
        for message in messages:
            event_time = message.event_time
            track = track_of(message.stream)
            if track is not None and track.newest < event_time <= era_until:
                # In order and of this era, as nearly all are: the same as `place`, without its calls.
                track.differences.append(event_time - track.newest)
                track.newest = event_time
                if event_time < track.over_from:
                    join(message)
                    if event_time >= track.notice_from:
                        self.notice(track, event_time)
                else:
                    self._place_ahead(message, track, event_time)
            elif not self.place(message):
                continue
            if event_time > newest:  # noqa: PLR1730  # max() costs three times as much, for every message
                newest = event_time
        if self.rule.auto:
            self._note_delays(messages)
        if newest > self.high_water:
            self.high_water = max(self.high_water, min(newest, self.window.cap))
        if self._gate.boundaries:
            self._cut()

    def place(self, message: Message) -> bool:
        """Place a message by all the rules; False if it is of another era."""
        window = self.window
        event_time = message.event_time
        if not window.era_from <= event_time <= window.era_until:
            self.active.append(message)
            self.strays += 1
            return False
        track = self._track(message.stream)
        if not self.rule.max_disorder:
            track.observe(event_time, window.start - window.near_from)
        if event_time >= track.over_from:
            self._place_ahead(message, track, event_time)
            return True
        self.active.append(message)
        if event_time >= track.notice_from:
            self.notice(track, event_time)
        return True

    def notice(self, track: Track, event_time: int) -> None:
        """Count a stream's first message in the window, and its first in the last slot."""
        present, satisfied = track.present, track.satisfied
        track.notice(event_time)
        if track.grid is not None:
            self.contributing += track.present - present
            self.waiting -= track.satisfied - satisfied

    def gap(self) -> int:
        """Return how many windows to skip because this one is empty and messages wait for others; 0 for none."""
        if not self.piled or (self.contributing if self.gating else len(self.active) > self.strays):
            return 0
        tracks = [track for track in self._all_tracks() if track.grid is not None or not self.gating]
        if self.gating and not all(track.pile for track in tracks):
            return 0  # one of them may just be slow
        steps = self.windows_to_first([*tracks, *self._cutting()])
        if disorder := self.rule.max_disorder:
            # Windows are skipped only if no message for them can still come.
            newest = [(track, track.pile.newest) for track in tracks] if self.gating else [(tracks[0], self.high_water)]
            steps = min(steps, *(track.windows_to(time - disorder, self.window) for track, time in newest))
        return max(steps, 0)

    def windows_to_first(self, tracks: Iterable[Track] | None = None) -> int:
        """Return how many windows after this one the first waiting message of any track belongs to; 0 for none."""
        tracks = self._all_tracks() if tracks is None else tracks
        return min((track.windows_to(track.pile.oldest, self.window) for track in tracks if track.pile), default=0)

    def doubt(self) -> None:
        """Doubt the first window until two streams have agreed for 10 lengths: a wrong clock may have placed it."""
        self.doubtful = True
        self.trusted_from = self.window.start + STALLED * self.rule.batch_length

    @property
    def is_rivalled(self) -> bool:
        """Return whether the window is doubtful, and other eras outnumber its own messages in it or the last one."""
        return self.doubtful and (self.outnumbered or 2 * self.strays > len(self.active) + self.piled)

    @property
    def _is_agreed(self) -> bool:
        """Return whether two streams are in the window (all that ride along are one), and no other era rivals it."""
        streams = sum(track.present for track in self.tracks.values()) + self.riding.is_near(self.window)
        return streams > 1 and not self.is_rivalled

    def waiting_messages(self) -> list[Message]:
        """List the messages that wait for later windows."""
        return [message for track in self._all_tracks() for message in track.pile.messages()]

    def close(self, reason: CloseReason, steps: int = 1) -> Batch:
        """Close the window, and open the one that many windows on."""
        batch = self._give_out(reason)
        self.skip(steps)
        return batch

    def close_complete(self, batches: list[Batch]) -> None:
        """Close as many windows as are complete."""
        while True:
            if steps := self.gap():
                reason = "gap"
            elif self.waiting == 0:
                reason = "slots"
            elif self.high_water >= self.window.timeout_at:
                reason = "timeout"
            else:
                return
            if self.active:
                batches.append(self.close("boundary" if self.window.is_cut else reason, steps or 1))
            else:
                self.skip(steps or 1)

    def skip(self, steps: int) -> None:
        """Skip that many windows without a batch; one that is cut is followed by the window of its boundary."""
        if self.window.is_cut:
            self.open(self.window.end)
        else:
            self.open(self.window.start + steps * self.rule.batch_length, steps)

    def place_anew(self, anchor: int) -> Batch:
        """Stall: close the window, and open one at ``anchor`` (ns), which may be earlier.

        Messages that wait implausibly far ahead of the new window result from the misplacement, and are returned.
        """
        start = placed(anchor, self.rule.batch_length)
        self.doubtful = not self.window.era_from <= start <= self.window.era_until
        self.trusted_from = NEVER
        if start <= self.starts.furthest:
            # Times that were batched before may come again; the batches' identities must not.
            self.setbacks += 1
            start = self.starts.free(start + self.setbacks)
        implausible_from = RateWindow.at(start, self.rule).held_until + 1
        for track in self._all_tracks():
            self.active += track.pile.take_from(implausible_from)
        batch = self._give_out("stall")
        self.outnumbered = False
        if self.doubtful:
            for track in self.tracks.values():
                track.regrid(start, self.rule)  # no message waits for pulses of another era
        self.high_water = start
        self.open(start)
        return batch

    def follow(self, oldest: int, newest: int) -> list[Batch]:
        """Stall: place the window at the traffic of a later era, and that traffic in it and the windows that follow.

        Returns the other messages of the window that ends; empty if it had none.

        Parameters
        ----------
        oldest, newest
            The traffic's event times, ns.
        """
        traffic = [message for message in self.active if oldest <= message.event_time <= newest]
        self.active = [message for message in self.active if not oldest <= message.event_time <= newest]
        self.strays -= len(traffic)
        batch = self.place_anew(oldest)
        self.take(traffic)
        return [batch] if batch.messages else []

    def find(self, anchor: int) -> None:
        """Place a lost window, which is empty, at ``anchor`` (ns)."""
        self.lost = False
        self.place_anew(anchor)  # the batch that this closes is empty
        self.doubt()

    def open(self, start: int, steps: int = 0) -> None:
        """Open a window at ``start`` (ns), ``steps`` windows after the last or anywhere (0), with waiting messages.

        After a stall that moved back, it may begin some nanoseconds later, to avoid the start of an earlier window.
        """
        free = self.starts.free(start)
        if free != start:
            start, steps = free, 0
        if self.pending is not None:
            self.rule, self.pending, steps = self.pending, None, 0
            for track in self.tracks.values():
                track.regrid(start, self.rule)
        if self.rule.auto:
            self.rule = self.rule.awaiting(self.awaited)
        self.starts.begin(start, self.rule.batch_length)
        self._turn_to(start, steps)

    def _turn_to(self, start: int, steps: int = 0) -> None:
        self.window = RateWindow.at(start, self.rule)
        for track in self._cutting():
            track.place(self.window, self.rule, steps)
            self._let_in(track)
        self.window = self.window.cut_at(self._boundary())
        for track in self._all_tracks():
            if track.role != CUTS:
                track.place(self.window, self.rule, steps)
        self._admit_waiting()

    def _cut(self) -> None:
        """Cut the window at the first boundary that waits, if it is in it, and place the window's messages again."""
        window = self.window.cut_at(self._boundary())
        if window == self.window:
            return
        self.window = window
        for track in self._all_tracks():
            track.place(window, self.rule, 0)
        messages, self.active = self.active, []
        for message in messages:
            event_time = message.event_time
            track = self.track_of.get(message.stream, self.riding)
            if not window.era_from <= event_time <= window.era_until:
                self.active.append(message)
            elif event_time < track.over_from or (track.grid is None and event_time > self.held_until):
                self.active.append(message)
                track.notice(event_time)
            else:
                track.pile.push(message)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        """Take waiting messages into the window, and count those of the tracks."""
        window = self.window
        for track in self._all_tracks():
            if track.pile:
                self._let_in(track)
        self.count()
        if self.piled and not self.gating:
            # No stream is missing: the waiting messages were seen, so their time counts.
            newest = max(track.pile.newest for track in self._all_tracks() if track.pile)
            self.high_water = max(self.high_water, min(newest, window.cap))

    def count(self) -> None:
        """Count the messages of the tracks."""
        gating = [track for track in self.tracks.values() if track.grid is not None]
        self.gating = len(gating)
        self.contributing = sum(track.present for track in gating)
        self.waiting = sum(not track.satisfied for track in gating) if gating else -1
        self.piled = sum(len(track.pile) for track in self._all_tracks())
        self.held_until = self.window.held_until
        if self.piled:
            newest = max((track.pile.newest for track in gating if track.pile), default=self.window.end)
            self._reach(newest)

    def _note_delays(self, messages: list[Message]) -> None:
        """Measure how far the gating streams' messages are behind the high-water mark at which they come."""
        mark = self.high_water - self.rule.max_disorder
        most = mark - MOST_AWAITED * self.rule.batch_length
        for message in messages:
            event_time = message.event_time
            if most <= event_time < mark - self.slowest:
                track = self.track_of.get(message.stream)
                if track is not None and track.grid is not None:
                    self.slowest = mark - event_time

    def _all_tracks(self) -> list[Track]:
        return [*self.tracks.values(), self.riding]

    def _cutting(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.role == CUTS] if self._gate.boundaries else []

    def _boundary(self) -> int | None:
        """Return the first boundary that waits, ns."""
        return min((track.pile.oldest for track in self._cutting() if track.pile), default=None)

    def _track(self, stream: str) -> Track:
        track = self.track_of.get(stream)
        if track is None:
            track, role = self.riding, self._gate(stream)
            if role != RIDES:
                track = self.tracks[stream] = Track(role)
                track.place(self.window, self.rule, 0)
            self.track_of[stream] = track
        return track

    def _place_ahead(self, message: Message, track: Track, event_time: int) -> None:
        """Queue the message as overflow, hold it for a later window, or add it to this one."""
        if track.grid is None and track.role != CUTS and self.gating and event_time > self.held_until:
            self.active.append(message)
            if event_time >= track.notice_from:
                self.notice(track, event_time)
            return
        track.pile.push(message)
        self.piled += 1
        if track.grid is None:
            return
        self._reach(event_time)
        if not track.satisfied and track.last_from <= event_time < track.far_from:
            track.satisfied = True
            self.waiting -= 1

    def _reach(self, event_time: int) -> None:
        self.held_until = max(self.held_until, event_time + self.window.cap - self.window.start)

    def _let_in(self, track: Track) -> None:
        if messages := track.pile.take_before(track.over_from):
            self.active += messages
            self.high_water = max(self.high_water, messages[-1].event_time)
            track.notice(messages[0].event_time)
            track.notice(messages[-1].event_time)
        if track.grid is not None and track.pile.has_between(track.last_from, track.far_from):
            track.satisfied = True

    def _to_observe(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Order messages that may be out of order, so that the differences between event times show the rates."""
        return sorted(messages, key=_event_time) if self.rule.max_disorder else messages

    def _give_out(self, reason: CloseReason) -> Batch:
        window = self.window
        if self.rule.max_disorder:
            for message in self._to_observe(self.active):
                if window.era_from <= message.event_time <= window.era_until:
                    track = self.track_of.get(message.stream, self.riding)
                    track.observe(message.event_time, window.start - window.near_from)
        batch = self.batch(self.active, window.start, window.end, reason)
        for observe in self.observers:
            observe(batch)
        if self.window.start >= self.trusted_from and self._is_agreed:
            self.doubtful, self.trusted_from = False, NEVER
        self.outnumbered = 2 * self.strays > len(self.active)
        self.active, self.strays = [], 0
        self.awaited = max(self.slowest, self.awaited - self.awaited // FORGETS)
        self.slowest = 0
        self._review()
        return batch

    def batch(self, messages: list[Message], start: int, end: int, reason: CloseReason) -> Batch:
        """Build a batch, closed at the high-water mark."""
        boundaries = self._gate.boundaries
        times = [message.event_time for message in messages if message.stream in boundaries] if boundaries else ()
        run, self.run = run_after(self.run, start, end, times)
        sent, offsets = sent_messages(messages)
        in_order = tuple(sorted(sent, key=_in_order))
        return Batch(self.source, start, end, self.high_water, reason, in_order, run=run, offsets=offsets)

    def _review(self) -> None:
        """Stream lifecycle: rebuild the grids of present streams, and forget those absent from five batches."""
        for stream, track in list(self.tracks.items()):
            if track.present:
                track.absent = 0
                track.regrid(self.window.start, self.rule)
                continue
            track.absent += 1
            if track.absent < ABSENT:
                continue
            track.dissolve()
            if not track.pile:  # otherwise it stays until its last message is returned
                del self.tracks[stream], self.track_of[stream]
        if len(self.track_of) > len(self.tracks) + _MOST_RIDING:
            self.track_of = dict(self.tracks)
