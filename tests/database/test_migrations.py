from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.catalogues import migrate_only_to
from tests.killed import killed_after_each_change

from waterclock.database import table_catalogue, topic_catalogue, upkeep_catalogue
from waterclock.database.backend import Backend
from waterclock.database.catalogue import metadata
from waterclock.database.engines import mariadb
from waterclock.database.migrating import HEAD, catalogue_version
from waterclock.errors import SchemaError, UnavailableError
from waterclock.topics.topic import Topic

CATALOGUES = (table_catalogue, topic_catalogue, upkeep_catalogue)  # importing them fills the metadata


@pytest.fixture
def is_migrated() -> bool:
    """These tests migrate."""
    return False


@pytest.mark.parametrize("is_migrated", [False, True], ids=["migrated here", "copied"])
def test_the_migrations_make_exactly_the_tables_that_the_code_expects(database_url: str) -> None:
    backend = Backend(database_url, create=True)
    with backend.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "include_object": lambda _object, name, kind, *_: kind != "table" or name != "waterclock_migrations",
            },
        )
        assert compare_metadata(context, metadata) == []
        assert catalogue_version(connection) == HEAD
    backend.close()


def test_a_migration_that_dies_between_its_steps_goes_on_where_it_was(database_url: str) -> None:
    # Where a death undoes all that came before, one step is as good as the next: MariaDB alone keeps each.
    every = 1 if database_url.startswith("mysql") else 5
    _, deaths = killed_after_each_change(lambda: Backend(database_url, create=True).close(), every=every)
    assert deaths > 10
    test_the_migrations_make_exactly_the_tables_that_the_code_expects(database_url)


@pytest.mark.one_database
def test_threads_may_open_new_databases_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def opened(number: int) -> str | None:
        together.wait()
        backend = Backend(f"sqlite:///{tmp_path / str(number)}.db", create=True)
        with backend.engine.connect() as connection:
            version = catalogue_version(connection)
        backend.close()
        return version

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(opened, range(6))) == [HEAD] * 6


def test_topics_of_an_earlier_version_get_the_totals_of_their_ledgers(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_only_to("0006", monkeypatch)
    old = Backend(sqlite_url, create=True)

    def fill(connection: sa.Connection) -> None:
        connection.exec_driver_sql(
            "INSERT INTO waterclock_topics (id, name, roll_size, created_at, ledger, entries, messages, bytes, ordinal)"
            " VALUES (1, 'old', 1000, 0, 6, 1, 2, 30, 52), (2, 'empty', 1000, 0, 0, 0, 0, 0, 0)"
        )
        for ledger, state, size, file_bytes, row_groups, footer in (
            (1, "closed", 10, None, None, None),
            (2, "sealed", 20, 500, "[]", b"footer"),
            (3, "sealed", 30, 900, "[]", None),  # it shares its file, of which 30 bytes are its part
            (4, "sealed", 40, 600, None, None),  # from before there were row groups
        ):
            connection.exec_driver_sql(
                "INSERT INTO waterclock_ledgers (topic_id, ledger, state, entries, messages, bytes, first_ordinal,"
                " closed_at, file_bytes, row_groups, footer, path) VALUES (1, ?, ?, 1, 10, ?, ?, 0, ?, ?, ?, 'a file')",
                (ledger, state, size, 10 * ledger, file_bytes, row_groups, footer),
            )

    old.transact(fill)
    old.close()
    monkeypatch.undo()
    (tmp_path / "a file").touch()
    backend = Backend(sqlite_url, create=True)
    topic = Topic.open(backend, str(tmp_path), "old")
    assert [info.size for info in topic.ledgers()] == [10, 500, 30, 600, 30]
    assert (topic.info.size, topic.info.ledgers, topic.info.messages) == (1170, 6, 42)
    assert Topic.open(backend, str(tmp_path), "empty").info.size == 0
    backend.close()


def test_columns_of_an_earlier_version_that_have_other_names_now_keep_their_values(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_only_to("0009", monkeypatch)
    old = Backend(database_url, create=True)
    place = {"ledger": 1, "entry": 2, "index": 3, "ordinal": 4}
    rows: dict[str, dict[str, Any]] = {
        "waterclock_producers": {"topic_id": 1, "name": "p", "epoch": 7, "last_sequence": 3, "recent": "[]"},
        "waterclock_subscriptions": {"topic_id": 1, "name": "s", "created_at": 0, "epoch": 9, **place},
        "waterclock_attendance": {"table_id": 1, "session": 2, "subscribers": 3, "sent": 4, "told_at": 5},
        "waterclock_groups": {"table_id": 1, "group_id": "g", "tail": 0, "priority": 0, "came": 6},
    }

    def fill(connection: sa.Connection) -> None:
        for table, row in rows.items():
            connection.execute(sa.insert(sa.table(table, *map(sa.column, row))).values(row))

    old.transact(fill)
    old.close()
    monkeypatch.undo()
    backend = Backend(database_url, create=True)
    with backend.snapshot() as connection:
        assert connection.execute(sa.select(topic_catalogue.producers.c.producer_epoch)).scalars().all() == [7]
        assert connection.execute(sa.select(topic_catalogue.subscriptions.c.reader_epoch)).scalars().all() == [9]
        assert connection.execute(sa.select(table_catalogue.heartbeats)).one() == (1, 2, 3, 4, 5, 0, None)
        assert connection.execute(sa.select(table_catalogue.groups.c.first_seq)).scalars().all() == [6]
    backend.close()


def test_the_last_version_is_the_head() -> None:
    versions = Path(topic_catalogue.__file__).parent / "migrations" / "versions"
    assert max(path.name[:4] for path in versions.glob("*.py")) == HEAD


def test_postgresql_does_not_compress_entries_a_second_time(database_url: str) -> None:
    backend = Backend(database_url, create=True)
    if backend.dialect.name == "postgresql":
        storage = sa.text(
            "SELECT attstorage FROM pg_attribute WHERE attrelid = 'waterclock_entries'::regclass AND attname = 'data'"
        )
        with backend.engine.connect() as connection:
            assert connection.execute(storage).scalar() in (b"e", "e")
    backend.close()


def test_many_who_open_a_new_database_at_once_all_find_it_ready(database_url: str) -> None:
    def open_and_look(_: int) -> str | None:
        backend = Backend(database_url, create=True)
        with backend.snapshot() as connection:
            version = catalogue_version(connection)
        backend.close()
        return version

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(open_and_look, range(6))) == [HEAD] * 6


def test_the_migration_lock_is_given_back(database_url: str) -> None:
    backend = Backend(database_url, create=True)
    if backend.dialect.name == "mysql":  # elsewhere it ends with the transaction
        with backend.engine.connect() as one, backend.engine.connect() as another:  # neither can hide that it has it
            for connection in (one, another):
                assert connection.execute(sa.text("SELECT IS_FREE_LOCK('waterclock_migrations')")).scalar() == 1
    backend.close()


def test_a_catalogue_of_a_newer_library_is_refused_and_left_alone(database_url: str) -> None:
    backend = Backend(database_url, create=True)
    newer = sa.text("UPDATE waterclock_migrations SET version_num = '9999'")
    backend.transact(lambda connection: connection.execute(newer))
    backend.close()
    for _ in range(2):  # a lock that stayed behind would hang the second one
        with pytest.raises(SchemaError, match=f"version 9999, this library knows {HEAD}"):
            Backend(database_url, create=True)


def test_a_migration_that_another_process_does_not_finish_is_given_up_with_a_word(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb, "_MIGRATION_LOCK_SECONDS", 0)
    backend = Backend(database_url, create=True)
    if backend.dialect.name == "mysql":
        with backend.engine.connect() as hanging, backend.engine.connect() as connection:
            hanging.execute(sa.text("SELECT GET_LOCK('waterclock_migrations', 0)"))
            with pytest.raises(UnavailableError, match="migrating"):
                backend.dialect.lock_migrations(connection)
            hanging.execute(sa.text("SELECT RELEASE_LOCK('waterclock_migrations')"))
    backend.close()
