"""Transactions that have been open for long are named with their process, their age and whose they are."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import sqlalchemy as sa

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
        yield connection.execute(sa.text(f"SELECT {own}")).scalar_one()
        connection.rollback()


@SERVERS
def test_an_open_transaction_is_named(database: Database, process: int) -> None:
    [found] = held_snapshots.held_snapshots(database.backend) or []
    assert (found.process, found.user) == (process, "waterclock")
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


def test_its_text_is_one_line() -> None:
    assert str(HeldSnapshot(7, 720, "app", "psql")) == "process 7, user 'app', program 'psql': open for 12m"
    assert str(HeldSnapshot(7, 720, None, "")) == "process 7: open for 12m"
