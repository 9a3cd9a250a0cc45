"""Batches single messages by rate: a batch closes when every regular stream has reached its last pulse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import cast

from waterclock._support.moments import monotonic
from waterclock._support.quoting import quoted
from waterclock.batching.adaptive import Adaptive, AdaptiveBatchLength
from waterclock.batching.batch import Batch, check_batch
from waterclock.batching.declared_streams import stream_names
from waterclock.batching.rate.by_message.aligned import TOO_MANY_CLOCKS, ClockAlignment, Clocks, checked_clocks
from waterclock.batching.rate.by_message.gate import Gate
from waterclock.batching.rate.by_message.outside_watch import OutsideWatch
from waterclock.batching.rate.by_message.recovery import give_way, recover
from waterclock.batching.rate.by_message.silence import Silence, check_receive_times
from waterclock.batching.rate.by_message.stall import StallWatch
from waterclock.batching.rate.by_message.state import from_bytes, to_bytes
from waterclock.batching.rate.by_message.window import Assembly
from waterclock.batching.rate.long_call import warn_of_long_call
from waterclock.batching.rate.rule import ERA, GATES, Gated, RateRule, RateWindow, placed, plausible_range
from waterclock.batching.stats import BatcherStats
from waterclock.batching.stream_clocks import StreamClocks
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import Duration, Time, to_time

_event_time = attrgetter("event_time")
_stream = attrgetter("stream")


class RateAwareBatcher:
    """Batches the messages of one source in windows that close as soon as all their regular streams have sent.

    The rules, by their names in *RateAwareMessageBatcher*; lengths are batch lengths:

    Period estimator
        `StreamPeriodEstimator` learns the rate of each stream that may gate.
    Pulse grid
        A stream whose rate is known and at least one pulse a batch has a `PulseGrid`, and gates.
    Slot gate
        A window closes (``slots``) when every gating stream has reached its last slot: a message in it, or overflow at
        most three further windows ahead. Counts do not matter, so neither missing pulses nor splits do.
    High-water mark and timeout
        The greatest event time seen, at most three lengths after the window's start; it never decreases. At ``timeout``
        after the start the window closes (``timeout``).
    Overflow
        A gating stream's message for a later window waits for it.
    Ride along, held for the next window
        A message without a grid joins the window if it is not after its end. If it is up to three lengths after the
        end, it is held; if later, it joins the window in progress. During catch-up, the three lengths count from the
        newest overflow, which the window will reach. If no stream gates, it is held at any distance ahead.
    Gap
        If every gating stream has messages waiting for later windows and none for this one, the
        window moves by whole lengths to the first that waits. If no stream gates, the window moves if it is empty and
        messages wait. Messages that rode along in the window are returned (``gap``).
    Contract departures
        No batch is empty: a window without messages is skipped, whatever the reason for its end.
    Stream lifecycle
        A stream absent from five batches is forgotten, and may join again.
    Batch length
        A new length applies from the next window on; grids keep their origin.

    And beyond *RateAwareMessageBatcher*:

    Period of its own
        A stream whose rate is not near a whole one gates if 16 differences show a stable period; see
        `StreamPeriodEstimator.own_period`.
    Start
        The messages of the first call form the first batch (``start``). The first window begins at its newest plausible
        event time; see `plausible_range`. It is doubtful, as below.
    Another era
        A message more than 1000 lengths from the window is delivered with it, and has no other effect.
    Stall
        If messages are buffered and nothing has closed for 10 lengths by ``clock``, the window closes with all its
        messages (``stall``). If most of them lie within it, the next window follows, as in a replay. Otherwise the next
        window begins at the newest plausible event time. Here traffic that covers at least 5 lengths takes precedence
        over traffic that is only more numerous. If such traffic is more than 1000 lengths after the window, as after a
        long silence, it is not in the stalled batch: the next window begins at its oldest event time, and its messages
        are placed in that window and those that follow.

        The same happens without a clock, so that a replay recovers, too: if the high-water mark stays while another
        era's messages, or those more than three lengths behind, advance by 10 lengths in more than one call. A gap in
        them counts as three lengths at most. Each era counts separately, so that a stream whose clock is wrong does not
        hide the others. It also happens if 100,000 messages have joined the window while the mark stays. The first
        window, and one that a stall has placed in another era, is doubtful: a single wrong clock may have placed it.
        When it closes, it moves to the traffic of other eras if their messages, in it or in the batch before, outnumber
        its own and advance at most twice as far. After such a move it is no longer doubtful; nor is the first one if
        two streams have agreed for 10 lengths.

        Only here may a window, and the high-water mark, go back. Windows then begin some nanoseconds late if their
        start was used before, so that no batch has the identity of an earlier one.
    Disorder
        With ``max_disorder``, a window closes when every gating stream has sent a message that is so much after its
        pulses in the window, and the high-water mark, the timeout and the plausible limits are so much later. Rates are
        estimated from each batch in order of event time.
    Boundaries
        A message of a stream in ``boundaries`` waits until its time begins a window. A window that it falls into ends
        there, whatever the grids: earlier messages belong to it, and it closes (``boundary``) when every gating stream
        has reached its last slot before the boundary, or as any other window. Its timeout counts from its start, as
        always. A boundary behind the window cuts nothing, and one in another era has no effect on windows.
        ``Batch.run`` is the newest boundary at or before the batch's start, of those in this batch or an earlier one.
    Messages that arrive together
        All messages of a call are placed before windows close; then every complete window closes.

    The ``closed_at`` of a batch is the high-water mark at its closing. A message behind the window joins it.

    Parameters
    ----------
    batch_length
        Length of the windows: above zero, at most 30 days. ``"adaptive"`` follows the times that `processed` reports,
        in whole seconds from 1 s to 8 s; an `AdaptiveBatchLength` has your own bounds.
    timeout
        At most three batch lengths, or ``math.inf`` for none; default 1.2. Stays in proportion to the length.
        ``"auto"`` waits 1.2 lengths and the greatest delay of gating streams in addition, at most three lengths: how
        far their messages come behind the high-water mark. Delays beyond two lengths do not count; those that do not
        come again are forgotten.
    gated
        Which streams may gate: True for all, a collection of their names, or a function of the name. A function is
        called once for each name, and again after many thousands of others; if it raises, the call changes nothing.
    clock
        Returns the time in seconds, for the stall rule only. A clock that jumps back restarts its count.
    forget_after
        How long a source may be silent, above zero; default None: forever. If all messages of a call were received
        longer than this after the last one before, the batcher first returns everything, as `flush` does. Then it
        treats the call as a new batcher would: its messages are a batch (``start``), and rates are learned again. Only
        receive times decide, so a replay returns the same batches.
    clocks
        ``"align"`` adds to each event time the estimated offset of its stream's clock from the receive clock, before
        windows are chosen; see `clock_alignment`. Messages keep the times that were sent, and ``batch.offsets`` holds
        the offsets. Every message needs a receive time. Only the first 1,000 streams are aligned. Default
        ``"as_sent"``: event times are used as they are.
    max_disorder
        How far a message may be behind an earlier one of its stream and still be in its own window: at most three batch
        lengths. Every batch closes so much later. Default 0: streams are in order. It does not change with the length.
    boundaries
        Streams whose messages begin runs, for example the start and the end of a measurement. They never gate.

    Raises
    ------
    InvalidArgumentError
        For an invalid option.

    Warns
    -----
    LongCallWarning
        For a call that brings a stream's messages from more than 1000 lengths: messages of another era are not cut into
        batches.
    OutsideWindowWarning
        For a stream most of whose messages lie outside the windows of their batches, in 10 batches in a row; and for a
        stalled batch most of whose messages came after a silence of more than 1000 lengths; and for more than 1,000
        streams if clocks are aligned.

    Notes
    -----
    The batcher also forgets the starts of windows. So if a source sends event times again that were batched before a
    silence longer than ``forget_after``, a batch may have the identity of an earlier one.

    Source: *RateAwareMessageBatcher* of ESS livedata.
    """

    __slots__ = (
        "_adaptive",
        "_alignment",
        "_assembly",
        "_clocks",
        "_gate",
        "_outside",
        "_rule",
        "_silence",
        "_sources",
        "_stall",
    )

    def __init__(
        self,
        batch_length: Duration | Adaptive | AdaptiveBatchLength = "1s",
        timeout: Duration | float | None = None,
        gated: Gated = True,
        clock: Callable[[], float] = monotonic,
        forget_after: Duration | None = None,
        clocks: Clocks = "as_sent",
        max_disorder: Duration = 0,
        boundaries: Iterable[str] | None = None,
    ) -> None:
        self._adaptive = adaptive = AdaptiveBatchLength.chosen(batch_length)
        length = cast("Duration", batch_length) if adaptive is None else adaptive.batch_length
        self._rule = RateRule.checked(length, timeout, max_disorder)
        if adaptive is not None:
            self._rule.with_length(adaptive.bounds[1])  # checks the longest length, too
        self._gate = Gate(gated, stream_names(boundaries or (), "boundaries"))
        self._stall = StallWatch(clock)
        self._silence = Silence.checked(forget_after)
        self._alignment = ClockAlignment() if checked_clocks(clocks) else None
        self._outside = OutsideWatch()
        self._clocks = StreamClocks()
        self._sources: set[str] = set()  # a single source, once there was a message
        self._assembly: Assembly | None = None

    def add(self, messages: Iterable[Message]) -> list[Batch]:
        """Take in messages that arrived together, in order of arrival, and return the batches that close.

        Parameters
        ----------
        messages
            Messages of this batcher's source, which is that of the first message. An empty list only checks the clock.

        Returns
        -------
        list of Batch
            In order of closing; often empty.

        Raises
        ------
        InvalidArgumentError
            For a message of another source, for messages that are not a list, and for a message without receive time if
            ``forget_after`` or ``clocks`` need it. The batcher is then unchanged, as if ``gated`` or ``clock`` raise.
        """
        return self.take(self.check(messages))

    def check(self, messages: Iterable[Message]) -> list[Message]:
        """Raise the errors and warnings that `add` would, and change nothing.

        Returns
        -------
        list of Message
            The same messages, for `take`.
        """
        given = messages
        try:
            messages = given if isinstance(given, list) else list(given)
            sources = {message.source for message in messages}
            times = list(map(_event_time, messages))
        except (AttributeError, TypeError):
            raise InvalidArgumentError(
                f"messages must be a list of messages that arrived together, got {quoted(given)}"
            ) from None
        if sources != self._sources:
            self._refuse_others(sources)
        if self._silence.after is not None:
            check_receive_times(messages, "forget_after is set")
        elif self._alignment is not None:
            check_receive_times(messages, "clocks are aligned")
        if self._gate.asks:
            self._gate.ask(map(_stream, messages))
        if len(times) > 1 and max(times) - min(times) > ERA * self._in_force.batch_length:
            warn_of_long_call(messages, self._in_force.batch_length)
        self._outside.warn()
        return messages

    def take(self, messages: list[Message]) -> list[Batch]:
        """Add messages that `check` has returned."""
        if self._silence.after is not None and self._silence.ends_with(messages):
            return self._forget() + self.take(messages)
        if self._alignment is None:
            return self._take(messages)
        aligned = self._alignment.align(messages)
        if self._alignment.has_left_out:
            self._outside.tell(messages[0].source, TOO_MANY_CLOCKS)
        return self._take(aligned)

    def _take(self, messages: list[Message]) -> list[Batch]:
        stall, assembly = self._stall, self._assembly
        stall.look()
        if assembly is None:
            return self._begin(messages) if messages else []
        if not assembly.active and not assembly.piled:
            self._begin_window(assembly, messages)
        window, high_water, held = assembly.window, assembly.high_water, len(assembly.active)
        length = assembly.rule.batch_length
        assembly.take(messages)
        if assembly.window is not window:
            # A boundary has cut the window, and some of its messages wait now.
            stall.unmoved, held = 0, min(held, len(assembly.active))
        rivalled = assembly.is_rivalled
        if rivalled and messages and self._is_stuck(messages, high_water, window, length, len(assembly.active) - held):
            return give_way(assembly, stall)
        batches: list[Batch] = []
        if not assembly.waiting or assembly.piled or assembly.high_water >= window.timeout_at:
            assembly.close_complete(batches)
        if batches:
            stall.rearm(assembly.high_water if rivalled else None)
            return batches
        stuck = False
        if assembly.high_water > high_water:
            stall.moved(assembly.high_water if rivalled else None)
        elif messages and not rivalled:
            stuck = self._is_stuck(messages, high_water, window, length, len(assembly.active) - held)
        if stuck or stall.is_overdue(length):
            return recover(assembly, stall)
        return []

    def advance(self, now: Time) -> list[Batch]:
        """Promise that no message received at or before ``now`` (ns) comes later, so that the source may be forgotten.

        Open messages are then returned at once instead of by the next call. Without ``forget_after`` nothing happens.
        """
        at, promised = self.forgotten_at, to_time(now, "now")
        return self._forget() if at is not None and at <= promised else []

    def flush(self) -> list[Batch]:
        """Close everything, window by window, as at the end of the data; empty windows are left out."""
        self._stall.look()
        batches: list[Batch] = []
        assembly = self._assembly
        while assembly is not None and (assembly.active or assembly.piled):
            if assembly.active:
                batches.append(assembly.close("boundary" if assembly.window.is_cut else "flush"))
            else:
                assembly.skip(max(1, assembly.windows_to_first()))
        self._stall.rearm()
        return batches

    def reset(self, source: str | None = None) -> list[Batch]:
        """Close everything, as `flush` does, and place the window again at the next call.

        Rates and the starts of windows stay known: no batch has the identity of an earlier one.

        Parameters
        ----------
        source
            The source of the window; any other than this batcher's is an error. Default: this batcher's.

        Raises
        ------
        InvalidArgumentError
            For another source.
        """
        if source is not None and not (isinstance(source, str) and source in self._sources):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may give anything
            raise InvalidArgumentError(f"source must be this batcher's source, got {quoted(source)}")
        batches = self.flush()
        if self._assembly is not None:
            self._assembly.lost = True
        return batches

    def stats(self) -> BatcherStats:
        """Return the high-water mark, the messages outside their windows, and the clocks of the streams."""
        source, mark, assembly = min(self._sources, default=None), self.high_water_mark, self._assembly
        ahead = 0
        if mark is not None and assembly is not None and assembly.active:
            ahead = max(0, mark - assembly.active[-1].event_time)
        return BatcherStats(source, mark, ahead, self.buffered, dict(self._outside.counts), self._clocks.estimates())

    def set_batch_length(self, batch_length: Duration) -> None:
        """Change the length from the next window on, if it differs; the timeout stays in proportion.

        Raises
        ------
        InvalidArgumentError
            For a length that is not above zero, beyond 30 days, or below a third of ``max_disorder``.
        """
        if self._assembly is None:
            self._rule = self._rule.with_length(batch_length)
        else:
            used, rule = self._assembly.rule, self._assembly.rule.with_length(batch_length)
            self._assembly.pending = None if rule.batch_length == used.batch_length else rule

    def processed(self, took: Duration, batch: Batch | None = None) -> int:
        """Report how long a batch took to process; if the length is adaptive, it follows from the next window on.

        Parameters
        ----------
        took
            From taking the batch to being done.
        batch
            The batch. Default: one with a window of the length in use. A first batch (``start``), and one that a
            boundary cut short, have no such window, and change nothing.

        Returns
        -------
        int
            The length to be used from the next window on, ns.

        Raises
        ------
        InvalidArgumentError
            If the length is not adaptive.
        """
        adaptive = self._required_adaptive()
        if batch is not None:
            check_batch(batch)
        if batch is None or batch.reason not in ("start", "boundary"):
            adaptive.processed(took, None if batch is None else max(batch.end - batch.start, 1))
        return self._follow(adaptive)

    def nothing_came(self) -> int:
        """Report that a window's length has passed without a batch; see `processed`."""
        adaptive = self._required_adaptive()
        adaptive.nothing_came()
        return self._follow(adaptive)

    @property
    def batch_length(self) -> int:
        """Length of the window in progress, ns."""
        return self._in_force.batch_length

    @property
    def timeout(self) -> int | float:
        """Distance of the high-water mark from the window's start at which the window closes, ns, or infinity."""
        return self._in_force.timeout

    @property
    def window(self) -> tuple[int, int] | None:
        """Start and end of the window in progress, ns; None before the first message."""
        return None if self._assembly is None else (self._assembly.window.start, self._assembly.window.end)

    @property
    def high_water_mark(self) -> int | None:
        """The greatest event time seen, up to the plausible limit, ns; None before the first message."""
        return None if self._assembly is None else self._assembly.high_water

    @property
    def buffered(self) -> int:
        """How many messages are in the window in progress or wait for later windows."""
        return 0 if self._assembly is None else len(self._assembly.active) + self._assembly.piled

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds that pass."""
        return self._stall.clock

    @property
    def stalls_at(self) -> float | None:
        """When the window stalls by ``clock`` if nothing closes it, s; None if nothing is buffered."""
        return self._stall.overdue_at(self.batch_length) if self.buffered else None

    @property
    def silent_for(self) -> float:
        """Seconds by ``clock`` since the last batch closed, or since the first message after it."""
        return self._stall.clock() - self._stall.since

    @property
    def forgotten_at(self) -> int | None:
        """The earliest ``now`` for which `advance` forgets the source, ns; None if it never does."""
        return self._silence.forgotten_at

    @property
    def tracked_streams(self) -> set[str]:
        """Streams that gate, or may come to gate once their rate is known."""
        tracks = {} if self._assembly is None else self._assembly.tracks
        return {stream for stream, track in tracks.items() if track.role == GATES}

    @property
    def gating_streams(self) -> set[str]:
        """Streams that the window waits for."""
        tracks = {} if self._assembly is None else self._assembly.tracks
        return {stream for stream, track in tracks.items() if track.grid is not None}

    def state(self) -> bytes:
        """Encode the whole state of the batcher, including its options, for `restore`."""
        gated = None if callable(self._gate.gated) else self._gate.gated
        roles = gated, sorted(self._gate.boundaries)
        return to_bytes(self._rule, roles, self._stall, self._silence, self._assembly, self._adaptive, self._alignment)

    @classmethod
    def restore(
        cls, state: bytes, *, gated: Callable[[str], bool] | None = None, clock: Callable[[], float] = monotonic
    ) -> RateAwareBatcher:
        """Restore a batcher from ``state``.

        Parameters
        ----------
        state
            The bytes from `state`.
        gated
            The function that chose the gating streams, if there was one: functions are not stored.
        clock
            As for a new batcher; no time passes between `state` and `restore`.

        Raises
        ------
        SchemaError
            If ``state`` is something else or of another version.
        InvalidArgumentError
            If ``gated`` is missing, or given although the state names the streams.
        """
        known = from_bytes(state)
        if (known.gated is None) != callable(gated):
            raise InvalidArgumentError(
                f"gated must be {'a function' if known.gated is None else 'omitted or name the same streams'}, as in"
                f" the saved batcher, got {quoted(gated)}"
            )
        chosen = known.gated if known.gated is not None else gated or False
        batcher = cls(gated=chosen, clock=clock, boundaries=known.boundaries)
        batcher._rule = known.rule
        batcher._adaptive = known.adaptive
        batcher._silence = known.silence
        batcher._alignment = known.alignment
        batcher._stall.since -= known.waited
        batcher._stall.unmoved, batcher._stall.elsewhere = known.unmoved, known.elsewhere
        batcher._assembly = known.assembly(batcher._gate)
        if batcher._assembly is not None:
            batcher._sources = {batcher._assembly.source}
            batcher._assembly.observers = batcher._observers
        return batcher

    @property
    def _observers(self) -> tuple[Callable[[Batch], None], ...]:
        return self._outside.note, self._clocks.note

    @property
    def _in_force(self) -> RateRule:
        return self._rule if self._assembly is None else self._assembly.rule

    def _required_adaptive(self) -> AdaptiveBatchLength:
        if self._adaptive is None:
            raise InvalidArgumentError(f"batch_length must be 'adaptive' for processed(), got {self.batch_length} ns")
        return self._adaptive

    def _follow(self, adaptive: AdaptiveBatchLength) -> int:
        length, assembly = adaptive.batch_length, self._assembly
        if (self._rule if assembly is None else assembly.pending or assembly.rule).batch_length != length:
            self.set_batch_length(length)
        return length

    def _refuse_others(self, sources: set[str]) -> None:
        known = self._sources or set(sorted(sources)[:1])
        if others := sources - known:
            raise InvalidArgumentError(
                f"source must be {quoted(min(known))}, as in earlier messages, got {quoted(min(others))}. Use"
                " BySource for many sources"
            )

    def _forget(self) -> list[Batch]:
        """Close everything, and start again like a new batcher, but keep a changed length."""
        batches = self.flush()
        if self._assembly is not None:
            # The length only: the timeout of a window may have followed the delays before the silence.
            self._rule = self._rule.with_length((self._assembly.pending or self._assembly.rule).batch_length)
        self._assembly = None
        self._silence.clock = None
        self._alignment = None if self._alignment is None else ClockAlignment()
        return batches

    def _begin(self, messages: list[Message]) -> list[Batch]:
        """Start: the first call's messages are the first batch; the first window begins at the newest plausible one."""
        source, length = messages[0].source, self._rule.batch_length
        oldest, newest = plausible_range(map(_event_time, messages), length)
        start = placed(newest, length)
        # Even if all have the same time, the batch begins before the first window: its start is its identity.
        begin = min(oldest, start - 1)
        self._sources = {source}
        self._assembly = Assembly(source, self._rule, start, self._gate)
        self._assembly.observers = self._observers
        self._assembly.starts.remember(begin)
        self._assembly.doubt()
        self._assembly.learn(messages)
        self._stall.rearm()
        return [self._assembly.batch(messages, begin, start, "start")]

    def _begin_window(self, assembly: Assembly, messages: list[Message]) -> None:
        """Begin to count for a stall if no message is buffered, and place the window if it is lost."""
        self._stall.rearm(assembly.high_water if assembly.doubtful else None)
        if assembly.lost and messages:
            assembly.find(plausible_range(map(_event_time, messages), assembly.rule.batch_length)[1])

    def _is_stuck(self, messages: list[Message], mark: int, window: RateWindow, length: int, joined: int) -> bool:
        astray = [m.event_time for m in messages if not window.near_from <= m.event_time <= window.era_until]
        return self._stall.is_stuck(astray, joined, mark, length)
