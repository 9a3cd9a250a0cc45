"""Runs handlers in child processes, one message at a time in each. Dead processes are replaced."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from waterclock._support import moments
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.time import format_duration
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling, MessageOrigin
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.outcomes import Outcome
from waterclock.work.running.child import Broken, Cancel, Ended, HandledTable, Ready, serve
from waterclock.work.running.grouped_process import GroupedProcess

_SECOND = 1_000_000_000
_TRIES = 3  # tries to start a process before the worker ends
_FIRST_PAUSE = 0.2  # s
_LEAVES = 5.0  # s that a process has to exit its context managers
_LOOK_EVERY = 0.5  # s
_LOOK_FOR_END = 1.0  # s

_log = logging.getLogger(__name__)


class _Process:
    """One child, with the parent's end of its pipe."""

    def __init__(self, tables: Sequence[HandledTable], around: Callable[[Delivery], Any] | None) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self._process = GroupedProcess(
            target=serve, args=(theirs, os.getpid(), tables, around), name="waterclock-work", daemon=True
        )
        self._lock = threading.Lock()
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidArgumentError(
                f"handler must be defined in a module, so that processes can import it by name: {error}"
            ) from error
        except OSError:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        self.handled = 0

    def say(self, words: object) -> None:
        with self._lock:
            self.pipe.send(words)

    def answer_for(self, delivery: Delivery) -> Ended | None:
        """Receive an answer; None if it is not this process's answer for this message."""
        said = self.pipe.recv()
        leased = delivery.leased
        if (said.process, said.claim_id, said.seq) == (self._process.pid, leased.claim_id, leased.seq):
            return said
        _log.error("dropped an answer from a handler process, because it was for another message")
        return None

    def kill(self) -> None:
        self._process.kill()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        """Wait for it to exit its context managers, or kill it."""
        with suppress(OSError):
            self.say(None)
        self._process.join(_LEAVES)
        self.bury()

    def bury(self) -> str:
        """Kill it if it is alive; return how it ended."""
        self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        self.pipe.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class Processes:
    """Call handlers in child processes.

    Each has a thread that starts it: the system kills a child with the thread that started it.
    """

    def __init__(
        self,
        count: int,
        tables: Sequence[HandledTable],
        around: Callable[[Delivery], Any] | None,
        queue: DispatchQueue,
        counter: WorkCounts,
        finish: Callable[[Handling, Outcome], object],  # called with the outcome of a message
        failed: Callable[[BaseException], object],  # called with the reason if the worker cannot go on
        *,
        timeout: int | None,
        recycle_after: int | None,
        recycle_above: int | None,
    ) -> None:
        self._tables = tables
        self._around = around
        self._queue = queue
        self._counter = counter
        self._finish = finish
        self._failed = failed
        self._timeout = timeout
        self._recycle_after = recycle_after
        self._recycle_above = recycle_above
        self._fetchers: dict[MessageOrigin, int] = {}
        self._stopping = False
        self._changed = threading.Condition()
        self._kinds: Sequence[tuple[str, ...] | None] | None = None
        self._processes: set[_Process] = set()
        self._threads = [
            threading.Thread(target=self._run, name=f"waterclock-work-process-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self, is_stopping: Callable[[], bool]) -> Sequence[tuple[str, ...] | None] | None:
        """Start them; return the kinds that they handle for each table, None if the worker stops meanwhile."""
        for thread in self._threads:
            moments.start(thread)
        with self._changed:
            while self._kinds is None and not is_stopping():
                moments.wait(self._changed, _LOOK_EVERY)
            return self._kinds

    def begin(self, fetcher: MessageOrigin, number: int) -> None:
        """Handle messages from a fetcher, which is that of the table of this number."""
        self._fetchers[fetcher] = number

    def close(self, seconds: float) -> None:
        """End all of them: idle ones exit their context managers, the others are killed."""
        self._stopping = True
        until = moments.monotonic() + seconds / 2
        for thread in self._threads:
            moments.join(thread, max(0.0, until - moments.monotonic()))
        with self._changed:
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            moments.join(thread, seconds / 2 / len(self._threads))

    def _run(self) -> None:
        try:
            process = self._started()
            while process is not None and (one := self._queue.next()) is not None:
                process = self._handle(process, one)
                del one  # do not hold a reference while waiting
            if process is not None:
                self._forget(process)
                process.end()
        except BaseException as error:  # noqa: BLE001  # the worker says it, and ends
            self._failed(error)
            with self._changed:
                self._changed.notify_all()

    def _started(self) -> _Process | None:
        """Start a process, and wait until it is ready; None if the worker stops meanwhile."""
        pause = _FIRST_PAUSE
        for last in (*[False] * (_TRIES - 1), True):
            process: _Process | None = None
            try:
                process = _Process(self._tables, self._around)
                with self._changed:
                    self._processes.add(process)
                while not process.pipe.poll(_LOOK_EVERY):
                    if self._stopping:
                        self._forget(process)
                        process.bury()
                        return None
                said = process.pipe.recv()
            except (EOFError, OSError) as error:
                said = Broken(str(error) if process is None else f"it ended at once: {process.bury()}")
            if process is not None and isinstance(said, Ready):
                self._queue.change_slots(1)
                with self._changed:
                    self._kinds = said.kinds
                    self._changed.notify_all()
                return process
            if process is not None:
                self._forget(process)
                process.bury()
            if self._stopping:
                return None
            _log.warning("cannot start a handler process: %s", said.why)
            if last:
                raise UnavailableError(f"cannot start a handler process: {said.why}")
            moments.sleep(pause)
            pause *= 2
        return None

    def _forget(self, process: _Process) -> None:
        with self._changed:
            self._processes.discard(process)

    def _handle(self, process: _Process, one: Handling) -> _Process | None:
        """Handle a message in a process; return the process that exists afterwards."""
        ended: Ended | None = None
        why = ""
        late = False
        try:
            process.say((self._fetchers[one.fetcher], one.delivery.facts()))
            leased = one.delivery.leased
            words = Cancel(leased.claim_id, leased.seq)
            one.cancel = lambda: _say(process, words)
            one.delivery.when_cancelled(one.cancel)
            while ended is None and not late:
                late = not self._poll(process, one)
                if not late:
                    ended = process.answer_for(one.delivery)
        except (EOFError, OSError):
            pass
        one.cancel = None
        if ended is not None:
            one.delivery.ended_elsewhere(over=ended.over, undecided=ended.undecided)
            self._finish(one, ended.outcome)
            return self._kept(process, ended.memory)
        self._queue.change_slots(-1)
        self._forget(process)
        how = process.bury()
        if late:
            self._counter.add("timed_out")
            why = f"TimeoutError: the handler took longer than {format_duration(self._timeout or 0)}"
        else:
            why = f"the handler's process died: {how}"
        self._counter.add("replaced")
        self._finish(one, Outcome("back_off", why=why))
        return None if self._stopping else self._started()

    def _poll(self, process: _Process, one: Handling) -> bool:
        """Wait for its answer or its end; False: the time is over."""
        while True:
            left = _LOOK_FOR_END
            if self._timeout is not None:
                left = min(left, (one.began_at + self._timeout - moments.monotonic_ns()) / _SECOND)
            if process.pipe.poll(max(0.0, left)):
                return True
            # Its pipe stays open if a process that it started has inherited it.
            if not process.is_alive() and not process.pipe.poll(0):
                raise EOFError
            if left < _LOOK_FOR_END:
                return False

    def _kept(self, process: _Process, memory: int) -> _Process | None:
        process.handled += 1
        is_old = self._recycle_after is not None and process.handled >= self._recycle_after
        is_large = self._recycle_above is not None and memory > self._recycle_above
        if not (is_old or is_large):
            return process
        self._queue.change_slots(-1)
        self._forget(process)
        process.end()
        return None if self._stopping else self._started()


def _say(process: _Process, words: Cancel) -> None:
    with suppress(OSError):
        process.say(words)
