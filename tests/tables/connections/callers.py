"""Transactions of a caller, in each form that ``connection=`` takes, and who waits for what they have locked."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from waterclock.connection import Database

_WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT CAST(variable_value AS INTEGER) FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}

Open = Callable[[Database], Any]


def by_connection(database: Database) -> Any:
    return database.backend.engine.connect()


def by_session(database: Database) -> Any:
    return Session(database.backend.engine)


def by_driver(database: Database) -> Any:
    url = database.backend.url
    where = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
    match database.backend.dialect.name:
        case "sqlite":
            return sqlite3.connect(str(url.database))
        case "postgresql":
            return psycopg.connect(dbname=url.database, **where)
        case _:
            return pymysql.connect(database=url.database, **where)


ways = pytest.mark.parametrize("open_transaction", [by_connection, by_session, by_driver])


def wait_until_waiting(database: Database, count: int) -> None:
    """Wait until so many statements wait for the locks of others."""
    question = sa.text(_WAITING[database.backend.dialect.name])
    until = time.monotonic() + 30
    with database.backend.engine.connect() as connection:
        while connection.execute(question).scalar_one() < count:
            connection.rollback()
            assert time.monotonic() < until, f"{count} did not wait"
            time.sleep(0.005)
