"""Transactions of a caller, in each form that ``connection=`` takes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy.orm import Session

from waterclock.connection import Database

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
