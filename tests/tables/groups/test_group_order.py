"""Groups against a plain model of their rules: random puts, claims, acks, nacks, lapses, closes and group commands."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import event
from tests.support.services import Service
from tests.tables.conftest import MovableClock
from tests.tables.groups.group_rules import GroupRules

from waterclock.connection import Database, connect

ACK_ORDERS = ("strict", "hold", "lenient")


def check(database: Database, clock: MovableClock, policy: str, ack_order: str, examples: int) -> None:
    facts = {"policy": policy, "ack_order": ack_order, "database": database, "clock": clock}
    machine: type[GroupRules] = type(f"{policy}_{ack_order}", (GroupRules,), facts)
    # To explain a failure takes longer than a test may, and then hides it.
    phases = [phase for phase in Phase if phase is not Phase.explain]
    chosen = settings(max_examples=examples, stateful_step_count=30, deadline=None, phases=phases)
    run_state_machine_as_test(machine, settings=chosen)


@pytest.fixture
def hasty(sqlite_url: str, tmp_path: Path, clock: MovableClock) -> Generator[Database]:
    """Give a database that does not wait for the disk: nothing here is to survive a power cut."""
    with connect(sqlite_url, tmp_path / "ledgers", clock=clock) as database:
        event.listen(database.backend.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))
        database.backend.close()  # connections that were opened before
        yield database


@pytest.mark.parametrize("ack_order", ACK_ORDERS)
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_in_any_order_of_events_groups_keep_their_rules(
    hasty: Database, clock: MovableClock, policy: str, ack_order: str
) -> None:
    check(hasty, clock, policy, ack_order, 3)


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.parametrize("server", ["postgresql_server", "mariadb_server"])
def test_in_any_order_of_events_groups_keep_their_rules_on_servers(
    server: str, policy: str, tmp_path: Path, clock: MovableClock, request: pytest.FixtureRequest
) -> None:
    service: Service = request.getfixturevalue(server)
    with service.new_database() as url, connect(url, tmp_path / "ledgers", clock=clock) as database:
        check(database, clock, policy, "hold", 2)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("ack_order", ACK_ORDERS)
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_in_any_order_of_events_for_long_groups_keep_their_rules(
    database: Database, clock: MovableClock, policy: str, ack_order: str
) -> None:
    check(database, clock, policy, ack_order, 200)
