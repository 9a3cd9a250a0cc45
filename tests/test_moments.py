from __future__ import annotations

import os
import threading

from waterclock._support import moments
from waterclock._support.moments import Moments


class Standing(Moments):
    """Time passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000_000)


def test_a_test_decides_how_time_passes_in_the_whole_process() -> None:
    with moments.replaced(Standing()):
        moments.sleep(90)
        assert (moments.monotonic(), moments.monotonic_ns()) == (90.0, 90_000_000_000)
    assert moments.monotonic() != 90.0


def test_a_wait_ends_by_what_it_waits_for_or_by_its_time() -> None:
    event, lock, (reader, writer) = threading.Event(), threading.Lock(), os.pipe()
    assert not moments.wait(event, 0)
    event.set()
    assert moments.wait(event)
    with moments.holding(lock):
        assert not moments.acquire(lock, 0)
    assert moments.acquire(lock)
    assert moments.poll([reader], -1) == set()
    os.write(writer, b"x")
    assert moments.poll([reader], 60) == {reader}
    os.close(reader)
    os.close(writer)


def test_threads_are_started_and_waited_for() -> None:
    changed, done = threading.Condition(), []

    def work() -> None:
        with changed:
            done.append(1)
            changed.notify()

    thread = threading.Thread(target=work)
    with changed:
        moments.start(thread)
        moments.wait_for(changed, lambda: done)
    moments.join(thread)
    assert not thread.is_alive()
