"""A user whom the database refuses is an error of its own kind: trying again does not help."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.services import Service

from waterclock.connection import connect
from waterclock.database.engines.postgresql_sign_in import state_of_refusal
from waterclock.errors import ForbiddenError, UnavailableError, WaterclockError

SERVERS = ("postgresql_server", "mariadb_server")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("part", ["password", "username"])
def test_a_wrong_password_and_an_unknown_user_are_forbidden(
    server: str, part: str, request: pytest.FixtureRequest
) -> None:
    service: Service = request.getfixturevalue(server)
    guess = secrets.token_hex(16)
    url = sa.make_url(service.url)
    url = url.set(password=guess) if part == "password" else url.set(username=guess)
    with pytest.raises(ForbiddenError) as raised:
        connect(url.render_as_string(hide_password=False))
    if part == "password":
        assert guess not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("change", "says"), [({"database": "nowhere"}, "nowhere"), ({"port": 1}, "refused")])
def test_other_failures_while_connecting_are_unavailable(
    postgresql_server: Service, change: dict[str, Any], says: str
) -> None:
    url = sa.make_url(postgresql_server.url).set(**change)
    with pytest.raises(UnavailableError, match=says):
        connect(url.render_as_string(hide_password=False))


@contextmanager
def role(server: Service, options: str) -> Generator[str]:
    """Make a user, and give its URL."""
    name = f"u_{secrets.token_hex(4)}"
    engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        password = secrets.token_hex(8)
        connection.exec_driver_sql(f"CREATE ROLE {name} PASSWORD '{password}' {options}")
        try:
            url = sa.make_url(server.url).set(username=name, password=password)
            yield url.render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("options", "kind"),
    [("NOLOGIN", ForbiddenError), ("LOGIN VALID UNTIL '2001-01-01'", ForbiddenError)],
)
def test_a_user_who_may_not_connect_is_forbidden(
    postgresql_server: Service, options: str, kind: type[WaterclockError]
) -> None:
    with role(postgresql_server, options) as url, pytest.raises(kind):
        connect(url)


def test_the_reason_does_not_depend_on_the_servers_language(postgresql_server: Service) -> None:
    url = sa.make_url(postgresql_server.url).set(drivername="postgresql", password=secrets.token_hex(8))
    with pytest.raises(psycopg.OperationalError) as raised:
        psycopg.connect(url.render_as_string(hide_password=False))
    raised.value.args = ("ФАТАЛЬНО: пользователь не прошёл проверку подлинности",)
    assert state_of_refusal(raised.value) == "28P01"
    assert state_of_refusal(psycopg.OperationalError("no connection in it")) is None
