"""While a transaction holds an old snapshot, MariaDB locks messages by their seqs, and no entries of finished work."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import Statement, statements_of
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run
from tests.tables.plans import pages

from waterclock.connection import Database
from waterclock.tables.groups.group_state import lock_groups
from waterclock.tables.keys.key_rows import _first_due
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.upkeep.reconcile import heal
from waterclock.time import MAX_NS

pytestmark = [pytest.mark.parametrize("database_url", ["mariadb"], indirect=True), pytest.mark.both_servers]

FINISHED = 600
KEYS = 8


def pass_through(table: MessageTable, **message: str) -> None:
    table.put_many([{"payload": "x", **message}] * FINISHED)
    while claimed := table.receive(100):
        table.ack(claimed)


def locked_otherwise(database: Database, seen: list[Statement], table: str = "orders") -> list[dict[str, Any]]:
    """Return the steps of plans that lock rows of a table that they find otherwise than by key.

    Pages are not counted: a search without locks reads as many as one with locks while another transaction, such as
    one of another test, has changed something and goes on.
    """
    locking = [one for one in seen if "FOR UPDATE" in one[0]]
    assert locking
    steps = [step for one in locking for step in plan(database, *one)]
    found = [one for one in steps if one["table"] == table and "SUBQUERY" not in one["select_type"]]
    return [one for one in found if not by_key(one)]


def pages_while_another_writes(database: Database, text: str, values: Any) -> int:
    """Count the pages that a statement reads while it has to look up the message of each entry that it passes."""
    with database.backend.engine.begin() as other:
        other.exec_driver_sql("INSERT INTO orders (message) VALUES ('x')")
        read = pages(database, text, values)
        other.rollback()
    return read


def plan(database: Database, text: str, values: Any) -> list[dict[str, Any]]:
    with database.backend._indexed_writer.connect() as connection:
        return [dict(row) for row in connection.exec_driver_sql("EXPLAIN " + text, values).mappings()]


def by_key(step: dict[str, Any]) -> bool:
    return step["key"] == "PRIMARY" and step["type"] in ("eq_ref", "const", "range")


def by_position(step: dict[str, Any]) -> bool:
    """Say whether a step of a plan begins at a position in a group: it uses all three columns of the index."""
    return step["key"] == "orders_group_idx" and int(step["key_len"]) > 1032


@pytest.mark.usefixtures("held")
def test_a_claim_locks_no_finished_messages(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table()
    pass_through(table)
    table.put("x")
    with statements_of(database.backend, "orders") as seen:
        [delivery] = table.receive(10)
    delivery.ack()
    with statements_of(database.backend, "orders") as seen_in_vain:
        assert table.receive(10) == []
    assert not locked_otherwise(database, seen + seen_in_vain)


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("held")
def test_settling_a_group_begins_at_its_head(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    pass_through(table, group="a")
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    [first] = table.receive(1)
    with statements_of(database.backend) as seen:
        table.ack([first])
    [(text, values)] = [one for one in seen if re.match(r"UPDATE waterclock_groups .*SET head=", one[0])]
    assert pages_while_another_writes(database, text, values) < FINISHED


@pytest.mark.parametrize(
    "options", [{"groups": "sequenced"}, {"groups": "exclusive"}, {"groups": "sequenced", "ack_order": "hold"}]
)
@pytest.mark.usefixtures("written")
def test_no_statement_passes_the_finished_messages_of_groups(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, Any]
) -> None:
    table = make_table(**options)
    new = [{"payload": "x", "group": group} for group in "abcde"]
    table.put_many(new * (FINISHED // 5))
    while finished := table.receive(100):
        table.ack(finished)
    with database.backend.engine.connect() as connection:  # after it, the server believes that few are unacked
        connection.exec_driver_sql("ANALYZE TABLE orders").close()
    table.put_many(new * 4)
    table.context.reached.saved.checked_whole_at = database.backend.now()
    whole_groups: dict[str, list[dict[str, Any]]] = {}

    def watched(call: Callable[[], Any]) -> Any:
        with statements_of(database.backend) as seen:
            result = call()
        # Not counted as pages: the server compares the positions of entries before it looks up their messages.
        for text, values in [one for one in seen if "position" in one[0] and "routed" not in one[0]]:
            steps = [step for step in plan(database, text, values) if "orders" in f"{step['table']} {step['key']}"]
            found = [step for step in steps if not (by_position(step) or by_key(step))]
            if found and "closes_group" not in text:  # one that closes a group may be far behind its first message
                whole_groups[text] = found
        return result

    claimed = watched(lambda: table.receive(10))
    claimed += watched(lambda: table.receive(5))  # an exclusive group has messages leased by then
    for one in reversed(claimed) if "ack_order" in options else claimed:
        watched(partial(table.ack, [one]))
    table.context.sweeps.due_at = 0
    assert not watched(lambda: heal(table.context))
    assert not whole_groups


def test_a_claim_passes_all_messages_that_others_have_locked(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(payload="text")
    table.put_many([{"payload": str(number)} for number in range(10)])
    with database.backend.engine.begin() as other:
        other.execute(sa.text("SELECT seq FROM orders WHERE message < '7' FOR UPDATE"))
        assert [one.payload for one in table.receive(2)] == ["7", "8"]
        other.rollback()
    assert [one.payload for one in table.receive(3)] == ["0", "1", "2"]


@pytest.mark.parametrize("options", [{}, {"ack_order": "hold"}])
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("held")
def test_a_claim_of_groups_locks_no_finished_messages(
    make_table: Callable[..., MessageTable], database: Database, policy: str, options: dict[str, str]
) -> None:
    table = make_table(groups=policy, **options)
    pass_through(table, group="a")
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    with statements_of(database.backend, "orders") as seen:
        claimed = table.receive(10)
        table.ack(claimed)
    assert len(claimed) == 2
    assert not locked_otherwise(database, seen)


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("held")
def test_a_claim_reads_only_the_next_messages_of_a_group(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    new = [{"payload": "x", "group": f"g{number}"} for number in range(100)]
    table.put_many(new * (FINISHED // 100))
    table.ack(table.receive(FINISHED))
    table.put_many(new)
    with statements_of(database.backend, "orders") as seen:
        assert len(table.receive(100)) == 100
    *_, (text, values) = [one for one in seen if "JOIN orders AS unlocked" in one[0]]
    [search] = [one for one in plan(database, text, values) if one["table"] == "unlocked"]
    assert int(search["rows"]) < FINISHED / 2


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("held")
def test_a_claim_locks_no_ended_groups(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    table.put_many([{"payload": "x", "group": f"g{number}"} for number in range(200)])
    claimed = table.receive(100)
    with statements_of(database.backend) as seen:
        table.ack(claimed)
        assert len(table.receive(100)) == 100
    assert not locked_otherwise(database, seen, "waterclock_groups")


def test_a_claim_passes_all_groups_that_others_have_locked(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(payload="text", groups="sequenced")
    table.put_many([{"payload": str(number), "group": f"g{number}"} for number in range(9)])
    [first] = table.receive(1)  # routes the others, too
    first.nack(delay=0)
    with database.backend.engine.begin() as other:
        lock_groups(table.context, other, [f"g{number}" for number in range(7)])
        assert [one.payload for one in table.receive(2)] == ["7", "8"]
        other.rollback()
    assert [one.payload for one in table.receive(2)] == ["0", "1"]


@pytest.mark.usefixtures("bounds_stay")
def test_a_claim_takes_no_more_statements_the_more_groups_others_have_locked(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(payload="text", groups="sequenced")
    table.put_many([{"payload": str(number), "group": f"g{number}"} for number in range(40)])
    [first] = table.receive(1)  # routes the others, too
    first.nack(delay=0)

    def statements_beside(locked: int) -> int:
        with database.backend.engine.begin() as other:
            lock_groups(table.context, other, [f"g{number}" for number in range(locked)])
            with statements_of(database.backend) as seen:
                [claimed] = table.receive(1)
            other.rollback()
        claimed.nack(delay=0)
        return len(seen)

    few = statements_beside(3)
    assert statements_beside(30) <= few + 2


@pytest.mark.usefixtures("held")
def test_an_ack_in_a_table_with_partitions_finds_messages_by_their_keys(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(purge_by="partition")
    pass_through(table)
    with database.backend.engine.connect() as connection:  # after it, the server believes that few are unacked
        connection.exec_driver_sql("ANALYZE TABLE orders").close()
    table.put_many([{"payload": "x"}] * 50)
    claimed = table.receive(50)
    with statements_of(database.backend, "orders") as seen:
        table.ack(claimed)
    [(text, values)] = [one for one in seen if "SET time_acked" in one[0]]
    assert pages(database, text, values) < 2 * FINISHED


@pytest.mark.parametrize("options", [{"fair_by": "group"}, {"limit": {"group": 300}}])
@pytest.mark.usefixtures("held")
def test_a_claim_of_keys_locks_no_finished_messages(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, Any]
) -> None:
    table = make_table(**options)
    pass_through(table, group="a")
    table.put("x", group="a")
    with statements_of(database.backend, "orders") as seen:
        [delivery] = table.receive(10)
        delivery.ack()
        assert table.receive(10) == []
    assert not locked_otherwise(database, seen)


@pytest.mark.usefixtures("held")
def test_a_search_for_messages_of_a_key_ends_at_its_finished_messages(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(fair_by="group")
    for number in range(KEYS):
        pass_through(table, group=f"g{number}")

    def pages_of(key: str) -> int:
        values = {"key": key, "priority": 0, "low": clock.now, "until": MAX_NS}
        with statements_of(database.backend, "orders") as seen, database.backend.snapshot() as connection:
            assert connection.execute(_first_due(table.context, checks=False), values).all() == [(None, 0)]
        return pages(database, *seen[0])

    # The first key is not followed by the entries of all others. If others write, more pages are read for each entry.
    assert pages_of("g0") < 2 * pages_of(f"g{KEYS - 1}")


def test_a_claim_of_keys_passes_messages_that_others_have_locked(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group", payload="text")
    table.put_many([{"payload": str(number), "group": "a"} for number in range(10)])
    with database.backend.engine.begin() as other:
        other.execute(sa.text("SELECT seq FROM orders WHERE message < '7' FOR UPDATE"))
        assert [one.payload for one in table.receive(2)] == ["7", "8"]
        other.rollback()
    assert [one.payload for one in table.receive(3)] == ["0", "1", "2"]


def put_twice(table: MessageTable, keys: int) -> None:
    """Put two messages of each of so many keys, and handle the first ones, so that all keys wait for their turns."""
    names = [f"{number:02}" for number in range(keys)] * 2
    table.put_many([{"payload": name, "group": name} for name in names])
    table.ack(table.receive(keys))


@pytest.mark.parametrize("options", [{"fair_by": "group"}, {"limit": {"group": 9}}, {"rate": {"group": "1000000/s"}}])
@pytest.mark.usefixtures("held")
def test_a_claim_locks_no_earlier_turns_of_keys(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, options: dict[str, Any]
) -> None:
    table = make_table(**options)
    put_twice(table, 20)
    with statements_of(database.backend) as seen:
        table.ack(table.receive(20))
        clock.move("10min")
        assert table.receive(20) == []  # all keys have slept
    assert not locked_otherwise(database, seen, "waterclock_message_keys")


@pytest.mark.usefixtures("held")
def test_a_claim_passes_keys_that_others_have_locked_and_locks_no_earlier_turns(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group", payload="text")
    put_twice(table, 20)
    for _ in range(FINISHED // 20):
        run(database, "UPDATE waterclock_message_keys SET turn = turn + 20")
    change = (
        "UPDATE waterclock_message_keys SET turn = turn + 1 WHERE table_id = :table AND message_key IN ('00', '01')"
    )
    with database.backend.engine.begin() as other:
        other.execute(sa.text(change), {"table": table.context.table_id})
        with statements_of(database.backend, "waterclock_message_keys") as seen:
            assert [one.payload for one in table.receive(2)] == ["02", "03"]
        [locking] = [one for one in seen if one[0].startswith("SELECT STRAIGHT_JOIN")]
        assert pages(database, *locking) < FINISHED / 3  # some for each of the keys that it finds
        other.rollback()
    assert [one.payload for one in table.receive(2)] == ["00", "01"]
