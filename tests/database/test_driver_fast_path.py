"""Statements straight to the driver, on the databases that have the way."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.backend import Backend
from waterclock.database.driver_fast_path import DirectConnection, execute_all, execute_later
from waterclock.errors import ConstraintError, UnavailableError

NORMAL, FULL = 1, 2  # PRAGMA synchronous

things = sa.Table(
    "things",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("count", sa.JSON),  # also a method of tuples
    sa.Column("flag", sa.Boolean),
)
insert = sa.insert(things).values(
    id=sa.bindparam("of"), count=sa.bindparam("what", type_=sa.JSON), flag=sa.bindparam("yes", type_=sa.Boolean)
)
select = sa.select(things, (things.c.id * 2).label("twice")).order_by(things.c.id)
flag = sa.update(things).where(things.c.id == sa.bindparam("of")).values(flag=True)
PID = sa.select(sa.func.pg_backend_pid())
SETTINGS = ("transaction_isolation", "enable_seqscan", "plan_cache_mode")


@pytest.fixture
def backend(database_url: str) -> Generator[Backend]:
    backend = Backend(database_url)
    things.create(backend.engine)
    yield backend
    backend.close()


@pytest.fixture
def opened(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Collect the connections that are opened from now on."""
    opened: list[object] = []
    open_one = backend._direct._open

    def open_and_note() -> object:
        opened.append(open_one())
        return opened[-1]

    monkeypatch.setattr(backend._direct, "_open", open_and_note)
    return opened


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
on_both = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)


def ids(backend: Backend) -> list[int]:
    with backend.snapshot() as connection:
        return list(connection.scalars(sa.select(things.c.id).order_by(things.c.id)))


@on_both
def test_values_go_and_come_in_the_types_of_the_statement(backend: Backend) -> None:
    def work(own: DirectConnection) -> list[tuple[object, ...]]:
        assert own.execute(insert, {"of": 1, "what": {"a": [1]}, "yes": True}).rowcount == 1
        [row] = own.execute(select).all()
        assert (row.id, row.count, row.flag, row.twice) == (1, {"a": [1]}, True, 2)
        assert own.execute(select.where(things.c.id == 9)).scalar() is None
        assert own.scalars(select) == [1]
        return own.execute(select)

    assert backend.alone(work) == [(1, {"a": [1]}, True, 2)]


@on_both
def test_many_values_go_in_one_call_and_a_part_of_a_statement_may_bring_its_own(backend: Backend) -> None:
    copy = sa.insert(things).from_select(
        ["id", "count"],
        sa.select(things.c.id + sa.bindparam("by"), things.c.count)
        .where(things.c.id == sa.bindparam("of"))
        .params(by=7, of=2),
    )

    def work(own: DirectConnection) -> list[object]:
        own.execute(insert, [{"of": 1, "what": None, "yes": True}, {"of": 2, "what": [3], "yes": None}])
        assert own.execute(sa.insert(things), [{"id": 3, "flag": True}, {"id": 4, "flag": False}]).rowcount == 2
        own.execute(copy)
        assert own.execute(select).first().count is None
        return [(row.id, row.count, row.flag) for row in own.execute(select)]

    assert backend.alone(work) == [
        (1, None, True),
        (2, [3], None),
        (3, None, True),
        (4, None, False),
        (9, [3], None),
    ]


@on_both
def test_a_transaction_has_all_its_statements_or_none(backend: Backend, opened: list[object]) -> None:
    def insert_twice(own: DirectConnection, of: int) -> None:
        for one in (of, of):
            own.execute(insert, {"of": one, "what": None, "yes": None})

    with pytest.raises(ConstraintError):
        backend.transact(lambda own: insert_twice(own, 1), indexed=True)
    with pytest.raises(ZeroDivisionError):
        backend.transact(lambda own: (own.execute(insert, {"of": 2, "what": None, "yes": None}), 1 / 0), indexed=True)
    assert ids(backend) == []
    backend.transact(lambda own: own.execute(insert, {"of": 3, "what": None, "yes": None}), indexed=True)
    assert ids(backend) == [3]
    # psycopg may believe in statements that the server never prepared; an error of the work's own changes nothing.
    assert len(opened) == (2 if backend.dialect.name == "postgresql" else 1)


@on_both
def test_a_transaction_that_was_interrupted_leaves_nothing_behind_nor_its_connection(
    backend: Backend, opened: list[object]
) -> None:
    def insert_and_stop(own: DirectConnection) -> None:
        own.execute(insert, {"of": 1, "what": None, "yes": None})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.transact(insert_and_stop, indexed=True)
    backend.transact(lambda own: own.execute(insert, {"of": 2, "what": None, "yes": None}), indexed=True)
    assert ids(backend) == [2]
    assert len(opened) == 2


@on_postgresql
def test_transactions_see_what_others_commit_meanwhile_and_keep_plans_that_go_down_indexes(backend: Backend) -> None:
    def work(own: DirectConnection) -> tuple[object, ...]:
        with backend.engine.begin() as other:
            other.execute(things.insert().values(id=7))
        return [own.execute(sa.select(sa.func.current_setting(name))).scalar() for name in SETTINGS], own.scalars(
            select
        )

    assert backend.transact(work, indexed=True) == (["read committed", "off", "force_generic_plan"], [7])
    assert (
        backend.alone(lambda own: own.execute(sa.select(sa.func.current_setting("enable_seqscan"))).scalar()) == "off"
    )


@on_postgresql
def test_a_snapshot_by_indexes_starts_no_workers_and_gives_the_connection_back_as_it_was(backend: Backend) -> None:
    setting = sa.select(sa.func.current_setting("max_parallel_workers_per_gather"))
    found: list[str] = []
    for indexed in (False, True, False):
        with backend.snapshot(indexed=indexed) as connection:
            found.append(connection.execute(setting).scalar_one())
    assert found[1] == "0"
    assert found[0] == found[2]


@on_postgresql
def test_a_transaction_whose_connection_broke_is_tried_again_on_a_new_one_and_none_of_its_age_is_lent(
    backend: Backend, opened: list[object]
) -> None:
    # Two of them: one transaction within the other.
    backend.transact(
        lambda own: backend.transact(lambda another: (own.scalars(PID), another.scalars(PID)), indexed=True),
        indexed=True,
    )
    assert len(opened) == 2
    tries: list[int] = []

    def work(own: DirectConnection) -> None:
        tries.append(own.execute(PID).scalar())
        own.execute(insert, {"of": len(tries), "what": None, "yes": None})
        if len(tries) == 1:
            with backend.engine.begin() as other:
                other.execute(sa.select(sa.func.pg_terminate_backend(tries[0])))

    backend.transact(work, indexed=True)  # the first one's commit fails
    assert len(set(tries)) == 2
    assert ids(backend) == [2]
    assert len(opened) == 3


@on_postgresql
def test_a_deadlock_of_transactions_is_resolved_by_trying_one_again(backend: Backend) -> None:
    both_have_one = threading.Barrier(2)
    tries: list[object] = []

    def flag_in_order(order: tuple[int, int], own: DirectConnection) -> None:
        tries.append(order)
        own.execute(flag, {"of": order[0]})
        if len(tries) <= 2:
            both_have_one.wait(60)
        own.execute(flag, {"of": order[1]})

    backend.alone(lambda own: own.execute(sa.insert(things), [{"id": 1}, {"id": 2}]))
    with ThreadPoolExecutor(2) as threads:
        for done in [
            threads.submit(backend.transact, partial(flag_in_order, order), indexed=True) for order in ((1, 2), (2, 1))
        ]:
            done.result()
    assert len(tries) > 2  # the one that is tried again may be quicker than the one that waits, and meet it once more
    assert backend.alone(lambda own: [row.flag for row in own.execute(select)]) == [True, True]


@on_sqlite
def test_work_that_fails_leaves_nothing_behind_and_the_next_continues(backend: Backend) -> None:
    def insert_and_fail(own: DirectConnection) -> None:
        own.execute(insert, {"of": 1, "what": None, "yes": None})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.alone(insert_and_fail)
    with pytest.raises(ConstraintError):
        backend.alone(lambda own: [own.execute(insert, {"of": 2, "what": None, "yes": None}) for _ in range(2)])
    backend.alone(lambda own: own.execute(insert, {"of": 3, "what": None, "yes": None}))
    assert ids(backend) == [3]


@on_sqlite
def test_a_blocked_writer_waits_on_its_connection_and_gives_up_with_an_error(
    backend: Backend, opened: list[object]
) -> None:
    with backend.engine.connect() as other:
        other.exec_driver_sql("DELETE FROM things")  # takes the write lock
        with backend.patience(0.05), pytest.raises(UnavailableError, match="busy"):
            backend.alone(lambda own: own.execute(insert, {"of": 1, "what": None, "yes": None}))
    backend.alone(lambda own: own.execute(insert, {"of": 1, "what": None, "yes": None}))
    assert ids(backend) == [1]
    assert len(opened) == 1


@on_sqlite
def test_work_that_need_not_outlast_the_computer_commits_without_a_sync_and_the_next_waits_again(
    backend: Backend,
) -> None:
    def how(own: DirectConnection) -> int:
        return own.exec_driver_sql("PRAGMA synchronous").fetchone()[0]

    def fail(own: DirectConnection) -> None:
        assert how(own) == NORMAL
        raise KeyboardInterrupt

    assert backend.alone(how, durable=False) == NORMAL
    assert backend.alone(how) == FULL
    with pytest.raises(KeyboardInterrupt):
        backend.alone(fail, durable=False)
    assert backend.alone(how) == FULL
    with backend.engine.connect() as other:
        other.exec_driver_sql("DELETE FROM things")  # takes the write lock
        with backend.patience(0.05), pytest.raises(UnavailableError, match="busy"):
            backend.alone(how, durable=False)
    assert backend.alone(how) == FULL


@on_sqlite
def test_a_connection_that_would_not_wait_for_the_disk_any_more_is_not_lent_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    translated = DirectConnection._translated

    def refuse_to_wait(self: DirectConnection, execute: Any, *given: Any) -> Any:
        if backend.dialect.frame is not None and given[-1] == backend.dialect.frame.wait:
            raise KeyboardInterrupt
        return translated(self, execute, *given)

    with monkeypatch.context() as patched:
        patched.setattr(DirectConnection, "_translated", refuse_to_wait)
        with pytest.raises(KeyboardInterrupt):
            backend.alone(lambda _: None, durable=False)
    assert backend.alone(lambda own: own.exec_driver_sql("PRAGMA synchronous").fetchone()[0]) == FULL


@on_postgresql
def test_statements_without_an_answer_travel_with_those_that_have_one(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = backend.dialect.frame
    assert frame is not None
    assert frame.together is not None
    left: list[list[str]] = []
    texts: list[str] = []

    def note_trip() -> None:
        left.append(texts.copy())
        texts.clear()

    @contextmanager
    def noting(connection: Any) -> Generator[Any]:
        with together(connection) as pipeline:
            yield Mock(sync=lambda: (pipeline.sync(), note_trip()))
        note_trip()

    translated, together = DirectConnection._translated, frame.together

    def note(self: DirectConnection, execute: Any, *given: Any) -> Any:
        texts.append(next(one for one in given if isinstance(one, str)).split()[0])
        return translated(self, execute, *given)

    def work(own: DirectConnection) -> None:
        execute_later(own, (insert, {"of": 1, "what": 1, "yes": True}))
        assert own.scalars(select) == [1]
        execute_later(own, (flag, {"of": 1}))
        found, changed = execute_all(own, [(select, {}), (flag, {"of": 1})])
        assert found.one().flag is True
        assert changed.rowcount == 1
        execute_later(own, (flag, {"of": 2}))

    monkeypatch.setattr(DirectConnection, "_translated", note)
    monkeypatch.setattr(backend.dialect, "frame", frame._replace(together=noting))
    backend.transact(work, indexed=True)
    assert left == [["BEGIN", "INSERT", "SELECT"], ["UPDATE", "SELECT", "UPDATE"], ["UPDATE", "COMMIT"]]
    left.clear()
    backend.transact(lambda own: execute_all(own, [(select, {}), (flag, {"of": 1})], commit=True), indexed=True)
    backend.transact(lambda _: None, indexed=True)
    assert left == [["BEGIN", "SELECT", "UPDATE", "COMMIT"]]


@on_both
@pytest.mark.parametrize("together", [True, False])
def test_a_failed_statement_among_others_is_named_and_undone(
    backend: Backend, opened: list[object], monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    monkeypatch.setattr(DirectConnection, "together", together)
    one, two = {"of": 1, "what": 1, "yes": True}, {"of": 2, "what": 2, "yes": True}

    def work(own: DirectConnection) -> None:
        execute_later(own, (insert, one))
        execute_all(own, [(insert, two), (insert, one), (flag, {"of": 1})], commit=True)

    with pytest.raises(ConstraintError) as refused:
        backend.transact(work, indexed=True)
    assert "INSERT INTO things" in str(refused.value.__cause__)
    backend.transact(lambda own: own.execute(insert, two), indexed=True)
    assert ids(backend) == [2]
    assert len(opened) == (2 if backend.dialect.name == "postgresql" else 1)


@on_postgresql
def test_a_failed_statement_is_named_even_if_its_answer_comes_during_sending(backend: Backend) -> None:
    one = {"of": 1, "what": 1, "yes": True}

    def work(own: DirectConnection) -> None:
        execute_all(own, [(insert, one), (insert, one), *[(flag, {"of": 1})] * 300], commit=True)

    with pytest.raises(ConstraintError) as refused:
        backend.transact(work, indexed=True)
    assert "INSERT INTO things" in str(refused.value.__cause__)
    assert ids(backend) == []


@on_postgresql
def test_a_transaction_that_is_cut_off_is_tried_again_whole(backend: Backend, opened: list[object]) -> None:
    cut: list[int] = []

    def work(own: DirectConnection) -> None:
        execute_later(own, (insert, {"of": 1, "what": 1, "yes": True}))
        if not cut:
            cut.append(own.execute(PID).scalar())
            with backend.engine.connect() as other:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({cut[0]}, 5000)")
        execute_later(own, (flag, {"of": 1}))

    backend.transact(work, indexed=True)
    assert ids(backend) == [1]
    assert len(opened) == 2


@on_postgresql
def test_a_transaction_in_which_the_work_has_handled_an_error_is_not_committed_nor_its_connection_lent_again(
    backend: Backend, opened: list[object]
) -> None:
    def fail_quietly(own: DirectConnection) -> None:
        own.execute(insert, {"of": 1, "what": None, "yes": None})
        with suppress(exc.DBAPIError):
            own.exec_driver_sql("SELECT 1 / 0")

    with pytest.raises(exc.PendingRollbackError):
        backend.transact(fail_quietly, indexed=True)
    assert ids(backend) == []
    backend.alone(fail_quietly)
    backend.transact(lambda own: own.execute(flag, {"of": 1}), indexed=True)
    assert ids(backend) == [1]
    assert len(opened) == 3
