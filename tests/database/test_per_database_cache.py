from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from waterclock.connection import connect
from waterclock.database.per_database_cache import PerDatabaseCache, forget

A_FEW = 4


class Opened:
    """Stands in for a database that is open."""


def test_each_database_has_its_own_until_it_is_forgotten() -> None:
    kept = PerDatabaseCache[list[int]](lambda _: [])
    one, other = Opened(), Opened()
    kept.of(one).append(1)
    assert (kept.of(one), kept.of(other)) == ([1], [])
    assert kept.forget(one) == [1]
    assert kept.forget(one) is None
    assert kept.of(one) == []


def test_one_reset_forgets_everything_that_is_kept_for_a_database() -> None:
    numbers, names = PerDatabaseCache[list[int]](lambda _: []), PerDatabaseCache[list[str]](lambda _: [])
    one, other = Opened(), Opened()
    for database in (one, other):
        numbers.of(database).append(1)
        names.of(database).append("a")
    forget(one)
    assert (numbers.of(one), names.of(one)) == ([], [])
    assert (numbers.of(other), names.of(other)) == ([1], ["a"])


@pytest.mark.usefixtures("young_heap")
def test_a_cache_does_not_keep_its_database_alive() -> None:
    kept = PerDatabaseCache[list[int]](lambda _: [])
    kept.of(Opened())
    gc.collect()
    assert len(kept.known) == 0


def test_a_process_that_is_forked_keeps_nothing_of_its_parents_even_if_a_thread_was_creating_something() -> None:
    kept = PerDatabaseCache[list[int]](lambda _: [])
    one = Opened()
    kept.of(one).append(1)
    with kept._making:
        child = os.fork()
        if child == 0:
            os._exit(len(kept.of(one)))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.usefixtures("young_heap")
def test_caches_of_closed_databases_do_not_keep_them_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waterclock.database.per_database_cache.CLOSED_AT_MOST", A_FEW)
    closed: list[weakref.ref[Any]] = []
    with connect(f"sqlite:///{tmp_path / 'open.db'}") as ours:
        orders = ours.create_table("orders", payload="text")
        for number in range(2 * A_FEW):
            with connect(f"sqlite:///{tmp_path / str(number)}.db") as database:
                table = database.create_table(f"orders_{number}", payload="text", groups="sequenced")  # none alike
                table.put("tea", group="g")
                table.receive()[0].ack()
                closed.append(weakref.ref(database.backend))
            del database, table
        gc.collect()
        assert sum(one() is not None for one in closed) <= A_FEW
        orders.put("goes on")
        assert [one.payload for one in orders.receive()] == ["goes on"]
