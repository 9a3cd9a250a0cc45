"""Statements straight to the driver, on the databases that have the way."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.backend import Backend
from waterclock.database.direct import Direct
from waterclock.errors import UnavailableError

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


@pytest.fixture
def backend(database_url: str) -> Generator[Backend]:
    backend = Backend(database_url)
    things.create(backend.engine)
    yield backend
    backend.close()


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_both = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)


def ids(backend: Backend) -> list[int]:
    with backend.snapshot() as connection:
        return list(connection.scalars(sa.select(things.c.id).order_by(things.c.id)))


@on_both
def test_values_go_and_come_in_the_types_of_the_statement(backend: Backend) -> None:
    def work(own: Direct) -> list[tuple[object, ...]]:
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

    def work(own: Direct) -> list[object]:
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


@on_sqlite
def test_work_that_fails_leaves_nothing_behind_and_the_next_goes_on(backend: Backend) -> None:
    def insert_and_fail(own: Direct) -> None:
        own.execute(insert, {"of": 1, "what": None, "yes": None})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.alone(insert_and_fail)
    with pytest.raises(exc.IntegrityError):
        backend.alone(lambda own: [own.execute(insert, {"of": 2, "what": None, "yes": None}) for _ in range(2)])
    backend.alone(lambda own: own.execute(insert, {"of": 3, "what": None, "yes": None}))
    assert ids(backend) == [3]


@on_sqlite
def test_who_meets_another_writer_waits_on_the_same_connection_and_gives_up_with_a_word(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    open_one = backend._direct._open
    monkeypatch.setattr(backend._direct, "_open", lambda: opened.append(1) or open_one())
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
    def how(own: Direct) -> int:
        return own.exec_driver_sql("PRAGMA synchronous").fetchone()[0]

    def fail(own: Direct) -> None:
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
    execute = Direct.exec_driver_sql

    def refuse_to_wait(self: Direct, text: str, parameters: object = None) -> object:
        if text == "PRAGMA synchronous=FULL":
            raise KeyboardInterrupt
        return execute(self, text, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(Direct, "exec_driver_sql", refuse_to_wait)
        with pytest.raises(KeyboardInterrupt):
            backend.alone(lambda _: None, durable=False)
    assert backend.alone(lambda own: own.exec_driver_sql("PRAGMA synchronous").fetchone()[0]) == FULL
