from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.support.catalogues import add_next_version, migrate
from tests.support.killed import killed_after_each_change

import waterclock as wc
from waterclock.database.backend import Backend
from waterclock.database.engines import mariadb
from waterclock.database.migrating import HEAD, catalogue_version, migration_sql
from waterclock.database.schema import (
    ingest_catalogue,
    process_catalogue,
    server_catalogue,
    table_catalogue,
    topic_catalogue,
    upkeep_catalogue,
)
from waterclock.database.schema.catalogue import metadata
from waterclock.errors import SchemaError, UnavailableError

pytestmark = pytest.mark.both_servers

CATALOGUES = (
    ingest_catalogue,
    process_catalogue,
    server_catalogue,
    table_catalogue,
    topic_catalogue,
    upkeep_catalogue,
)  # importing them fills the metadata


@pytest.fixture
def is_migrated() -> bool:
    """These tests migrate."""
    return False


@pytest.mark.parametrize("is_migrated", [False, True], ids=["migrated here", "copied"])
def test_the_migrations_make_exactly_the_tables_that_the_code_expects(database_url: str) -> None:
    backend = Backend(database_url, create=True)
    with backend.engine.connect() as connection:
        assert _differences(connection) == []
        assert catalogue_version(connection) == HEAD
    backend.close()


def _differences(connection: sa.Connection) -> list[Any]:
    """Compare the tables of a database with those that the code expects."""
    left_out = {"waterclock_migrations"}
    if connection.dialect.name != "postgresql":
        left_out |= {"waterclock_groups_key_idx", "waterclock_message_keys_key_idx"}  # the others have primary keys
        left_out.add("waterclock_groups_ended_idx")  # the others delete groups at once
    left_out.add(f"waterclock_message_keys_{'turn' if connection.dialect.name == 'postgresql' else 'next'}_idx")
    if connection.dialect.name in ("mysql", "mariadb"):
        left_out.add("waterclock_groups_blocked_idx")  # a partial index, which MariaDB does not have
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "include_object": lambda _object, name, *_: name not in left_out}
    )
    return compare_metadata(context, metadata)


def test_the_sql_of_the_migrations_makes_the_same_tables(database_url: str) -> None:
    backend = Backend(database_url)
    name = backend.engine.dialect.name
    statements = migration_sql("mariadb" if name == "mysql" else name, None)
    with backend.engine.connect() as connection:
        for statement in statements.split(";\n"):
            if statement.strip() not in ("", "BEGIN", "COMMIT"):
                connection.exec_driver_sql(statement)
        connection.commit()
        assert _differences(connection) == []
    assert backend.has_catalogue()
    backend.close()


def test_the_sql_of_a_migration_begins_at_the_catalogues_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_next_version(tmp_path, monkeypatch)
    statements = migration_sql("postgresql", "0001")
    assert "ALTER TABLE waterclock_topics ADD COLUMN colour" in statements
    assert "UPDATE waterclock_migrations SET version_num='0002'" in statements
    assert "CREATE TABLE" not in statements


def test_a_killed_migration_resumes_at_its_step(database_url: str) -> None:
    # Where a death undoes all that came before, one step is as good as the next: MariaDB alone keeps each.
    every = 1 if database_url.startswith("mysql") else 5
    _, deaths = killed_after_each_change(lambda: Backend(database_url, create=True).close(), every=every)
    assert deaths > 5
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


def test_an_older_catalogue_is_migrated_and_keeps_its_rows(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = 1 if database_url.startswith("mysql") else 3
    with wc.connect(database_url, ledgers=str(tmp_path / "ledgers"), create=True) as database:
        database.create_topic("telemetry")
    add_next_version(tmp_path, monkeypatch)
    with pytest.raises(SchemaError, match=r"has version 0001.*needs 0002\. Run 'waterclock db migrate'"):
        wc.connect(database_url)
    _, deaths = killed_after_each_change(lambda: migrate(database_url), every=every)
    assert deaths
    with wc.connect(database_url) as database, database.backend.snapshot() as connection:
        assert catalogue_version(connection) == "0002"
        colours = sa.select(sa.column("name"), sa.column("colour")).select_from(sa.table("waterclock_topics"))
        assert connection.execute(colours).all() == [("telemetry", "red")]


def test_the_last_version_is_the_head() -> None:
    versions = Path(topic_catalogue.__file__).parents[1] / "migrations" / "versions"
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
        with pytest.raises(SchemaError, match=f"version 9999, and this Waterclock only supports versions up to {HEAD}"):
            Backend(database_url, create=True)


def test_a_migration_that_another_process_does_not_finish_is_abandoned_with_a_message(
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
