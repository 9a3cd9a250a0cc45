"""connect(create=…): which calls create the catalogue, and what the others raise without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import waterclock as wc
from waterclock.database.migrating import HEAD

pytestmark = pytest.mark.both_servers


@pytest.fixture
def is_migrated() -> bool:
    """These tests create the catalogue."""
    return False


def tables_of(url: str) -> list[str]:
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def nothing(connection: Any) -> None: ...


VERBS: list[Callable[[wc.Database], Any]] = [
    lambda db: db.topics(),
    lambda db: db.topic_infos(),
    lambda db: db.topic("t"),
    lambda db: db.tables(),
    lambda db: db.table("t"),
    lambda db: db.archive("t", "t"),
    lambda db: db.backend.look(nothing),
    lambda db: db.backend.alone(nothing),
    lambda db: db.backend.transact(nothing),
]


def test_only_verbs_that_create_something_create_the_catalogue(database_url: str, tmp_path: Path) -> None:
    with wc.connect(database_url, tmp_path) as database:
        for verb in VERBS:
            with pytest.raises(wc.NotFoundError, match=r"found(.|\n)*Run 'waterclock init'"):
                verb(database)
        assert not database.backend.has_catalogue()
        for refused in (lambda: database.create_topic(""), lambda: database.create_table("no-hyphens")):
            with pytest.raises(wc.InvalidArgumentError):
                refused()
        assert not database.backend.has_catalogue()
        database.create_table("orders").put(b"1")
        assert database.tables() == ["orders"]
        assert database.topics() == []


def test_a_topic_creates_the_catalogue_for_all_who_have_the_database_open(database_url: str, tmp_path: Path) -> None:
    with wc.connect(database_url, tmp_path) as other, wc.connect(database_url, tmp_path) as database:
        with pytest.raises(wc.NotFoundError):
            other.topics()
        database.create_topic("t")
        assert other.topics() == ["t"]


def test_create_false_never_creates_the_catalogue_and_true_does_so_at_once(database_url: str) -> None:
    with pytest.raises(wc.NotFoundError, match="Run 'waterclock init'"):
        wc.connect(database_url, create=False)
    wc.connect(database_url, create=True).close()
    assert "waterclock_topics" in tables_of(database_url)
    with wc.connect(database_url, create=False) as database:
        assert database.topics() == []


def set_version(url: str, version: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE waterclock_migrations SET version_num = :version"), {"version": version})
    engine.dispose()


@pytest.mark.parametrize("create", [None, False, True])
def test_a_newer_catalogue_is_refused_and_left_alone(database_url: str, create: bool | None) -> None:
    wc.connect(database_url, create=True).close()
    set_version(database_url, "9999")
    with pytest.raises(
        wc.SchemaError, match=f"has version 9999, and this Waterclock only supports versions up to {HEAD}"
    ):
        wc.connect(database_url, create=create)


@pytest.mark.one_database
def test_an_older_catalogue_is_migrated_only_where_that_is_reported(database_url: str) -> None:
    wc.connect(database_url, create=True).close()
    set_version(database_url, "0000")
    for create in (None, False):
        with pytest.raises(wc.SchemaError, match=r"has version 0000.*Run 'waterclock db migrate'"):
            wc.connect(database_url, create=create)


@pytest.mark.one_database
def test_a_sharded_table_creates_the_catalogue_of_each_shard(tmp_path: Path) -> None:
    urls = {"-80": f"sqlite:///{tmp_path / 'a.db'}", "80-": f"sqlite:///{tmp_path / 'b.db'}"}
    with wc.connect(shards=urls) as database:
        with pytest.raises(wc.NotFoundError):
            database.tables()
        assert list(tmp_path.iterdir()) == []
        database.create_table("orders", id_type="uuid")
        assert database.tables() == ["orders"]
    with pytest.raises(wc.NotFoundError):
        wc.connect(shards={"-": f"sqlite:///{tmp_path / 'c.db'}"}, create=False)
