"""The scheduler: many threads, of which exactly one runs, and a clock that moves only when nothing else can.

An actor is a thread: a caller of the product, or a thread that the product starts. Each statement and commit, and each
step of a handler, passes a gate where the actor waits until the scheduler lets it go on. Every wait of the product
ends here, too, because the scheduler stands in for its moments. So a run is a list of choices, and the same choices
give the same run.

An actor whose statement waits for a lock of the database is blocked: the scheduler asks the database, and lets another
one go on.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from waterclock._support.moments import Moments

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
"""When every run begins, ns."""

TICK = 50_000
"""How long a step takes by the clock of the run, ns."""

_LATER = 0.005  # s after which a server goes on with what its client has given up
_LOOK_EVERY = 0.003  # s of the machine's: a statement that takes longer may be blocked
_DEADLOCK_WITHIN = 0.03  # s of the machine's in which a database finds that statements wait for each other
_HUNG_AFTER = 20.0  # s of the machine's
_WITHIN = 60.0  # s of the machine's for what no actor takes part in


class Killed(BaseException):
    """Ends a thread of a process that died. It goes on at each gate, as the dead unwind nothing."""


class Actor:
    """A thread that goes on when it is chosen.

    Attributes
    ----------
    name, process
        Its own, and that of the process to which it belongs: a crash ends all of a process.
    state
        ``"ready"`` at a gate, ``"asleep"`` until something or for some time, ``"running"`` or ``"over"``.
    is_blocked
        Whether its statement was seen to wait for a lock. Only the scheduler's thread changes it.
    label
        What it does next.
    connection
        Number of its statement's; 0: none.
    """

    def __init__(self, name: str, process: str, work: Callable[[], object]) -> None:
        self.name, self.process = name, process
        self.work = work
        self.state = "ready"
        self.label = "begin"
        self.until: int | None = None
        self.is_ready: Callable[[], object] | None = None
        self.connection = 0
        self.frozen = self.dead = self.loses_answer = self.leaves_commit = self.is_blocked = False
        self.stalled_until = 0
        self.go, self.arrived = _shut(), _shut()
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None


def _shut() -> threading.Lock:
    """Make a barrier that lets one pass each time it is released."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Choosing(Protocol):
    """A strategy."""

    def harm(self, scheduler: Scheduler) -> None:
        """Do harm before a step, or none."""
        ...

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        """Say who goes on."""
        ...


class Waits(Protocol):
    """What a database says of who waits for whom.

    Attributes
    ----------
    has_server
        Whether an answer can get lost on the way from it.
    """

    has_server: bool

    def number(self, connection: Any) -> int:
        """Give the number by which the database knows a connection; 0 for none."""
        ...

    def is_blocked(self, number: int) -> bool:
        """Whether the statement of this connection waits for a lock."""
        ...


class Scheduler(Moments):
    """Lets actors go on one by one, and gives the product its moments.

    Attributes
    ----------
    now
        The clock of the run, ns since the epoch.
    history
        Who did what, step by step.
    decisions
        What was chosen: an actor, with the label at which it then was; or harm, with the process that it was done to.
    seen
        How often what a run should meet sometimes was met.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.has_server = waits.has_server
        self._here = threading.local()
        self.now = START
        self.actors: list[Actor] = []
        self.history: list[tuple[str, str]] = []
        self.decisions: list[tuple[str, str, bool]] = []
        self.seen: Counter[str] = Counter()
        self.last: Actor | None = None
        self.writer: Any = None  # SQLite's connection that has the write lock
        self.left: list[Any] = []  # connections whose clients have given them up, and whose server goes on

    # What actors do

    def actor(self) -> Actor | None:
        """Give the actor whose thread this is."""
        return getattr(self._here, "actor", None)

    @contextmanager
    def apart(self) -> Generator[None]:
        """Let this thread look at something for the run's checks, which is no step."""
        actor, self._here.actor = self.actor(), None
        try:
            yield
        finally:
            self._here.actor = actor

    def add(self, name: str, process: str, work: Callable[[], object]) -> Actor:
        """Add an actor, which waits at its first gate."""
        actor = Actor(name, process, work)
        actor.thread = threading.Thread(target=self._live, args=(actor,), name=name, daemon=True)
        self._begin(actor)
        return actor

    def _begin(self, actor: Actor) -> None:
        self.actors.append(actor)
        assert actor.thread is not None
        actor.thread.start()
        actor.arrived.acquire()

    def _live(self, actor: Actor) -> None:
        self._here.actor = actor
        try:
            self._wait_here(actor, "ready", "begin")
            actor.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # the run's checks look at it
            actor.error = error
        finally:
            actor.state = "over"
            actor.arrived.release()

    def _wait_here(
        self,
        actor: Actor,
        state: str,
        label: str,
        until: int | None = None,
        is_ready: Callable[[], object] | None = None,
    ) -> None:
        if actor.dead:
            raise Killed
        actor.label, actor.until, actor.is_ready, actor.state = label, until, is_ready, state
        actor.arrived.release()
        actor.go.acquire()
        if actor.dead:
            raise Killed

    def gate(self, label: str, connection: Any = None, is_ready: Callable[[], object] | None = None) -> None:
        """Wait until it is this thread's step; threads that are no actors pass."""
        actor = self.actor()
        if actor is not None:
            actor.connection = 0 if connection is None else self._waits.number(connection)
            self._wait_here(actor, "ready", label, None, is_ready)

    def passed(self) -> None:
        """Note that a statement has ended: one that was blocked waits for its next step here."""
        actor = self.actor()
        if actor is not None and actor.is_blocked:
            self._wait_here(actor, "ready", f"{actor.label}, unblocked")

    def _sleep(self, label: str, seconds: float | None, is_ready: Callable[[], object]) -> bool:
        actor = self.actor()
        if actor is None:
            return bool(is_ready())
        if not is_ready():
            until = None if seconds is None else self.now + max(0, int(seconds * SECOND))
            self._wait_here(actor, "asleep", label, until, is_ready)
        elif actor.dead:
            raise Killed
        return bool(is_ready())

    # The product's moments

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.actor() is None:
            self.now += int(seconds * SECOND)
        else:
            self._sleep("sleep", seconds, lambda: False)

    def wait(self, changed: threading.Condition | threading.Event, seconds: float | None) -> bool:
        if isinstance(changed, threading.Event):
            return self._sleep("wait", seconds, changed.is_set)
        notified = threading.Lock()
        notified.acquire()
        waiters: Any = changed._waiters  # type: ignore[attr-defined]
        waiters.append(notified)
        changed.release()
        try:
            return self._sleep("wait", seconds, lambda: not notified.locked())
        finally:
            changed.acquire()
            if notified in waiters:
                waiters.remove(notified)

    def acquire(self, lock: threading.Lock | threading.RLock, seconds: float) -> bool:
        give_up_at = None if seconds < 0 else self.now + int(seconds * SECOND)
        while not lock.acquire(blocking=False):
            left = None if give_up_at is None else (give_up_at - self.now) / SECOND
            if left is not None and left <= 0:
                return False
            self._sleep("lock", left, lambda: repr(lock).startswith("<unlocked"))  # an RLock cannot be asked
        return True

    @contextmanager
    def holding(self, lock: threading.Lock | threading.RLock) -> Generator[None]:
        self.acquire(lock, -1)
        try:
            yield
        finally:
            lock.release()

    def poll(self, descriptors: Collection[int], seconds: float) -> set[int]:
        # A socket's bytes come when the machine likes, so only pipes of this process count.
        pipes = [one for one in descriptors if stat.S_ISFIFO(os.fstat(one).st_mode)]
        self._sleep("poll", seconds, lambda: super(Scheduler, self).poll(pipes, 0))
        return super().poll(pipes, 0)

    def start(self, thread: threading.Thread) -> None:
        parent = self.actor()
        if parent is None:
            thread.start()
            return
        actor = Actor(f"{parent.process}'s {thread.name}", parent.process, thread.run)
        thread.run = lambda: self._live(actor)  # type: ignore[method-assign]
        actor.thread = thread
        self._begin(actor)

    def join(self, thread: threading.Thread, seconds: float | None) -> None:
        if any(one.thread is thread for one in self.actors):
            self._sleep("join", seconds, lambda: not thread.is_alive())
        thread.join(seconds if self.actor() is None else 1)

    # What the scheduler does

    def run(self, strategy: Choosing, most_steps: int, is_done: Callable[[], object] = lambda: False) -> bool:
        """Let actors go on until something is done; False where it was not done when no actor could go on."""
        for _ in range(most_steps):
            if is_done():
                return True
            strategy.harm(self)
            self._look_at_blocked()
            while not (able := self._able()):
                if not self._pass_time():
                    return bool(is_done())
            self._step(strategy.choose(self, able))
        return bool(is_done())

    def _able(self) -> list[Actor]:
        waiting = [one for one in self.actors if not one.frozen and one.stalled_until <= self.now]
        return [one for one in waiting if self._can_go(one)]

    def _can_go(self, one: Actor) -> bool:
        if one.is_blocked:
            return False
        if one.state == "ready":
            return one.is_ready is None or bool(one.is_ready())
        if one.state != "asleep":
            return False
        return (one.until is not None and one.until <= self.now) or bool(one.is_ready and one.is_ready())

    def _pass_time(self) -> bool:
        """Move the clock to where the next actor goes on; False where none will."""
        if self._hear_of_deadlock():
            return True
        here = [one for one in self.actors if not one.frozen]
        times = [one.until for one in here if one.state == "asleep" and not one.is_blocked and one.until is not None]
        times += [one.stalled_until for one in here if one.state != "over"]
        later = [at for at in times if at > self.now]
        if later:
            self.now = min(later)
            return True
        stuck = [one for one in here if one.state == "ready" and not one.is_blocked and one.stalled_until <= self.now]
        for one in stuck:  # it finds the database busy, as it would
            one.is_ready = None
        return bool(stuck)

    def _hear_of_deadlock(self) -> bool:
        blocked = [one for one in self.actors if one.is_blocked]
        give_up_at = time.monotonic() + _DEADLOCK_WITHIN
        while blocked and time.monotonic() < give_up_at:
            for one in blocked:
                if self._arrives(one, _LOOK_EVERY):
                    return True
        return False

    def _step(self, actor: Actor) -> None:
        self.now += TICK
        self.history.append((actor.name, actor.label))
        self.last = actor
        self._let(actor)
        self.decisions.append((actor.name, actor.label, False))

    def _let(self, actor: Actor) -> None:
        actor.state = "running"
        actor.go.release()
        self._await(actor)

    def _arrives(self, actor: Actor, seconds: float) -> bool:
        if actor.arrived.acquire(timeout=seconds):
            actor.is_blocked = False
            return True
        return False

    def _await(self, actor: Actor) -> None:
        give_up_at = time.monotonic() + _HUNG_AFTER
        while not self._arrives(actor, _LOOK_EVERY):
            if actor.connection and self._waits.is_blocked(actor.connection):
                actor.is_blocked = True
                self.seen["blocked"] += 1
                return
            if time.monotonic() > give_up_at:
                raise AssertionError(f"{actor.name} hangs at {actor.label}:\n{_stack(actor.thread)}")

    def _look_at_blocked(self) -> None:
        for one in self.actors:
            if one.is_blocked and not self._arrives(one, 0) and not self._waits.is_blocked(one.connection):
                self._await(one)

    # Harm

    def crash(self, process: str) -> None:
        """End a process: none of its threads passes another gate, and its transactions are rolled back."""
        self._note("crash", process)
        self._kill([one for one in self.actors if one.process == process])

    def freeze(self, process: str) -> None:
        """Stop a process with its transactions open, which on a database without a server would stop all."""
        if not self.has_server:
            return
        self._note("freeze", process)
        self.seen["frozen"] += 1
        for one in self.actors:
            one.frozen = one.frozen or one.process == process

    def thaw(self, *, frozen: bool = True) -> None:
        """Let those that are stalled go on, and those that are ``frozen``."""
        for one in self.actors:
            one.frozen, one.stalled_until = one.frozen and not frozen, 0

    def stall(self, process: str, duration: int) -> None:
        """Stop a process for so long, ns."""
        self._note(f"stall {duration}", process)
        if not self.has_server:  # in a transaction it keeps the others from writing, so that their leases run out
            self.seen["jump"] += 1
        for one in self.actors:
            if one.process == process:
                one.stalled_until = self.now + duration

    def lose_answer(self, process: str) -> None:
        """Let the answer to the process's next commit get lost."""
        self._note("lose", process)
        for one in self.actors:
            one.loses_answer = one.loses_answer or one.process == process

    def leave_commit(self, process: str) -> None:
        """Let the process give up its next commit, with which the server goes on later."""
        self._note("late", process)
        for one in self.actors:
            one.leaves_commit = one.leaves_commit or one.process == process

    def leaves_commit(self, connection: Any, commit: Callable[[], object]) -> bool:
        """Say whether this thread gives up its commit; then the server is an actor that goes on with it."""
        actor = self.actor()
        if actor is None or not actor.leaves_commit or not self.has_server:
            return False
        for one in self.actors:
            if one.process == actor.process:
                one.leaves_commit = False
        self.seen["answer lost"] += 1
        self.left.append(connection)
        connection.close = lambda: None  # its client would end what the server is at

        def go_on() -> None:
            self.sleep(_LATER)  # so that its client may try again before
            commit()
            self._end_left(connection)

        self.add(f"{actor.process}'s server {len(self.left)}", "the server", go_on)
        return True

    def _end_left(self, connection: Any) -> None:
        self.left.remove(connection)
        del connection.close
        connection.close()

    def jump(self, duration: int) -> None:
        """Move the clock, ns."""
        self._note(f"jump {duration}", "")
        self.seen["jump"] += 1
        self.now += duration

    def _note(self, harm: str, process: str) -> None:
        self.history.append((process, harm.upper()))
        self.decisions.append((harm, process, True))

    def _kill(self, actors: list[Actor]) -> None:
        for one in actors:
            one.dead = True
        for one in actors:
            if one.state in ("ready", "asleep") and not one.is_blocked:
                self._let(one)

    def end(self) -> None:
        """End all that still live."""
        self.thaw()
        while living := [one for one in self.actors if one.state != "over"]:
            self._kill(living)
            self._look_at_blocked()
        for connection in list(self.left):
            self._end_left(connection)


def within_time(work: Callable[[], object], what: str, seconds: float = _WITHIN) -> None:
    """Do something apart from a run, which a lock that an actor has left behind would hold up for ever.

    Raises
    ------
    AssertionError
        Where it takes longer; the text has the stacks of all threads that are left, its own first.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            errors.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        others = [one for one in threading.enumerate() if one not in (thread, threading.current_thread())]
        stacks = "\n".join(f"{one.name}:\n{_stack(one)}" for one in (thread, *others))
        raise AssertionError(f"{what} hangs for {seconds} s:\n{stacks}")
    if errors:
        raise errors[0]


def _stack(thread: threading.Thread | None) -> str:
    frame = None if thread is None else sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "(no stack)"
