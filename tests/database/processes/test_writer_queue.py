"""Turns: writers of one file come one after another, and none waits for ever for one that is frozen or gone."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from tests.database.processes.child import Child
from tests.support.killed import interrupted_at_each_point
from tests.support.moments import PATIENCE, until

from waterclock.database import backend as backend_module
from waterclock.database.backend import Backend
from waterclock.database.engines import writer_queue as turns_module
from waterclock.database.engines.writer_queue import LONGEST_WAIT, Turn, WriterQueue
from waterclock.errors import RefusedError, UnavailableError


@pytest.fixture
def turns(tmp_path: Path) -> WriterQueue:
    return WriterQueue(tmp_path / "x.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.db-turn"


@contextmanager
def a_process_with_the_turn(file: Path) -> Generator[int]:
    """Let another process have the turn until the block ends, or it is killed."""
    reading_end, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        fcntl.flock(os.open(file, os.O_RDONLY | os.O_CREAT), fcntl.LOCK_EX)
        os.write(tell, b"!")
        while True:
            signal.pause()
    os.read(reading_end, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading_end)
        os.close(tell)


def test_threads_come_in_the_order_in_which_they_came(turns: WriterQueue) -> None:
    came: list[int] = []

    def come(number: int) -> None:
        with closing(turns.turn(PATIENCE)):
            came.append(number)

    with ThreadPoolExecutor(8) as pool, closing(turns.turn()):
        for number in range(8):
            pool.submit(come, number)
            until(lambda number=number: len(turns._waiting) == number + 1)
    assert came == list(range(8))
    assert turns._owner is None


def test_a_turn_that_takes_too_long_is_done_without_and_the_next_one_still_comes(turns: WriterQueue) -> None:
    def come(seconds: float) -> bool:
        with closing(turns.turn(seconds)):
            return turns._owner is not None

    with ThreadPoolExecutor(2) as pool:
        with closing(turns.turn()):
            patient = pool.submit(come, PATIENCE)
            until(lambda: turns._waiting)
            assert pool.submit(come, 0).result(PATIENCE)
            assert len(turns._waiting) == 1
        assert patient.result(PATIENCE)
    assert turns._owner is None


def test_an_error_in_a_turn_ends_it(turns: WriterQueue) -> None:
    with pytest.raises(KeyboardInterrupt), closing(turns.turn()):
        raise KeyboardInterrupt
    assert turns._owner is None


def test_no_file_is_made_until_processes_meet(turns: WriterQueue, file: Path) -> None:
    with closing(turns.turn()):
        assert not file.exists()
    with closing(turns.turn(with_others=True)):
        assert file.exists()
    turns.close()
    with closing(turns.turn()):
        assert turns._file is not None
    turns.close()


def test_a_folder_that_may_not_be_written_to_has_turns_of_threads_alone(tmp_path: Path) -> None:
    turns = WriterQueue(tmp_path / "no such folder" / "x.db")
    with closing(turns.turn(with_others=True)):
        assert turns._file is None


def test_a_process_that_is_killed_passes_its_turn_on(turns: WriterQueue, file: Path) -> None:
    came = threading.Event()

    def come() -> None:
        with closing(turns.turn(PATIENCE)):
            came.set()

    thread = threading.Thread(target=come)
    with a_process_with_the_turn(file):
        thread.start()
        until(lambda: any(thread.name == "turn" for thread in threading.enumerate()))
        assert not came.is_set()
    thread.join(PATIENCE)
    assert came.is_set()


def test_a_process_that_is_frozen_in_its_turn_holds_no_writer_up_for_longer_than_the_bound(
    turns: WriterQueue, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LONGEST_WAIT", 0.02)
    with a_process_with_the_turn(file) as frozen:
        os.kill(frozen, signal.SIGSTOP)
        for _ in range(3):
            with closing(turns.turn(PATIENCE)):
                pass
    until(lambda: all(thread.name != "turn" for thread in threading.enumerate()))
    with closing(turns.turn()):  # and what came too late has not been kept
        other = os.open(file, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)


def test_writers_do_not_wait_for_a_frozen_process_again(
    turns: WriterQueue, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_process_with_the_turn(file) as frozen:
        os.kill(frozen, signal.SIGSTOP)
        monkeypatch.setattr(turns_module, "LONGEST_WAIT", 0.02)
        turns.turn(PATIENCE).close()
        monkeypatch.setattr(turns_module, "LONGEST_WAIT", 2.0)
        began = time.monotonic()
        for _ in range(3):
            turns.turn(PATIENCE).close()
        assert time.monotonic() - began < 2
        assert [thread.name for thread in threading.enumerate()].count("turn") == 1
    until(lambda: all(thread.name != "turn" for thread in threading.enumerate()))
    with closing(turns.turn()):
        assert not can_be_locked(file)
    turns.close()


def test_writers_come_first_if_the_system_has_no_more_threads(
    turns: WriterQueue, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = len(turns_module._opened)
    with a_process_with_the_turn(file), monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        for _ in range(3):
            turns.turn().close()
    assert len(turns_module._opened) <= opened
    with closing(turns.turn(with_others=True)):
        assert not can_be_locked(file)
    turns.close()


def test_a_process_that_is_forked_in_the_middle_of_a_turn_has_its_own(turns: WriterQueue) -> None:
    with closing(turns.turn()):
        child = os.fork()
        if child == 0:
            with closing(turns.turn()):
                os._exit(0 if turns._owner is not None and not turns._waiting else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def can_be_locked(file: Path) -> bool:
    other = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(other)


def test_a_process_that_dies_in_its_turn_gives_it_on_although_a_child_of_it_lives(
    turns: WriterQueue, file: Path
) -> None:
    with closing(turns.turn(with_others=True)):
        child = Child(lambda: "")
        assert not can_be_locked(file)
        assert turns._file is not None
        os.dup2(os.open(file, os.O_RDONLY), turns._file)  # as death would, this closes it without unlocking it
        until(lambda: can_be_locked(file))
        child.go()


def test_a_lock_that_comes_too_late_is_given_back_although_a_fork_has_copied_it(file: Path) -> None:
    late = os.open(file, os.O_RDONLY | os.O_CREAT)
    turns_module._opened.add(late)
    turns_module._lock(late)
    copy = os.dup(late)
    turns_module._close(late)
    assert can_be_locked(file)
    os.close(copy)


def test_a_writer_that_tries_without_success_passes_its_turn_on(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "LONGEST_WAIT", 0.02)
    backend, other = Backend(sqlite_url, timeout=PATIENCE), Backend(sqlite_url, create=True)
    file = tmp_path / "waterclock.db-turn"
    with ThreadPoolExecutor(1) as pool:
        with other._writer.begin():
            writing = pool.submit(backend.transact, lambda _: None)
            until(file.exists)
            until(lambda: can_be_locked(file))
            assert not writing.done()
        writing.result()
    backend.close()
    other.close()


def test_writers_that_find_the_file_busy_take_turns_from_then_on(sqlite_url: str, tmp_path: Path) -> None:
    backend, other = Backend(sqlite_url, timeout=0.2), Backend(sqlite_url)
    file = tmp_path / "waterclock.db-turn"
    backend.transact(lambda _: None)
    assert not file.exists()
    with other._writer.begin(), pytest.raises(UnavailableError, match="was busy"):
        backend.transact(lambda connection: connection.execute(sa.text("SELECT 1")))
    assert file.exists()
    backend.transact(lambda _: None)
    other.transact(lambda _: None)
    with pytest.raises(RefusedError, match="no such table"):
        other.transact(lambda connection: connection.execute(sa.text("DELETE FROM no_table")))
    other.transact(lambda _: None)
    backend.close()
    other.close()


def test_an_interrupted_wait_for_another_process_closes_its_own_file_alone(
    turns: WriterQueue, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_process_with_the_turn(file), monkeypatch.context() as patch:
        patch.setattr(turns_module.moments, "wait", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            turns.turn()
    until(lambda: all(thread.name != "turn" for thread in threading.enumerate()))
    with file.open("rb") as other:  # gets the descriptor that has become free
        turns.close()
        os.fstat(other.fileno())
    with closing(turns.turn(with_others=True)):
        assert not can_be_locked(file)
    turns.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # if it raises in __del__
@pytest.mark.parametrize("with_file", [False, True])
def test_writers_come_first_after_a_signal_handler_raised_an_exception_at_any_point(
    turns: WriterQueue, file: Path, with_file: bool
) -> None:
    def write() -> None:
        with closing(turns.turn(PATIENCE, with_others=with_file)):
            pass

    points = 0
    for _ in interrupted_at_each_point(write, ["writer_queue.py"]):
        points += 1
        assert not with_file or not file.exists() or can_be_locked(file)
        assert turns._owner is None
        assert not turns._threads
    assert points > 10
    turns.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # if it raises in __del__
def test_an_interrupted_wait_that_took_too_long_leaves_the_turn_to_its_owner(turns: WriterQueue) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(turns.turn).result()
        for _ in interrupted_at_each_point(lambda: turns.turn(0).close(), ["writer_queue.py"]):
            assert turns._owner is first.place
            assert not turns._waiting
            assert turns._threads == {first.thread}
        first.close()
    assert turns._owner is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # if it raises in __del__
def test_an_interrupted_end_of_a_turn_wakes_the_next_writer_alone(turns: WriterQueue) -> None:
    ends = threading.Semaphore(0)
    inside: list[Turn] = []

    def write() -> None:
        with closing(turns.turn()) as turn:
            inside.append(turn)
            ends.acquire(timeout=PATIENCE)

    with ThreadPoolExecutor(2) as pool:

        def end_before_two_others() -> None:
            turn = turns.turn()
            for number in (1, 2):
                pool.submit(write)
                until(lambda number=number: len(turns._waiting) == number)
            turn.close()

        points = 0
        for _ in interrupted_at_each_point(end_before_two_others, ["writer_queue.py"], ["close", "leave"]):
            points += 1
            until(lambda: inside)
            assert turns._owner is inside.pop().place
            assert len(turns._waiting) == 1
            ends.release(2)
            until(lambda: turns._owner is None)
            inside.clear()
        ends.release(2)
    assert points > 3


def assert_waits_not(turns: WriterQueue) -> None:
    began = time.monotonic()
    with closing(turns.turn(PATIENCE)):
        assert time.monotonic() - began < LONGEST_WAIT / 2


def test_a_signal_handler_does_not_wait_for_the_turn_of_its_thread(turns: WriterQueue) -> None:
    with closing(turns.turn()):
        assert_waits_not(turns)
        assert_waits_not(turns)
    assert not turns._threads


def test_a_signal_handler_does_not_wait_behind_its_thread(turns: WriterQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(lock: threading.Lock, seconds: float) -> bool:
        assert_waits_not(turns)
        return lock.acquire(timeout=seconds)

    with ThreadPoolExecutor(1) as pool:
        with closing(turns.turn()):
            monkeypatch.setattr(turns_module.moments, "acquire", interrupted)
            writing = pool.submit(lambda: turns.turn(PATIENCE).close())
            until(lambda: turns._waiting)
        writing.result(PATIENCE)
    assert not turns._threads


def test_a_signal_handler_that_interrupts_a_write_of_its_thread_fails_to_write_at_once(sqlite_url: str) -> None:
    backend, other = Backend(sqlite_url, timeout=0.2), Backend(sqlite_url, timeout=0.2)

    def interrupted(_: object) -> None:
        for one in (backend, other, backend):
            with pytest.raises(UnavailableError, match=r"in a signal handler, .* that interrupted a write"):
                one.transact(lambda _: None)

    backend.transact(interrupted)
    with other._writer.begin(), pytest.raises(UnavailableError, match="was busy"):  # not interrupted: it waits
        backend.transact(lambda _: None)
    backend.close()
    other.close()


def test_writers_wait_after_a_signal_handler_raised_an_exception_at_any_point(sqlite_url: str) -> None:
    backend = Backend(sqlite_url)
    for _ in interrupted_at_each_point(lambda: backend.transact(lambda _: None), ["backend.py"]):
        assert not backend_module._written.files
    backend.close()
