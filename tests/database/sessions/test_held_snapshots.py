"""Transactions that have been open for long are named with their process, their age and whose they are."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest
import sqlalchemy as sa
from tests.support.moments import until

from waterclock.cli.operations.doctor import doctor
from waterclock.cli.tables.table import info
from waterclock.cli.terminal.common import Common
from waterclock.connection import Database
from waterclock.database import held_snapshots
from waterclock.database.held_snapshots import HeldSnapshot

SERVERS = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def process(database: Database, monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """Leave a transaction that only read open, which counts as old at once; give its process."""
    database.create_table("orders")
    monkeypatch.setattr(held_snapshots, "LONG", -1)
    own = "pg_backend_pid()" if database.backend.dialect.name == "postgresql" else "CONNECTION_ID()"
    engine = database.backend.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT count(*) FROM orders")).all()
        process: int = connection.execute(sa.text(f"SELECT {own}")).scalar_one()
        # InnoDB does not update its list of transactions while it is read more often than every 0.1 s, by anyone.
        until(
            lambda: process in [one.process for one in held_snapshots.held_snapshots(database.backend) or ()], pause=0.3
        )
        yield process
        connection.rollback()


@SERVERS
def test_an_open_transaction_is_named(database: Database, process: int) -> None:
    # MariaDB shows transactions of other databases, too.
    [found] = [one for one in held_snapshots.held_snapshots(database.backend) or () if one.process == process]
    assert found.user == "waterclock"
    assert 0 <= found.seconds < 60


@SERVERS
@pytest.mark.usefixtures("process")
def test_one_that_began_a_moment_ago_is_not(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_snapshots, "LONG", 300)
    assert held_snapshots.held_snapshots(database.backend) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_has_none_that_matter(database: Database) -> None:
    assert held_snapshots.held_snapshots(database.backend) is None


@SERVERS
def test_doctor_and_info_name_it(
    database: Database, database_url: str, process: int, capsys: pytest.CaptureFixture[str]
) -> None:
    common = Common(url=database_url, json=True)
    assert doctor(common=common) == 0
    assert f"process {process}, user 'waterclock'" in capsys.readouterr().out
    info("orders", common=common)
    assert f"process {process}, user 'waterclock'" in capsys.readouterr().out


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_role_that_sees_no_transactions_of_others_is_told_so(
    database: Database, database_url: str, process: int, capsys: pytest.CaptureFixture[str]
) -> None:
    role = f"role_{sa.make_url(database_url).database}"
    engine = database.backend.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD '{role}' IN ROLE pg_read_all_data")
    try:
        url = sa.make_url(database_url).set(username=role, password=role).render_as_string(hide_password=False)
        doctor(common=Common(url=url, json=True))
        shown = [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if "transactions" in row["what"]]
        assert [(row["status"], row["found"]) for row in shown] == [("absent", "not shown to this user")]
        assert "pg_read_all_stats" in shown[0]["remedy"]
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP ROLE {role}")


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_the_age_does_not_depend_on_the_time_zone(database: Database, process: int) -> None:
    question = database.backend.dialect.long_transactions
    assert question is not None
    with database.backend.engine.connect() as connection:
        for zone in ("-08:00", "+09:00"):
            connection.exec_driver_sql(f"SET time_zone = '{zone}'")

            def seconds() -> list[int]:
                rows = connection.execute(question, {"longest": -1}).all()
                return [row.seconds for row in rows if row.process == process]

            until(seconds)
            assert all(0 <= one < 60 for one in seconds())
        connection.invalidate()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_prepared_transaction_is_named(database: Database) -> None:
    engine = database.backend.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if connection.scalar(sa.text("SHOW max_prepared_transactions")) == "0":
            pytest.skip("the server allows no prepared transactions")
        name = f"of {connection.scalar(sa.text('SELECT current_database()'))}"
        for statement in ("BEGIN", "CREATE TABLE kept (id bigint)", f"PREPARE TRANSACTION '{name}'"):
            connection.exec_driver_sql(statement)
        try:
            found = [
                (one.process, one.user, one.program)
                for one in held_snapshots.held_snapshots(database.backend, -1) or ()
            ]
        finally:
            connection.exec_driver_sql(f"ROLLBACK PREPARED '{name}'")
    assert found == [(0, "waterclock", name)]


def test_its_text_is_one_line() -> None:
    assert str(HeldSnapshot(7, 720, "app", "psql")) == "process 7, user 'app', program 'psql': open for 12m"
    assert str(HeldSnapshot(7, 720, None, "")) == "process 7: open for 12m"
    assert str(HeldSnapshot(0, 720, "app", "xa 1")) == "prepared transaction, user 'app', name 'xa 1': open for 12m"
