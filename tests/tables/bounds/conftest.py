"""Fixtures of the tests of bounds."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from waterclock.connection import Database


@pytest.fixture
def held(database: Database) -> Generator[None]:
    """Hold a snapshot, as a report does."""
    engine = database.backend.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM waterclock_message_tables").fetchall()
        yield
        connection.rollback()


@pytest.fixture
def written(database: Database) -> Generator[None]:
    """Hold a transaction that has read and written: each dead entry is then looked up in the version that it shows."""
    engine = database.backend.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE others (one INT)")
        connection.exec_driver_sql("SELECT count(*) FROM waterclock_message_tables").fetchall()
        connection.exec_driver_sql("INSERT INTO others VALUES (1)")
        yield
        connection.rollback()
