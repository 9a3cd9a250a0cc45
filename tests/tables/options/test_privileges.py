"""The grants of the how-to page: each role can do its work, and nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.moments import ReadFrom, SteppedHeartbeat, later_each_time
from tests.support.services import Service
from tests.tables.connections.database_programs import ProgramError, run_program

import waterclock as wc
from waterclock._support.moments import replaced
from waterclock.errors import ForbiddenError
from waterclock.tables.consumers import subscription
from waterclock.tables.databases.postgresql.unrouted_keys import last_drawn
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "operation" / "give-every-role-what-it-needs.md"
PASSWORD = "change me"  # noqa: S105  # the page's
ROLES = ("inserter", "producer", "consumer", "auditor")
_HOUR = 3_600_000_000_000
TITLES = {"postgresql": "PostgreSQL", "mariadb": "MariaDB"}


def statements(title: str) -> list[str]:
    blocks = re.findall(rf'```sql title="{title}"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [one.strip() for block in blocks for one in block.split(";") if one.strip()]


class Roles:
    """A database whose owner has made a table, and its roles."""

    def __init__(self, url: str, folder: Path, opened: ExitStack) -> None:
        self.url_of_owner = url
        self._folder = folder
        self._opened = opened
        self.owner = opened.enter_context(wc.connect(url, folder))
        self.orders = self.owner.create_table("orders", payload="text", purge_after="0s")

    def grant(self, title: str, role: str = "") -> None:
        with self.owner.backend.engine.begin() as connection:
            for statement in statements(title):
                if role in statement:
                    connection.exec_driver_sql(statement)

    def url(self, role: str) -> str:
        return (
            sa.make_url(self.url_of_owner).set(username=role, password=PASSWORD).render_as_string(hide_password=False)
        )

    def table(self, role: str) -> MessageTable:
        return self._opened.enter_context(wc.connect(self.url(role), self._folder)).table("orders")


@pytest.fixture(params=["postgresql", "mariadb"])
def roles(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Roles]:
    server: Service = request.getfixturevalue(f"{request.param}_server")
    # Roles belong to the server, and grants to the database, so the database goes first.
    remove = "DROP ROLE IF EXISTS {}" if request.param == "postgresql" else "DROP USER IF EXISTS {}"
    try:
        with server.new_database() as url, ExitStack() as opened:
            made = Roles(url, tmp_path, opened)
            made.grant(TITLES[request.param])
            yield made
    finally:
        engine = sa.create_engine(server.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for role in ROLES:
                connection.exec_driver_sql(remove.format(role))
        engine.dispose()


def refused(operate: Callable[[], object]) -> bool:
    try:
        operate()
    except (ForbiddenError, ProgramError) as error:
        assert re.search(r"(?i)denied", str(error))  # noqa: PT017  # what is looked for is the reason
        return True
    return False


def test_the_inserter_inserts_and_sees_nothing(roles: Roles) -> None:
    run_program(roles.url("inserter"), "INSERT INTO orders(id, message) VALUES (7, 'a');")
    run_program(roles.url("inserter"), "INSERT INTO orders(message) VALUES ('b');")
    for statement in (
        "SELECT id FROM orders",
        "UPDATE orders SET epoch = 0",
        "DELETE FROM orders",
        "DROP TABLE orders",
    ):
        with pytest.raises(ProgramError, match=r"denied|must be owner"):
            run_program(roles.url("inserter"), f"{statement};")
    assert sorted(delivery.payload for delivery in roles.orders.receive()) == ["a", "b"]


def test_the_producer_puts_and_neither_takes_nor_changes_anything(roles: Roles) -> None:
    table = roles.table("producer")
    first = table.put("a")
    assert table.put_many([{"payload": "b", "id": first}, {"payload": "c", "id": 99}]).existing == [first]
    table.put("d")
    assert refused(table.receive)
    assert refused(lambda: table.ack(first))
    assert refused(lambda: table.reschedule(first, 0))
    assert refused(table.pause)
    assert refused(table.drop)
    assert sorted(delivery.payload for delivery in roles.orders.receive()) == ["a", "c", "d"]


def test_the_consumer_takes_acks_and_gives_back_and_neither_puts_nor_removes(roles: Roles) -> None:
    roles.orders.put_many([{"payload": str(number)} for number in range(6)])
    table = roles.table("consumer")
    with table.subscribe(limit=2) as deliveries:
        next(deliveries).ack()
        next(deliveries).nack("0s", error="no tea")
        next(deliveries).extend("5m")
        next(deliveries)
        assert roles.orders.stats().subscribers == 1
    [delivery] = table.receive(1)
    assert table.ack(delivery.id) == 1
    assert table.reschedule(4, 0) == 1
    assert refused(lambda: table.put("a"))
    assert refused(table.purge)
    assert refused(table.pause)
    assert refused(table.drop)
    with pytest.raises(ProgramError, match="denied"):
        run_program(roles.url("consumer"), "UPDATE orders SET message = 'b';")
    assert roles.orders.stats().acked == 2
    assert roles.orders.purge() == 2


def test_a_consumer_that_may_not_delete_still_drops_what_has_expired(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PURGE_EVERY", 0)
    roles.orders.put("tea")
    roles.orders.put("cake")
    with roles.table("consumer").subscribe(limit=1) as deliveries:
        next(deliveries).ack()  # what is acked it may not purge
        for _ in range(2):
            roles.orders.put("stale", at=time.time_ns() + _HOUR, expires_at=time.time_ns() + 2 * _HOUR)
        with roles.owner.backend.engine.begin() as connection:
            connection.execute(sa.text("UPDATE orders SET expires_at = 1 WHERE message = 'stale'"))
        next(deliveries).ack()
        with roles.owner.backend.engine.connect() as connection:
            dropped = "SELECT COUNT(*) FROM orders WHERE time_acked IS NOT NULL AND acked_by = 0"
            assert connection.execute(sa.text(dropped)).scalar_one() == 2


def test_a_consumer_that_may_delete_later_purges_without_a_restart(
    roles: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "PURGE_EVERY", 0)
    roles.orders.put_many([{"payload": str(number)} for number in range(4)])
    with roles.table("consumer").subscribe(limit=1) as deliveries:
        for _ in range(2):
            next(deliveries).ack()
        with roles.owner.backend.engine.begin() as connection:
            connection.exec_driver_sql("GRANT DELETE ON orders TO consumer")
            connection.exec_driver_sql("GRANT SELECT, UPDATE ON waterclock_table_totals TO consumer")
        next(deliveries).ack()
        assert roles.orders.stats().acked == 3
        with replaced(ReadFrom(later_each_time(61_000_000_000))):
            next(deliveries)
        assert roles.orders.stats().acked == 0


def test_a_consumer_that_may_not_write_its_heartbeat_works_uncounted(roles: Roles) -> None:
    with roles.owner.backend.engine.begin() as connection:
        connection.exec_driver_sql("REVOKE INSERT, UPDATE, DELETE ON waterclock_heartbeats FROM consumer")
    roles.orders.put("a")
    with roles.table("consumer").subscribe() as deliveries:
        next(deliveries).ack()
        assert roles.orders.stats().subscribers == 0
    assert roles.orders.stats().acked == 1


def test_a_consumer_that_may_write_its_heartbeat_later_counts_without_a_restart(roles: Roles) -> None:
    rights = "INSERT, UPDATE, DELETE ON waterclock_heartbeats {} consumer"
    with roles.owner.backend.engine.begin() as connection:
        connection.exec_driver_sql(f"REVOKE {rights.format('FROM')}")
    table = roles.table("consumer")
    heartbeat = SteppedHeartbeat(later_each_time(31_000_000_000))
    with table.subscribe():
        beating = process_heartbeat(table.context)
        heartbeat.add(beating)
        with roles.owner.backend.engine.begin() as connection:
            connection.exec_driver_sql(f"GRANT {rights.format('TO')}")
        heartbeat.beat()
        assert roles.orders.stats().subscribers == 0  # it does not ask at each beat
        heartbeat.beat()
        assert roles.orders.stats().subscribers == 1


def test_the_auditor_sees_all_and_changes_nothing(roles: Roles) -> None:
    message_id = roles.orders.put("a")
    table = roles.table("auditor")
    assert table.stats().ready == 1
    assert table.explain(message_id).state == "ready"
    assert [one.payload for one in table.peek()] == ["a"]
    assert refused(table.receive)
    assert refused(lambda: table.put("a"))
    assert refused(lambda: table.ack(message_id))
    assert run_program(roles.url("auditor"), "SELECT message FROM orders;") == "a\n"


@pytest.mark.parametrize("roles", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("title", "options"),
    [("with groups", {"groups": "sequenced"}), ("with keys", {"limit": {"group": 1}}), ("with keys", {"fair_by": "h"})],
)
def test_a_consumer_of_groups_or_keys_needs_their_state(roles: Roles, title: str, options: dict[str, Any]) -> None:
    roles.orders.drop()
    ordered = roles.owner.create_table("orders", payload="text", **options)
    ordered.put_many([{"payload": str(number), "group": "a", "headers": {"h": "1"}} for number in range(3)])
    run_program(roles.url_of_owner, "DROP OWNED BY consumer; DROP ROLE consumer;")
    for granted in ("PostgreSQL", f"PostgreSQL, {title}"):
        roles.grant(granted, "consumer")
    received: list[str] = []
    own = roles.table("consumer")
    own.nack(own.receive(), "0s")
    with own.subscribe() as deliveries:
        for _ in range(3):
            with next(deliveries) as delivery:
                received.append(delivery.payload)
    assert sorted(received) == ["0", "1", "2"]
    if title == "with keys":
        with own.context.backend.engine.connect() as connection:
            assert connection.execute(sa.select(last_drawn(own.context.rows))).scalar_one() > 3


@pytest.mark.parametrize("roles", ["postgresql"], indirect=True)
def test_messages_come_back_if_the_owner_of_a_trigger_may_not_draw_numbers(roles: Roles) -> None:
    """ALTER TABLE … OWNER TO leaves the functions of the triggers with the old owner."""
    roles.orders.drop()
    fair = roles.owner.create_table("orders", payload="text", fair_by="group")
    run_program(roles.url_of_owner, "ALTER FUNCTION orders_moved() OWNER TO inserter;")
    fair.put("x", group="a")
    fair.nack(fair.receive(), "0s")
    assert [one.payload for one in fair.receive()] == ["x"]


@pytest.mark.parametrize("roles", ["postgresql"], indirect=True)
def test_a_consumer_that_moves_dead_letters_needs_both_tables(roles: Roles) -> None:
    roles.orders.drop()
    options = {"dead_letter": "failed", "max_attempts": 1, "on_expired": "dead_letter"}
    table = roles.owner.create_table("orders", payload="text", **options)
    table.put("fails")
    run_program(roles.url_of_owner, "DROP OWNED BY consumer; DROP ROLE consumer;")
    for granted in ("PostgreSQL", "PostgreSQL, with dead letters"):
        roles.grant(granted, "consumer")
    own = roles.table("consumer")
    [delivery] = own.receive()
    delivery.nack(error="no tea")
    table.put("expires", expires_at=time.time_ns() + _HOUR)
    with roles.owner.backend.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE orders SET expires_at = 1")
    assert own.receive() == []
    assert sorted(one.payload for one in roles.owner.table("failed").peek()) == ["expires", "fails"]
