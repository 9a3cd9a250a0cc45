"""Changes by plain SQL, as other clients make them."""

from __future__ import annotations

import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database


def run(database: Database, statement: str, **parameters: object) -> int:
    with database.backend.engine.begin() as connection:
        return connection.execute(sa.text(statement), parameters).rowcount


def catch_up(clock: MovableClock) -> None:
    clock.move("1h")  # the database's own defaults read the real clock, which has moved on
