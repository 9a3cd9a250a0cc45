"""Runs a worker's asynchronous handlers in the application's event loop, or in a loop of the worker's own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling

_BLOCKED_FOR = 1_000_000_000  # ns after which messages that wait for the loop are left to other workers
_LEAVES = 1.0  # s for cancelled tasks
_LOOK_EVERY = 0.05  # s
_log = logging.getLogger(__name__)


class EventLoop:
    """A loop that runs until it is closed, with the context managers entered in it.

    ``queue`` is the queue from which it takes messages once started. ``loop`` is the application's own loop, which runs
    in another thread and goes on after this is closed; None: a new one.
    """

    def __init__(
        self,
        queue: DispatchQueue,
        handle: Callable[[Handling], Awaitable[object]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._queue = queue
        self._handle = handle
        self._is_ours = loop is None
        self._loop = asyncio.new_event_loop() if loop is None else loop
        self._ended = threading.Event()
        self._stack = AsyncExitStack()
        self._tasks: dict[asyncio.Task[object], Handling] = {}
        self._beginning = threading.Lock()
        self._pulls = False
        self._pull_is_due = False
        self._asked_at = 0
        self._answered = True
        self._said_blocked = False
        if self._is_ours:
            moments.start(threading.Thread(target=self._run, name="waterclock-work-loop", daemon=True))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()
        self._ended.set()

    def submit(self, handle: Callable[[], Coroutine[Any, Any, object]], handling: Handling) -> None:
        """Run one handler in the loop for a thread that waits for it."""
        handling.waits_for_loop = True
        raised: list[BaseException] = []  # a future with the error would form a cycle that keeps the error's references

        async def run() -> None:
            try:
                await self._run_one(handling, handle)
            except BaseException as error:  # noqa: BLE001  # it is raised in the thread
                raised.append(error)

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        handling.cancel = future.cancel
        future.result()
        if raised:
            raise raised.pop()

    def enter(self, manager: Any, is_stopping: Callable[[], bool]) -> Any:
        """Enter an asynchronous context manager until the loop is closed; return None if it must stop."""
        entering = asyncio.run_coroutine_threadsafe(self._stack.enter_async_context(manager), self._loop)
        while not is_stopping():
            with suppress(TimeoutError):
                return entering.result(_LOOK_EVERY)
            if entering.done():  # the error is the manager's own
                return entering.result()
        entering.cancel()
        return None

    def start(self) -> None:
        """Start taking messages from the queue."""
        self._pulls = True
        self._queue.when_ready = self._call_pull
        self._call_pull()

    def _call_pull(self) -> None:
        if not self._pull_is_due:
            self._pull_is_due = True
            self._loop.call_soon_threadsafe(self._pull)

    def _pull(self) -> None:
        self._pull_is_due = False
        while (handling := self._queue.next_now()) is not None:
            handling.waits_for_loop = True
            task = self._loop.create_task(self._run_one(handling, partial(self._handle, handling)))
            self._tasks[task] = handling
            handling.cancel = lambda task=task: self._loop.call_soon_threadsafe(task.cancel)
            task.add_done_callback(self._forget)

    async def _run_one(self, handling: Handling, handle: Callable[[], Awaitable[object]]) -> None:
        with self._beginning:
            handling.waits_for_loop = False
            if handling.decided:
                return  # it was given back meanwhile
        handling.began_at = moments.monotonic_ns()
        await handle()

    def _forget(self, task: asyncio.Task[object]) -> None:
        del self._tasks[task]
        self._pull()

    def watch(self) -> bool:
        """Return whether a handler has blocked the loop for long; called often, from another thread."""
        now = moments.monotonic_ns()
        if self._answered:
            self._answered, self._said_blocked, self._asked_at = False, False, now
            self._loop.call_soon_threadsafe(self._answer)
            return False
        if now - self._asked_at < _BLOCKED_FOR:
            return False
        if not self._said_blocked:
            self._said_blocked = True
            self._say_blocked()
        if self._pulls:
            self._queue.pause()
            if self._answered:  # it answered meanwhile
                self._queue.go_on()
        return True

    def _say_blocked(self) -> None:
        task = asyncio.current_task(self._loop)
        handling = None if task is None else self._tasks.get(task)
        which = "a task" if handling is None else f"the handler of message {handling.delivery.id!r}"
        _log.warning(
            "%s blocks the event loop, so no other handler can proceed. Other workers take the messages that this"
            " worker has claimed but not started. Use await, or asyncio.to_thread",
            which,
            extra=event("event_loop_blocked", id=None if handling is None else handling.delivery.id),
        )

    def take_back(self, running: Sequence[Handling]) -> list[Handling]:
        """Take back messages that have waited for the loop so long that they are left to other workers."""
        before = moments.monotonic_ns() - _BLOCKED_FOR
        with self._beginning:
            return [one for one in running if one.waits_for_loop and one.began_at <= before and one.decide()]

    def _answer(self) -> None:
        self._answered = True
        self._queue.go_on()

    def close(self, seconds: float) -> None:
        """Exit all context managers, and end the loop, within so many seconds."""
        self._loop.call_soon_threadsafe(self._begin_to_end)
        moments.wait(self._ended, seconds)

    def _begin_to_end(self) -> None:
        self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        if not self._is_ours:
            tasks = [*self._tasks]
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LEAVES)
        try:
            await self._stack.aclose()
        except Exception:  # noqa: BLE001  # the worker ends all the same
            _log.exception("the cleanup of the handlers' factory failed")
        if self._is_ours:
            self._loop.stop()
        else:
            self._ended.set()
