"""The dispatch queue of a worker, which holds claimed messages until a slot is free. It consists of lanes.

A lane holds one message, or the messages of one group, which are handled one after another. A worker claims as many
messages as its free slots can start. If its handlers are fast, it also claims the messages that they can handle in the
next few milliseconds. So claims are few, and claimed messages wait only briefly.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from waterclock._support import moments

if TYPE_CHECKING:
    from waterclock.tables.consumers.delivery import Delivery
    from waterclock.tables.consumers.subscription import TableSubscription
    from waterclock.tables.message_table import MessageTable
    from waterclock.work.ground.handlers import Handlers
    from waterclock.work.ground.outcomes import Outcome

_MOMENT = 50_000_000  # ns of work that is claimed ahead
_MOST_AHEAD = 500  # messages
_MOST_UNRECORDED = 2000  # handled messages whose outcome is not written yet
_LONG = 1_000_000_000  # ns
_LONGEST_CLAIM = 1_000_000_000  # ns; later, other tables may use the room of a claim, whose table may be locked
_NEWEST = 0.1
"""Weight of the newest handler in the mean, except of the first ones, which weigh the same: if the mean approached them
slowly, each claim had another limit for the server to plan.
"""

LONGEST_WAIT = 100_000_000
"""After this long, messages that wait for a slot are given back if no slot has become free lately, ns."""

_LONGEST_WAIT_IN_FLOW = 1_000_000_000  # after this long, they are given back even if slots become free


def _few_digits(room: int) -> int:
    """Round down to four binary digits: a claim's limit is in its text, and the server plans each text once.

    Drivers keep 100 prepared statements; with every limit up to 500, few claims would find theirs.
    """
    spare = max(room.bit_length() - 4, 0)
    return room >> spare << spare


class MessageOrigin(Protocol):
    """The fetcher of a message's table, as files below it see it: the message and its outcome go back through it."""

    table: MessageTable
    handlers: Handlers
    subscription: TableSubscription
    put_outcome: Callable[[Handling, Outcome, Sequence[Handling]], None]

    @property
    def patience(self) -> float: ...
    def check(self, one: Handling) -> None: ...
    def give_back(self, handlings: Sequence[Handling]) -> None: ...
    def release(self, handlings: Sequence[Handling]) -> None: ...


class Handling:
    """A message in a worker."""

    __slots__ = (
        "__weakref__",
        "_decided",
        "asked",
        "began_at",
        "cancel",
        "claimed_at",
        "delivery",
        "ended",
        "fetcher",
        "lane",
        "ready_at",
        "waits_for_loop",
    )

    def __init__(self, delivery: Delivery, fetcher: MessageOrigin, claimed_at: int) -> None:
        self.delivery = delivery  # the message
        self.fetcher = fetcher  # the fetcher of its table
        self.claimed_at = claimed_at  # when it was claimed, monotonic ns
        self.ready_at = 0  # since when it could begin, monotonic ns
        self.began_at = 0  # when its handler was called, monotonic ns; 0 before
        # Whether it has a slot, but the event loop has not started its handler. Its time limit has then not begun.
        self.waits_for_loop = False
        self.asked = False  # whether the handler was asked to stop
        self.ended = False  # whether the handler has ended
        self.cancel: Callable[[], object] | None = None  # cancels the handler, if possible
        self.lane: MessageLane | None = None  # the lane in which it waits, ahead of the others of its group
        self._decided = threading.Lock()

    def decide(self) -> bool:
        """Return whether the caller is the first to decide the message's outcome: only one may."""
        return self._decided.acquire(blocking=False)

    @property
    def decided(self) -> bool:
        """Return whether its outcome is decided."""
        return self._decided.locked()


class MessageLane:
    """Messages that are handled one after another."""

    __slots__ = ("key", "waiting", "waits_for")

    def __init__(self, key: tuple[int, str | None] | None) -> None:
        self.key = key
        self.waiting: deque[Handling] = deque()
        # The message whose ack must be stored before the next one begins. With ``max_attempts``, messages behind an
        # unacked one of their group count as not begun.
        self.waits_for: Handling | None = None


class _ReturningGroup:
    """A group whose messages are going back: messages of claims that began before that must not be handled."""

    __slots__ = ("by", "since")

    def __init__(self) -> None:
        self.by: set[Handling] = set()  # messages that are going back and are not yet written
        self.since = 0  # when the last one was written, monotonic ns

    def keeps(self, begun: int) -> bool:
        """Return whether messages of a claim that began then go back, too."""
        return bool(self.by) or self.since >= begun


def _place(one: Handling) -> tuple[int, str | None]:
    return id(one.fetcher), one.delivery.leased.group_id


class DispatchQueue:
    """All lanes of a worker, and its slots. Thread-safe. ``slots`` is how many messages it handles at a time."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._ready: dict[int, deque[MessageLane]] = {}  # by table, in the order of their turns
        self._ready_count = 0
        self._groups: dict[tuple[int, str | None], MessageLane] = {}
        self._held: dict[tuple[int, str | None], _ReturningGroup] = {}
        self._running: set[Handling] = set()
        self._claims: dict[int, tuple[int, int]] = {}  # by table: the room of its claim, and when that began
        self._unrecorded = 0
        self._waiting_for_acks = 0  # lanes
        self._turn: deque[object] = deque()
        self._closed = False
        self._paused = False
        self._mean = _LONG
        self._ended = 0  # handlers
        self._began_at = 0
        self.when_ready: Callable[[], object] | None = None
        self.when_waiting: Callable[[], object] | None = None

    def change_slots(self, by: int) -> None:
        """Add or remove slots."""
        with self._lock:
            self._slots += by
            self._has_room.notify_all()

    def pause(self) -> None:
        """Accept no messages until `go_on`, because a resource that they need is not available."""
        self._paused = True

    def go_on(self) -> None:
        """Accept messages again."""
        if self._paused:
            with self._lock:
                self._paused = False
                self._has_room.notify_all()

    @property
    def running(self) -> list[Handling]:
        """Return the messages that are being handled."""
        with self._lock:
            return list(self._running)

    @property
    def waits(self) -> bool:
        """Return whether messages wait for a slot."""
        return bool(self._ready)

    @property
    def is_full(self) -> bool:
        with self._lock:
            return self._room() <= 0

    def reserve(self, fetcher: MessageOrigin, most: int, *, ahead: bool = True) -> int:
        """Wait until there is room for messages; return for how many, at most ``most``; 0: the worker stops.

        Callers get room in the order of their calls, so that one table does not starve others.

        ``ahead`` says whether messages may be claimed before a slot is free for them.
        """
        me = object()
        with self._lock:
            self._turn.append(me)
            moments.wait_for(self._has_room, lambda: self._closed or (self._turn[0] is me and self._has_enough(ahead)))
            self._turn.remove(me)
            self._has_room.notify_all()
            if self._closed:
                return 0
            room = _few_digits(min(most, self._room(ahead=ahead)))
            self._claims[id(fetcher)] = room, moments.monotonic_ns()
            return room

    def release_slow_claims(self) -> None:
        """Release the room of claims that take long, so that they do not block other tables."""
        before = moments.monotonic_ns() - _LONGEST_CLAIM
        with self._lock:
            slow = [fetcher for fetcher, (_, begun) in self._claims.items() if begun <= before]
            for fetcher in slow:
                del self._claims[fetcher]
            if slow:
                self._has_room.notify_all()

    def _room(self, *, ahead: bool = True) -> int:
        if self._paused:
            return 0
        taken = len(self._running) + self._ready_count + self._reserved()
        # The next message of these lanes starts as soon as the ack before it is stored, and then needs a slot.
        most = self._slots + (self._ahead() if ahead else -self._waiting_for_acks)
        return min(most - taken, _MOST_UNRECORDED - self._unrecorded)

    def _reserved(self) -> int:
        return sum(room for room, _ in self._claims.values())

    def _ahead(self) -> int:
        return min(_MOST_AHEAD, self._slots * _MOMENT // max(self._mean, 1))

    def _has_enough(self, ahead: bool) -> bool:
        # Claim for a free slot; without one, first handle half of the messages that were claimed ahead.
        room = self._room(ahead=ahead)
        is_slot_free = len(self._running) + self._reserved() < self._slots
        return room > 0 and (not ahead or is_slot_free or room * 2 > self._ahead())

    def add(self, fetcher: MessageOrigin, handlings: Sequence[Handling], begun: int) -> list[Handling]:
        """Add claimed messages, and release the room reserved for them.

        Returns messages to give back: the worker stops, or an earlier message of their group goes back. ``begun`` is
        when the claim began, monotonic ns.
        """
        now = moments.monotonic_ns()
        with self._lock:
            reserved, _ = self._claims.pop(id(fetcher), (0, 0))
            if self._closed:
                return list(handlings)
            late: list[Handling] = []
            for one in handlings:
                held = self._held.get(_place(one)) if self._held else None
                if held is not None and held.keeps(begun):
                    late.append(one)
                else:
                    self._put(one, now)
            if self._held:  # claims that begin from now on see that these groups went back
                self._held = {
                    place: held for place, held in self._held.items() if place[0] != id(fetcher) or held.keeps(begun)
                }
            waiting = bool(self._ready)
            self._has_work.notify(self._ready_count)
            if len(handlings) < reserved:
                self._has_room.notify_all()
        if handlings and self.when_ready is not None:
            self.when_ready()
        if waiting and self.when_waiting is not None:
            self.when_waiting()
        return late

    def _put(self, one: Handling, now: int) -> None:
        one.ready_at = now
        if one.delivery.leased.position is None:
            lane = MessageLane(None)
        else:
            key = _place(one)
            found = self._groups.get(key)
            if found is not None:  # it is ready, or one of its messages is being handled
                one.lane = found
                found.waiting.append(one)
                return
            lane = self._groups[key] = MessageLane(key)
        one.lane = lane
        lane.waiting.append(one)
        self._append(lane)

    def _append(self, lane: MessageLane) -> None:
        self._ready_count += 1
        fetcher = id(lane.waiting[0].fetcher)
        lanes = self._ready.get(fetcher)
        if lanes is None:
            self._ready[fetcher] = deque((lane,))
        else:
            lanes.append(lane)

    def next(self) -> Handling | None:
        """Wait for a message to handle; None: the worker stops."""
        with self._lock:
            moments.wait_for(self._has_work, lambda: self._ready or self._closed)
            return self._begin()

    def next_now(self) -> Handling | None:
        """Return a message to handle, if one waits and a slot is free."""
        with self._lock:
            return self._begin() if self._ready and len(self._running) < self._slots else None

    def _begin(self) -> Handling | None:
        if not self._ready:
            return None
        fetcher, lanes = next(iter(self._ready.items()))
        self._ready_count -= 1
        one = lanes.popleft().waiting.popleft()
        if not lanes:
            del self._ready[fetcher]
        elif len(self._ready) > 1:  # the other tables come first
            self._ready[fetcher] = self._ready.pop(fetcher)
        self._running.add(one)
        one.began_at = self._began_at = moments.monotonic_ns()
        if not self._ready or self._ready_count * 2 < self._ahead():
            self._has_room.notify_all()
        return one

    def end(self, one: Handling, *, goes_on: bool) -> list[Handling]:
        """Free a slot; return messages of the same lane that must go back, if the lane does not continue."""
        now = moments.monotonic_ns()
        dropped: list[Handling] = []
        ready = False
        with self._lock:
            self._running.discard(one)
            self._unrecorded += 1
            self._ended += 1
            self._mean += int((now - one.began_at - self._mean) * max(_NEWEST, 1 / self._ended))
            lane = one.lane
            if lane is not None and lane.key is not None:
                if not goes_on:
                    dropped.extend(lane.waiting)
                    lane.waiting.clear()
                    self._hold(one)
                if lane.waiting and one.delivery.context.options.max_attempts is not None:
                    lane.waits_for = one
                    self._waiting_for_acks += 1
                elif lane.waiting:
                    self._make_ready(lane, now)
                    ready = True
                else:
                    del self._groups[lane.key]
            self._has_room.notify_all()
        if ready and self.when_ready is not None:
            self.when_ready()
        return dropped

    def _make_ready(self, lane: MessageLane, now: int) -> None:
        self._append(lane)
        lane.waiting[0].ready_at = now
        self._has_work.notify()

    def recorded(self, handlings: Sequence[Handling]) -> None:
        """Note that the outcomes of messages are written."""
        now = moments.monotonic_ns()
        with self._lock:
            self._unrecorded -= len(handlings)
            self._go_on_after(handlings)
            waited = [one.lane for one in handlings if one.lane is not None and one.lane.waits_for is one]
            for lane in waited:
                lane.waits_for = None
                self._waiting_for_acks -= 1
                if lane.waiting:
                    self._make_ready(lane, now)
                elif lane.key is not None:
                    del self._groups[lane.key]
            self._has_room.notify_all()
        if waited and self.when_ready is not None:
            self.when_ready()

    def given_back(self, handlings: Sequence[Handling]) -> None:
        """Note that the database has the returned messages."""
        with self._lock:
            self._go_on_after(handlings)

    def not_given_back(self, handlings: Sequence[Handling]) -> None:
        """Handle no later messages of groups whose messages could not be given back, until they are given back."""
        with self._lock:
            for one in handlings:
                if one.delivery.leased.position is not None:
                    self._hold(one)

    def _hold(self, one: Handling) -> None:
        self._held.setdefault(_place(one), _ReturningGroup()).by.add(one)

    def _go_on_after(self, handlings: Sequence[Handling]) -> None:
        """Allow later claims to bring the next messages of groups that went back with one of these."""
        now = moments.monotonic_ns()
        for one in handlings if self._held else ():
            held = self._held.get(_place(one))
            if held is not None and one in held.by:
                held.by.discard(one)
                held.since = now

    def take_back(self) -> list[Handling]:
        """Take back messages that have waited too long for a slot: another worker may have a free one.

        Later messages of their groups are not handled before `given_back`.
        """
        now = moments.monotonic_ns()
        with self._lock:
            # If messages start all the time, waiting ones get their turn soon.
            before = now - (LONGEST_WAIT if now - self._began_at > _MOMENT else _LONGEST_WAIT_IN_FLOW)
            ready = list(chain.from_iterable(self._ready.values()))
            late = [lane for lane in ready if lane.waiting[0].ready_at <= before]
            if not late:
                return []
            self._ready.clear()
            self._ready_count = 0
            for lane in ready:
                if lane.waiting[0].ready_at > before:
                    self._append(lane)
                elif lane.key is not None:
                    del self._groups[lane.key]
                    self._hold(lane.waiting[0])
            self._mean = _LONG  # handlers have become slower
            return [one for lane in late for one in lane.waiting]

    def close(self) -> list[Handling]:
        """Start nothing more; return the messages that were not started."""
        with self._lock:
            self._closed = True
            late = [one for lanes in self._ready.values() for lane in lanes for one in lane.waiting]
            self._ready.clear()
            self._ready_count = 0
            # Messages that wait behind one being handled go back, too.
            for lane in self._groups.values():
                late += [one for one in lane.waiting if one not in late]
                lane.waiting.clear()
            self._has_work.notify_all()
            self._has_room.notify_all()
        return late

    def facts(self) -> dict[str, Any]:
        """Return the numbers of slots, of used slots, and of waiting messages."""
        with self._lock:
            return {"slots": self._slots, "running": len(self._running), "waiting": self._ready_count}
