"""Sessions on MariaDB are strict and in UTC, and keep what the caller's URL sets."""

from __future__ import annotations

import pymysql
import pytest
import sqlalchemy as sa
from tests.support.services import Service

from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError


def test_the_callers_init_command_is_run_and_the_session_is_strict_all_the_same(mariadb_server: Service) -> None:
    with mariadb_server.new_database(empty=False) as url:
        commanded = sa.make_url(url).update_query_dict({"init_command": "SET max_statement_time=7"})
        backend = Backend(commanded.render_as_string(hide_password=False))
        with backend.snapshot() as connection:
            asked = "SELECT @@max_statement_time, @@time_zone, @@sql_mode"
            limit, zone, mode = connection.exec_driver_sql(asked).one()
        backend.close()
    assert (float(limit), zone) == (7.0, "+00:00")
    assert "STRICT_TRANS_TABLES" in mode


def test_a_server_other_than_mariadb_is_refused_by_its_version(
    mariadb_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymysql.connections.Connection, "get_server_info", lambda _self: "8.4.3")
    with (
        mariadb_server.new_database(empty=False) as url,
        pytest.raises(UnavailableError, match=r"later, got version '8\.4\.3'"),
    ):
        Backend(url)
