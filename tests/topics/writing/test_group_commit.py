"""Appends of several threads share transactions: each keeps its entry and its answer, also when others fail."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, exc
from tests.support.moments import PATIENCE, until
from tests.topics.conftest import MakeTopic
from tests.topics.flows import published

from waterclock.database.backend import Backend
from waterclock.database.driver_fast_path import DirectConnection
from waterclock.errors import (
    ConstraintError,
    InvalidArgumentError,
    NotFoundError,
    ProducerFencedError,
    UnavailableError,
)
from waterclock.message import Message, Position
from waterclock.topics.topic import Topic
from waterclock.topics.writing import appending, group_commit
from waterclock.topics.writing.appending import Appended
from waterclock.topics.writing.group_commit import Line, WaitingAppend, line_of
from waterclock.topics.writing.producers import take_over


def messages(times: Sequence[int]) -> list[Message]:
    return [Message("press", "load", time, publish_time=time, receive_time=time) for time in times]


class Gate:
    """Keeps the first transaction from beginning until others stand in line behind it, and counts what each holds."""

    def __init__(self, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[int] = []
        self._topic = topic
        self._opened = threading.Event()
        self._pool = ThreadPoolExecutor(64)
        carry_out = appending._carry_out

        def wait_and_carry_out(group: Sequence[Any]) -> None:
            self.groups.append(len(group))
            if len(self.groups) == 1:
                assert self._opened.wait(PATIENCE)
            carry_out(group)

        monkeypatch.setattr(appending, "_carry_out", wait_and_carry_out)

    def append(self, *times: int, **arguments: Any) -> Future[Appended]:
        """Begin an append in a thread of its own, and return when it stands in line."""
        line = line_of(self._topic.storage.backend, self._topic.storage.topic_id)
        before = len(line._standing) + sum(self.groups)
        future = self._pool.submit(self._topic.append, messages(times), **arguments)
        until(lambda: len(line._standing) + sum(self.groups) > before)
        return future

    def open(self) -> None:
        self._opened.set()
        self._pool.shutdown(wait=True)


@pytest.fixture
def gate(sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(sqlite_topic, monkeypatch)


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


@contextmanager
def losing_the_answer_to_a_commit(backend: Backend, number: int = 1) -> Generator[list[int]]:
    """Let the connection break after the so-manieth commit took place and before the answer comes."""
    commits: list[int] = []
    translated = DirectConnection._translated

    def fail() -> None:
        commits.append(1)
        if len(commits) == number:
            gone = backend.engine.dialect.loaded_dbapi.OperationalError(2013, "lost connection")
            if backend.dialect.name == "sqlite":
                gone.sqlite_errorcode = 5
            raise exc.OperationalError("COMMIT", None, gone, connection_invalidated=True)

    def execute_and_fail(self: DirectConnection, execute: Any, *given: Any) -> Any:
        found = translated(self, execute, *given)
        if "COMMIT" in given:
            fail()
        return found

    def commit_and_fail(connection: sa.Connection) -> None:
        connection.connection.dbapi_connection.commit()
        fail()

    DirectConnection._translated = execute_and_fail
    engines = [backend._indexed_writer]
    for engine in engines:
        event.listen(engine, "commit", commit_and_fail)
    try:
        yield commits
    finally:
        DirectConnection._translated = translated
        for engine in engines:
            event.remove(engine, "commit", commit_and_fail)


def test_appends_of_many_threads_keep_their_order_and_leave_no_hole(make_topic: MakeTopic) -> None:
    topic = make_topic(roll_size=3_000)
    threads, appends = 16, 8
    start = threading.Barrier(threads)

    def work(thread: int) -> list[Position | None]:
        start.wait()
        return [
            topic.append(
                [Message(f"{thread}", "s", number, publish_time=1)] * (1 + number % 3),
                producer=f"p{thread}" if thread % 2 else None,
                sequence=number * 3 if thread % 2 else None,
            ).first
            for number in range(appends)
        ]

    with ThreadPoolExecutor(threads) as pool:
        places = list(pool.map(work, range(threads)))
    assert all(before < after for own in places for before, after in pairwise(own))  # type: ignore[operator]
    stored = list(topic.read())
    firsts = [m.position for m in stored if m.position and m.position.index == 0]
    assert sorted(place for own in places for place in own if place) == firsts
    for before, after in pairwise(stored):
        assert before.position is not None
        ledger, entry, index = before.position
        assert after.position in {(ledger, entry, index + 1), (ledger, entry + 1, 0), (ledger + 1, 0, 0)}
    assert Counter(m.source for m in stored) == dict.fromkeys(map(str, range(threads)), 15)
    infos = topic.ledgers()
    assert len(infos) > 2
    assert [info.first_ordinal for info in infos] == [sum(i.messages for i in infos[:n]) for n in range(len(infos))]


def test_threads_that_wait_for_one_transaction_share_the_next(gate: Gate, sqlite_topic: Topic) -> None:
    waiting = [gate.append(number, number) for number in range(10)]
    gate.open()
    assert gate.groups == [1, 9]
    assert [each.result() for each in waiting] == [Appended(Position(0, number, 0), 2) for number in range(10)]
    assert times(sqlite_topic) == [number for number in range(10) for _ in range(2)]
    assert sqlite_topic.find(7).position == Position(0, 7, 0)


def test_an_error_fails_only_its_own_append(gate: Gate, sqlite_topic: Topic) -> None:
    take_over(sqlite_topic.storage, "fenced")
    take_over(sqlite_topic.storage, "fenced")
    first = gate.append(0)
    fenced = gate.append(1, producer="fenced", sequence=0, epoch=1)
    good = gate.append(2, producer="p", sequence=10)
    repeated = gate.append(2, producer="p", sequence=10)
    other = gate.append(3, producer="p", sequence=10)
    late = gate.append(4, producer="p", sequence=1)
    following = gate.append(5, producer="p", sequence=11)
    last = gate.append(6)
    gate.open()
    assert gate.groups == [1, 7]
    assert [each.result().first for each in (first, good, following, last)] == [Position(0, n, 0) for n in range(4)]
    assert repeated.result() == good.result()._replace(duplicate=True)
    for wrong, kind, word in (
        (fenced, ProducerFencedError, "epoch 2 has replaced"),
        (other, InvalidArgumentError, "already used for other messages"),
        (late, InvalidArgumentError, "never appended"),
    ):
        with pytest.raises(kind, match=word):
            wrong.result()
    assert times(sqlite_topic) == [0, 2, 5, 6]
    assert sqlite_topic.append(messages([5]), producer="p", sequence=11).duplicate


def test_a_ledger_rolls_in_the_middle_of_a_group(make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_sqlite_topic(roll_size=150)
    gate = Gate(topic, monkeypatch)
    waiting = [gate.append(number) for number in range(7)]
    gate.open()
    assert gate.groups == [1, 6]
    places = [each.result().first for each in waiting]
    assert places == sorted(places)  # type: ignore[type-var]
    assert len({place.ledger for place in places if place}) > 2
    assert times(topic) == list(range(7))
    assert [topic.find(number).position for number in range(7)] == places


def test_one_append_that_the_database_refuses_fails_alone(
    gate: Gate, sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = appending._row

    def row_or_poison(*arguments: Any) -> dict[str, Any]:
        made = row(*arguments)
        return {**made, "data": None} if made["begin_publish_time"] == 3 else made

    monkeypatch.setattr(appending, "_row", row_or_poison)
    waiting = [gate.append(number, producer="p", sequence=number) for number in range(6)]
    gate.open()
    with pytest.raises(ConstraintError):
        waiting[3].result()
    assert [each.result().first for each in waiting[:3] + waiting[4:]] == [Position(0, n, 0) for n in range(5)]
    assert times(sqlite_topic) == [0, 1, 2, 4, 5]


def test_an_error_of_the_database_hits_all_who_waited_each_with_an_error_of_its_own(
    gate: Gate, sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("the disk is on fire")

    waiting = [gate.append(number) for number in range(5)]
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_topic.storage.backend, "transact", refuse)
        gate.open()
    errors = [each.exception() for each in waiting]
    assert [str(error) for error in errors] == ["the disk is on fire"] * 5
    assert len(set(map(id, errors))) == 5
    assert times(sqlite_topic) == []
    assert sqlite_topic.append(published([1])).first == Position(0, 0, 0)


def test_appends_of_a_group_to_a_removed_topic_all_fail(gate: Gate, sqlite_topic: Topic) -> None:
    waiting = [gate.append(number) for number in range(3)]
    sqlite_topic.remove()
    gate.open()
    for each in waiting:
        with pytest.raises(NotFoundError, match="'telemetry' was removed"):
            each.result()


@pytest.mark.both_servers
def test_a_group_whose_commit_was_not_answered_is_written_once(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(topic, monkeypatch)
    waiting = [gate.append(number, producer=f"p{number % 2}", sequence=number) for number in range(6)]
    with losing_the_answer_to_a_commit(topic.storage.backend, 2) as commits:
        gate.open()
    assert gate.groups == [1, 5]
    assert len(commits) == 3
    assert [each.result() for each in waiting] == [Appended(Position(0, number, 0), 1) for number in range(6)]
    assert times(topic) == list(range(6))
    assert topic.append(messages([5]), producer="p1", sequence=5).duplicate


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_leader_that_is_interrupted_loses_and_duplicates_nothing_of_the_others(
    gate: Gate, sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    backend = sqlite_topic.storage.backend
    transact = backend.transact
    tries: list[int] = []

    def interrupted(work: Callable[[Any], Any], **options: Any) -> Any:
        tries.append(1)
        if len(tries) != 2:
            return transact(work, **options)
        if moment == "after":
            transact(work, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "transact", interrupted)
    waiting = [gate.append(number) for number in range(5)]
    gate.open()
    with pytest.raises(KeyboardInterrupt):
        waiting[1].result()
    stored = times(sqlite_topic)
    assert stored == ([0, 1, 2, 3, 4] if moment == "after" else [0, 2, 3, 4])
    for number in (0, 2, 3, 4):
        assert waiting[number].result() == Appended(Position(0, stored.index(number), 0), 1)


def test_an_append_interrupted_in_the_queue_leaves_it_and_is_not_written(gate: Gate, sqlite_topic: Topic) -> None:
    first = gate.append(0)
    until(lambda: gate.groups)  # else the append below may join its group, and wait for the gate
    handled = threading.Event()

    def raise_once(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        line = line_of(sqlite_topic.storage.backend, sqlite_topic.storage.topic_id)
        until(lambda: line._standing)
        # A signal that comes just before a thread blocks on a lock is not seen until another one comes.
        while not handled.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, raise_once)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            sqlite_topic.append(published([1]))
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    last = gate.append(2)
    gate.open()
    assert (first.result().first, last.result().first) == (Position(0, 0, 0), Position(0, 1, 0))
    assert times(sqlite_topic) == [0, 2]


class Interrupted(WaitingAppend):
    """One that is interrupted when it wakes up."""

    __slots__ = ()

    def sleep(self, seconds: float = -1) -> None:
        super().sleep(seconds)
        raise KeyboardInterrupt


def finish(group: Sequence[WaitingAppend]) -> None:
    for each in group:
        each.finish()


def test_an_append_interrupted_as_it_becomes_leader_hands_the_lead_on() -> None:
    line = Line[WaitingAppend]()
    busy, free = threading.Event(), threading.Event()

    def wait_and_finish(group: Sequence[WaitingAppend]) -> None:
        busy.set()
        assert free.wait(PATIENCE)
        finish(group)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(line.pass_through, WaitingAppend(1), wait_and_finish)
        assert busy.wait(PATIENCE)
        second = pool.submit(line.pass_through, Interrupted(1), finish)
        until(lambda: len(line._standing) == 1)
        last = pool.submit(line.pass_through, WaitingAppend(1), finish)
        until(lambda: len(line._standing) == 2)
        free.set()
        first.result(PATIENCE)
        last.result(PATIENCE)
        with pytest.raises(KeyboardInterrupt):
            second.result(PATIENCE)
    assert line._leader is None
    assert not line._standing


def test_a_group_is_bounded_in_appends_and_in_bytes_but_one_that_is_larger_goes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "MOST_APPENDS", 3)
    monkeypatch.setattr(group_commit, "MOST_BYTES", 100)
    line = Line[WaitingAppend]()
    groups: list[list[int]] = []
    busy, free = threading.Event(), threading.Event()

    def note_and_finish(group: Sequence[WaitingAppend]) -> None:
        busy.set()
        assert free.wait(PATIENCE)
        groups.append([each.size for each in group])
        finish(group)

    with ThreadPoolExecutor(16) as pool:
        for number, size in enumerate([5, 10, 20, 30, 40, 60, 1, 500, 7]):
            pool.submit(line.pass_through, WaitingAppend(size), note_and_finish)
            assert busy.wait(PATIENCE)
            until(lambda number=number: len(line._standing) == number)
        free.set()
    assert groups == [[5], [10, 20, 30], [40, 60], [1], [500], [7]]


def test_an_append_that_is_alone_does_not_wait() -> None:
    line = Line[WaitingAppend]()
    for _ in range(3):
        line.pass_through(Interrupted(1), finish)  # which does not bear to sleep
    assert line._expected == 1


def test_a_topic_without_appends_costs_nothing(make_sqlite_topic: MakeTopic) -> None:
    topics = [make_sqlite_topic(str(number)) for number in range(3)]
    for topic in topics:
        topic.append(published([1]))
    backend = topics[0].storage.backend
    assert not group_commit._lines.of(backend)._of


def test_a_process_that_is_forked_in_the_middle_of_a_group_can_append(gate: Gate, sqlite_topic: Topic) -> None:
    waiting = [gate.append(number) for number in range(3)]
    backend, topic_id = sqlite_topic.storage.backend, sqlite_topic.storage.topic_id
    with group_commit._lines.of(backend)._lock:  # also where another thread holds this one
        child = os.fork()
        if child == 0:
            signal.alarm(PATIENCE)
            own = WaitingAppend(1)
            line_of(backend, topic_id).pass_through(own, finish)
            os._exit(0 if own.is_finished else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    gate.open()
    assert [each.result().first for each in waiting] == [Position(0, number, 0) for number in range(3)]
