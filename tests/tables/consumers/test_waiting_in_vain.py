"""Messages that are due but locked are claimed again and again, with pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock._support.moments import Moments, replaced
from waterclock.connection import Database
from waterclock.tables.catalogue import table_row
from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.consumers import consumer_purge, receiving
from waterclock.tables.consumers.receiving import LONGEST_PAUSE, pause_after
from waterclock.tables.message_table import MessageTable
from waterclock.time import MAX_NS

_SECOND = 1_000_000_000
_LONG = 5  # s; five claims reach the longest pause, also on a busy machine
_ENOUGH = 60.0  # s for what the database tells of at once

each_policy = pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])


class Skipping(Moments):
    """Waits for nothing: the seconds of each wait for changes are over at once.

    Attributes
    ----------
    waits
        Those seconds, one after the other.
    """

    def __init__(self) -> None:
        self._ahead = 0
        self.waits: list[float] = []

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self._ahead

    def poll(self, descriptors: Collection[int], seconds: float) -> set[int]:
        assert len(self.waits) < 1000, "it waits without a pause"
        self.waits.append(seconds)
        self._ahead += int(seconds * _SECOND)
        return super().poll(descriptors, 0)


class Putting(Skipping):
    """Puts a message elsewhere when a consumer has come to its longest pause, which has to end with that."""

    def __init__(self, put: Callable[[], object], *, tells: bool) -> None:
        super().__init__()
        self._put: Callable[[], object] | None = put
        self._tells = tells

    def poll(self, descriptors: Collection[int], seconds: float) -> set[int]:
        if self._put is None or seconds < LONGEST_PAUSE / 2:
            return super().poll(descriptors, seconds)
        put, self._put = self._put, None
        put()
        if not self._tells:
            return super().poll(descriptors, seconds)
        ready = Moments.poll(self, descriptors, _ENOUGH)
        assert ready, "nothing tells of the put"
        return ready


@contextmanager
def kept(table: MessageTable, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Keep what is in a table from its consumers although it is due, for the time being."""
    backend = table.context.backend
    if table.context.sql.one_writer:  # which locks no rows
        with monkeypatch.context() as patch:
            seen = list(table.peek())
            claim = receiving.claim
            patch.setattr(
                receiving, "claim", lambda context, wanted: claim(context, wanted) if table.peek() != seen else []
            )
            yield
        return
    with backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept'"))
        yield


def test_pauses_begin_with_the_second_claim_without_success_and_double_up_to_a_tenth_of_a_second() -> None:
    pauses = [pause_after(in_vain) for in_vain in range(40)]
    assert pauses[:6] == [0, 0, 0.005, 0.01, 0.02, 0.04]
    assert pauses[-1] == max(pauses) == LONGEST_PAUSE
    assert pauses == sorted(pauses)


@each_policy
@pytest.mark.parametrize("way", ["receive", "subscribe"])
def test_locked_messages_are_claimed_again_after_growing_pauses(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, groups: str | None, way: str
) -> None:
    table = make_table(groups=groups)
    table.put("tea")
    moments = Skipping()
    with kept(table, monkeypatch), table.subscribe() as deliveries, replaced(moments):
        if way == "receive":
            assert table.receive(wait=f"{_LONG}s") == []
        else:
            until = moments.monotonic_ns() + _LONG * _SECOND
            while moments.monotonic_ns() < until:
                assert deliveries.take(1) == []
                deliveries.wait()
    pauses = [seconds for seconds in moments.waits if seconds > 0.001]
    assert len(moments.waits) < 3 * _LONG / LONGEST_PAUSE  # some of which are over at once
    assert 0.05 < max(pauses) <= LONGEST_PAUSE


@each_policy
def test_a_change_ends_the_pause_after_claims_without_success(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
) -> None:
    table = make_table(groups=groups)
    table.put("tea")
    elsewhere = connect(clock=clock).table("orders")
    tells = table.context.backend.dialect.name != "mysql"
    putting = Putting(lambda: elsewhere.put("milk", group="b" if groups else None), tells=tells)
    with kept(table, monkeypatch), replaced(putting):
        found = table.receive(wait="1h")
    assert "milk" in [one.payload for one in found]


@each_policy
def test_a_wait_ends_with_a_claim_only_if_something_may_be_due(
    make_table: Callable[..., MessageTable], clock: MovableClock, groups: str | None
) -> None:
    table = make_table(groups=groups)
    with table.subscribe() as deliveries:
        assert deliveries.take(1) == []
        with replaced(Skipping()):
            assert not any(deliveries.wait() for _ in range(20))
        table.put("tea", group="a" if groups else None)
        until = time.monotonic() + _ENOUGH
        while not deliveries.wait():  # the first may end with what is known of the options
            assert time.monotonic() < until
        assert [one.payload for one in deliveries.take(1)] == ["tea"]
        table.put("milk", group="b" if groups else None, delay="1h")
        assert deliveries.take(1) == []  # which gives it its place in its group
        with replaced(Skipping()):
            deliveries.wait()  # which may end with the notification of that put
            assert not any(deliveries.wait() for _ in range(20))
            clock.move("1h")
            assert deliveries.wait()


def test_due_messages_do_not_wait_for_a_purge_or_for_reading_the_options(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    purged: list[str] = []
    monkeypatch.setattr(consumer_purge, "purge_some", lambda _: purged.append("some") or 1)
    with table.subscribe() as deliveries, replaced(Skipping()):
        assert deliveries.take(1) == []
        deliveries.wait()
        purged.clear()
        deliveries._purging._purged_at -= 1.5
        table.put("tea")
        assert len(deliveries.take(1)) == 1
        assert purged == []
        deliveries.wait()
        assert purged == ["some"]
        deliveries._purging._purged_at -= 2.5  # a consumer that always has something to do purges, too
        table.put("tea")
        assert len(deliveries.take(1)) == 1
        assert purged == ["some"] * 2
        deliveries._purging._removed = False
        for seconds, count in ((28.0, 2), (3.0, 3)):  # after a purge that removed nothing, it waits for half a minute
            deliveries._purging._purged_at -= seconds
            deliveries._idle.purged_at -= seconds
            deliveries.wait()
            assert len(purged) == count
        deliveries._row.read()
        deliveries._row._looked_at = time.monotonic() - 0.75 * LOOK_EVERY
        with replaced(moments := Skipping()):
            deliveries.wait()
        assert sum(moments.waits) < 0.5 * LOOK_EVERY


@pytest.mark.both_servers
def test_a_waiting_consumer_reads_its_tables_row_again_if_someone_changes_it(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table(poll_interval="1h")
    elsewhere = connect(clock=clock).table("orders")
    tells = table.context.backend.dialect.name != "mysql"
    monkeypatch.setattr(table_row, "_READ_EVERY", 3600.0)
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0.05)
    reads: list[object] = []
    look = table_row.TableRow._look
    monkeypatch.setattr(table_row.TableRow, "_look", lambda self: (reads.append(self), look(self)))
    with table.subscribe() as deliveries:
        assert deliveries.take(1) == []
        for change, until in ((elsewhere.pause, MAX_NS), (elsewhere.resume, None)):
            deliveries.wait()
            change()
            give_up_at = time.monotonic() + _ENOUGH
            while deliveries._row.now().paused_until != until:
                assert time.monotonic() < give_up_at
                deliveries.wait()
        reads.clear()
        with replaced(Skipping()):
            for _ in range(8):
                deliveries.wait()
        assert len(reads) < 5 or not tells
