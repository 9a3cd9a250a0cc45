"""What a server, a role or the environment sets for sessions changes nothing that Waterclock does."""

from __future__ import annotations

import warnings

import pytest
import sqlalchemy as sa
from tests.support.services import Service

import waterclock as wc

TEXT = "日本 \\ ' é"

MARIADB = {
    "sql_select_limit": 1,
    "sql_safe_updates": 1,
    "max_join_size": 1,  # which turns sql_big_selects off
    "completion_type": "CHAIN",
    "default_storage_engine": "MyISAM",
}


def use(url: str) -> None:
    """Put, claim and ack more than one message, in a table with groups."""
    with wc.connect(url) as database:
        orders = database.create_table("orders", payload="text", groups="sequenced")
        orders.put_many([{"payload": TEXT, "headers": {"waterclock.group": str(place)}} for place in range(3)])
        found = orders.receive()
        assert [one.payload for one in found] == [TEXT] * 3
        orders.ack(found)
        assert orders.stats().acked == 3


@pytest.mark.parametrize("name", MARIADB)
def test_settings_of_a_mariadb_server_change_no_statement(mariadb_server: Service, name: str) -> None:
    engine = sa.create_engine(mariadb_server.url, isolation_level="AUTOCOMMIT")
    with mariadb_server.new_database(empty=True) as url, engine.connect() as connection:
        connection.exec_driver_sql(f"SET GLOBAL {name} = %s", (MARIADB[name],))
        try:
            use(url)
        finally:
            connection.exec_driver_sql(f"SET GLOBAL {name} = DEFAULT")
    engine.dispose()


def test_a_client_encoding_of_the_environment_changes_no_text(
    postgresql_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with postgresql_server.new_database() as url:
        use(url)


def test_quoted_identifiers_of_a_postgresql_server_hide_no_column_type(postgresql_server: Service) -> None:
    with postgresql_server.new_database(empty=True) as url, warnings.catch_warnings():
        warnings.simplefilter("error", sa.exc.SAWarning)
        use(f"{url}?options=-c%20quote_all_identifiers=on")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_unicode_is_refused(postgresql_server: Service, encoding: str) -> None:
    name = f"test_{encoding.lower()}"
    engine = sa.create_engine(postgresql_server.url, isolation_level="AUTOCOMMIT")
    postgresql_server.drop(name)
    with engine.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    try:
        url = sa.make_url(postgresql_server.url).set(database=name).render_as_string(hide_password=False)
        with pytest.raises(wc.UnavailableError, match=f"its encoding {encoding} cannot store all of Unicode"):
            wc.connect(url)
    finally:
        postgresql_server.drop(name)
        engine.dispose()
