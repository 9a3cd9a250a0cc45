"""MariaDB tells UTC also in the hour that comes twice in autumn, in any time zone of a session."""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.services import Service

from waterclock.connection import Database

SPRING, AUTUMN = (int(datetime(2026, *day, 1, tzinfo=UTC).timestamp()) for day in ((3, 29), (10, 25)))
HALF_PAST_TWO = (AUTUMN - 1800, AUTUMN + 1800)
SECOND = 1_000_000_000
ZONE = "Waterclock/Tests"


@pytest.fixture
def zone(mariadb_server: Service) -> Generator[str]:
    """Give the name of a zone with summer time; a server need not have any."""
    engine = sa.create_engine(mariadb_server.url)
    with engine.begin() as connection:
        key = connection.exec_driver_sql("INSERT INTO mysql.time_zone VALUES (NULL, 'N')").lastrowid
        rows: dict[str, list[tuple[Any, ...]]] = {
            "time_zone_name": [(ZONE, key)],
            "time_zone_transition_type": [(key, 0, 3600, 0, "CET"), (key, 1, 7200, 1, "CEST")],
            "time_zone_transition": [(key, SPRING, 1), (key, AUTUMN, 0)],
        }
        for table, values in rows.items():
            places = ", ".join(["%s"] * len(values[0]))
            connection.exec_driver_sql(f"INSERT INTO mysql.{table} VALUES ({places})", values)  # noqa: S608  # ours
    yield ZONE
    with engine.begin() as connection:
        for table in ("time_zone", *(name for name in rows if name != "time_zone_name")):
            connection.exec_driver_sql(f"DELETE FROM mysql.{table} WHERE Time_zone_id = %s", (key,))  # noqa: S608  # ours
        connection.exec_driver_sql("DELETE FROM mysql.time_zone_name WHERE Name = %s", (ZONE,))
    engine.dispose()


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
@pytest.mark.parametrize("now", HALF_PAST_TWO)
def test_both_hours_are_distinguished_by_plain_sql_by_triggers_and_on_a_connection_of_the_callers(
    connect: Callable[[], Database], zone: str, now: int
) -> None:
    database = connect(create=True)
    table = database.create_table("orders", payload="text")
    with database.backend.engine.connect() as connection:
        assert times_of_plain_sql(connection, zone, now) == {now * SECOND}
        table.put("ours", id=3, connection=connection)
        ours = connection.exec_driver_sql("SELECT time_created, time_scheduled, time_next FROM orders WHERE id = 3")
        assert set(ours.one()) == {now * SECOND}
        assert database.backend.now(connection) == now * SECOND
        connection.invalidate()


def times_of_plain_sql(connection: sa.Connection, zone: str, now: int) -> set[Any]:
    """Insert two messages in a session of this zone, and give the times that they got."""
    connection.exec_driver_sql(f"SET time_zone = '{zone}', timestamp = {now}")
    assert str(connection.exec_driver_sql("SELECT NOW()").scalar()) == "2026-10-25 02:30:00"
    connection.exec_driver_sql("INSERT INTO orders(id, message) VALUES (1, 'by defaults')")
    connection.exec_driver_sql(
        "INSERT INTO orders(id, message, time_scheduled, time_next) VALUES (2, 'by triggers', NULL, NULL)"
    )
    times = connection.exec_driver_sql("SELECT time_created, time_scheduled, time_next FROM orders").all()
    return {time for row in times for time in row}
