"""A database that is away for a while: streams end with an error, pages show a banner, and all come back."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager

import httpx
import pytest
import sqlalchemy as sa
from tests.server.browsing import BROWSER
from tests.server.running import served
from tests.support.moments import until

import waterclock as wc


@contextmanager
def away(url: str) -> Generator[None]:
    """Close all connections of a PostgreSQL database, and refuse new ones until the block ends."""
    place = sa.make_url(url)
    server = sa.create_engine(place.set(database="postgres"), isolation_level="AUTOCOMMIT")
    name = server.dialect.identifier_preparer.quote(str(place.database))
    end = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
    with server.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            connection.execute(end, {"name": place.database})
            yield
        finally:
            connection.exec_driver_sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    server.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the others cannot refuse connections to one
def test_streams_and_pages_outlive_a_restart_of_the_database(database: wc.Database, database_url: str) -> None:
    table = database.create_table("orders", payload="text")
    database.backend.close()
    path = "/api/tables/orders/stream"
    with served(database_url) as server, httpx.Client(base_url=server.url, timeout=120, headers=BROWSER) as client:
        with client.stream("GET", path, params={"consumer": "c"}) as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": ready"
            with away(database_url):
                shown = client.get("/tables")
                assert shown.status_code == 503
                assert "This page tries again every 5 seconds" in shown.text
                assert client.get("/readyz").status_code == 503
                assert client.get("/livez").status_code == 200
                said = list(lines)
            [error] = [json.loads(line.removeprefix("data: ")) for line in said if line.startswith("data: {")]
            assert error["error"] == "unavailable"
        for text in (shown.text, *said):
            assert "Traceback" not in text
            assert "psycopg" not in text
        until(lambda: client.get("/readyz").status_code == 200)
        table.put("tea")
        with client.stream("GET", path, params={"consumer": "c"}) as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("event:")) == "event: delivery"
        assert client.get("/tables").status_code == 200
