"""Calls in threads: made once, told to their loop, or undone."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from tests.work.conftest import until

from waterclock import InvalidArgumentError
from waterclock.aio import threads as module
from waterclock.aio.threads import CallThreads


class Slow:
    """A call that the test lets end."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.undone: list[str] = []

    def __call__(self) -> str:
        self.began.set()
        assert self.go_on.wait(60)
        return "made"


@pytest.fixture
def slow() -> Slow:
    return Slow()


async def begin(threads: CallThreads, slow: Slow) -> asyncio.Task[str]:
    task = asyncio.ensure_future(threads.call(slow, undo=slow.undone.append))
    while not slow.began.is_set():
        await asyncio.sleep(0)
    return task


def test_a_call_whose_task_is_cancelled_before_it_ends_is_undone(slow: Slow) -> None:
    async def main() -> None:
        threads = CallThreads(1)
        task = await begin(threads, slow)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow.go_on.set()
        threads.close()

    asyncio.run(main())
    assert slow.undone == ["made"]


def test_a_call_whose_task_is_cancelled_after_it_ended_is_undone_once(slow: Slow) -> None:
    async def main() -> None:
        threads = CallThreads(1)
        task = await begin(threads, slow)
        slow.go_on.set()
        until(lambda: threads._unfinished == 0)  # without the loop, which does not learn of it
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        threads.close()

    asyncio.run(main())
    assert slow.undone == ["made"]


def test_a_call_whose_loop_was_closed_meanwhile_is_undone(slow: Slow) -> None:
    loop, threads = asyncio.new_event_loop(), CallThreads(1)
    task = loop.run_until_complete(begin(threads, slow))
    loop.close()
    slow.go_on.set()
    threads.close()
    assert slow.undone == ["made"]
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_call_that_has_not_begun_is_not_made_after_its_task_was_cancelled(slow: Slow) -> None:
    made: list[int] = []

    async def main() -> None:
        threads = CallThreads(1)
        first = await begin(threads, slow)
        second = asyncio.ensure_future(threads.call(lambda: made.append(2)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        slow.go_on.set()
        assert await first == "made"
        threads.close()

    asyncio.run(main())
    assert made == []


def test_errors_are_raised_and_an_undo_that_fails_ends_no_thread(slow: Slow) -> None:
    async def main() -> None:
        threads = CallThreads(1)
        with pytest.raises(ZeroDivisionError):
            await threads.call(lambda: 1 // 0)
        task = asyncio.ensure_future(threads.call(slow, undo=int))
        while not slow.began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        slow.go_on.set()
        assert await threads.call(lambda: 1) == 1
        threads.close()
        with pytest.raises(InvalidArgumentError, match="it was closed"):
            await threads.call(lambda: 1)

    asyncio.run(main())


def test_threads_end_when_idle_and_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE", 0)

    async def main() -> None:
        threads = CallThreads(2)
        for _ in range(2):
            assert await asyncio.gather(*(threads.call(lambda number=number: number) for number in range(9))) == [
                *range(9)
            ]
            until(lambda: not threads._threads)
        threads.close()

    asyncio.run(main())


def test_two_loops_get_their_own_results() -> None:
    threads, found = CallThreads(2), {}

    async def call_often(name: str) -> None:
        found[name] = await asyncio.gather(
            *(threads.call(lambda number=number: (name, number)) for number in range(50))
        )

    loops = [threading.Thread(target=asyncio.run, args=(call_often(name),)) for name in "ab"]
    for one in loops:
        one.start()
    for one in loops:
        one.join()
    threads.close()
    assert found == {name: [(name, number) for number in range(50)] for name in "ab"}


@pytest.mark.usefixtures("young_heap")
def test_loops_that_ended_are_not_kept() -> None:
    threads = CallThreads(1)
    for _ in range(3):
        asyncio.run(threads.call(object))
    threads.close()
    gc.collect()
    assert len(threads._over) == 0


def test_a_call_for_which_no_thread_can_be_started_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[int] = []
    threads = CallThreads(1)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(module.moments, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            asyncio.run(threads.call(lambda: made.append(1)))
    asyncio.run(threads.call(lambda: made.append(2)))
    threads.close()
    assert made == [2]
