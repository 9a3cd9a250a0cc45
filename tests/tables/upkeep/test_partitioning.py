from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run
from tests.tables.received import payloads

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.days import DAY

Make = Callable[..., MessageTable]


pytestmark = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture
def by_day(make_table: Make) -> MessageTable:
    return make_table(purge_by="partition", purge_after="1d")


def days_of(table: MessageTable) -> dict[str, list[int]]:
    """List the ids of acked messages by the partition they are in."""
    context = table.context
    with context.backend.engine.connect() as connection:
        if context.backend.dialect.name == "postgresql":
            found = connection.execute(
                sa.text("SELECT tableoid::regclass::text, id FROM orders WHERE time_acked IS NOT NULL ORDER BY id")
            ).all()
            return grouped((name.removeprefix("orders_"), message_id) for name, message_id in found)
        names = connection.scalars(
            sa.text("SELECT partition_name FROM information_schema.partitions WHERE table_name = 'orders'"
                    " AND table_schema = DATABASE() AND partition_name <> 'p_open'")
        ).all()  # fmt: skip
        rows: list[tuple[str, int]] = []
        for name in names:
            part = sa.table("orders", sa.column("id"))
            ids = connection.scalars(sa.select(part.c.id).with_hint(part, f"PARTITION ({name})").order_by(part.c.id))
            rows += [(name.removeprefix("p").removeprefix("_"), message_id) for message_id in ids]
        return grouped(rows)


def grouped(pairs: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, message_id in pairs:
        found.setdefault(name, []).append(message_id)
    return found


def put_numbers(table: MessageTable, *ids: int) -> None:
    table.put_many([{"payload": str(number), "id": number} for number in ids])


def test_a_table_with_partitions_does_what_others_do(by_day: MessageTable, clock: MovableClock) -> None:
    assert by_day.put("a") == 1
    put_numbers(by_day, 5, 6, 7)
    deliveries = by_day.receive()
    deliveries[0].ack()
    deliveries[1].nack("1s")
    deliveries[2].extend("5m")
    assert by_day.ack([6, 7]) == 2
    assert by_day.explain(7).state == "acked"
    clock.move("1s")
    assert payloads(by_day) == ["5"]
    by_day.reschedule(5, clock.now)
    assert payloads(by_day) == ["5"]
    stats = by_day.stats()
    assert (stats.in_flight, stats.acked) == (1, 3)
    by_day.drop()


def test_acks_go_to_the_partition_of_their_day_for_every_way_to_ack(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(by_day, 1, 2, 3)
    today = clock.now // DAY
    by_day.ack(1)
    clock.move("1d")
    by_day.ack(2)
    statement = "UPDATE orders SET time_acked = :now, time_next = NULL WHERE id IN (3) AND time_acked IS NULL"
    assert run(database, statement, now=clock.now) == 1
    assert days_of(by_day) == {str(today): [1], str(today + 1): [2, 3]}


def test_purging_drops_exactly_the_old_days(by_day: MessageTable, clock: MovableClock) -> None:
    today = clock.now // DAY
    for day in range(4):
        put_numbers(by_day, 10 * day + 1, 10 * day + 2)
        by_day.ack([10 * day + 1, 10 * day + 2])
        clock.move("1d")
    put_numbers(by_day, 99)
    # It is some moment of day 4: days 0 to 2 ended more than a day ago.
    assert by_day.purge() == 6
    assert days_of(by_day) == {str(today + 3): [31, 32]}
    assert by_day.purge() == 0
    assert payloads(by_day) == ["99"]


def test_a_put_of_an_acked_id_is_not_a_new_message_until_it_is_purged(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(by_day, 7, 8)
    by_day.ack(7)
    clock.move("1d")
    assert by_day.put_many([{"payload": "x", "id": one} for one in (6, 7, 8, 9)]).existing == [7, 8]
    with database.backend.engine.begin() as connection:
        assert by_day.put_many(
            [{"payload": "y", "id": 7}, {"payload": "y", "id": 10}], connection=connection
        ).existing == [7]
    with pytest.raises(sa.exc.IntegrityError, match="was acked"):
        run(database, "INSERT INTO orders(id, message) VALUES (7, 'x')")
    with pytest.raises(sa.exc.IntegrityError, match="was acked"):
        run(database, "INSERT INTO orders(id, message) VALUES (11, 'x'), (7, 'x')")
    with pytest.raises(sa.exc.IntegrityError):
        run(database, "INSERT INTO orders(id, message) VALUES (8, 'x')")
    assert sorted(payloads(by_day)) == ["8", "x", "x", "y"]
    clock.move("3d")
    by_day.purge()
    assert by_day.put_many([{"payload": "new", "id": 7}]).existing == []


def test_a_put_that_waits_for_an_ack_of_the_same_id_finds_it_acked(by_day: MessageTable, database: Database) -> None:
    put_numbers(by_day, 7)
    found: list[Any] = []
    with database.backend.engine.connect() as acker:
        by_day.ack(7, connection=acker)
        putter = threading.Thread(target=lambda: found.append(by_day.put_many([{"payload": "x", "id": 7}])))
        putter.start()
        putter.join(0.3)
        acker.commit()
        putter.join()
    assert found[0].existing == [7]
    assert by_day.receive() == []


def test_an_ack_that_is_taken_back_by_plain_sql_is_delivered_again(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(by_day, 7)
    by_day.ack(7)
    run(database, "UPDATE orders SET time_acked = NULL WHERE id = 7")
    catch_up(clock)
    assert payloads(by_day) == ["7"]


def test_an_ack_of_a_day_without_a_partition_is_kept_and_purged_in_time(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(by_day, 1, 2)
    put_numbers(by_day, 3)
    run(database, "UPDATE orders SET time_acked = :far, time_next = NULL WHERE id = 3", far=clock.now + 1000 * DAY)
    clock.move("30d")
    by_day.ack(1)
    assert days_of(by_day) == {"undated": [1, 3]}
    assert by_day.purge() == 0
    by_day.ack(2)
    assert days_of(by_day) == {str(clock.now // DAY): [1, 2], "undated": [3]}
    clock.move("3d")
    assert by_day.purge() == 2
    clock.move("1000d")
    purged = by_day.purge()
    clock.move("3d")  # MariaDB keeps what was acked on days between partitions in the next one
    assert purged + by_day.purge() == 1
    assert by_day.stats().acked == 0


def test_partitions_for_days_to_come_are_made_by_every_way_to_purge(by_day: MessageTable, clock: MovableClock) -> None:
    put_numbers(by_day, 1)
    clock.move("5d")
    with by_day.subscribe() as deliveries:
        delivery = next(deliveries)
        clock.move("7d")
        delivery.ack()
    assert days_of(by_day) == {str(clock.now // DAY): [1]}


def test_consumers_continue_while_days_are_dropped_by_several_at_once(
    by_day: MessageTable, clock: MovableClock
) -> None:
    total = 0
    for day in range(3):
        put_numbers(by_day, *range(100 * day, 100 * day + 50))
        by_day.ack(range(100 * day, 100 * day + 50))
        clock.move("1d")
    clock.move("3d")
    put_numbers(by_day, *range(1000, 1200))
    purged: list[int] = []
    purgers = [threading.Thread(target=lambda: purged.append(by_day.purge())) for _ in range(3)]
    for purger in purgers:
        purger.start()
    while deliveries := by_day.receive(20):
        total += by_day.ack(deliveries)
    for purger in purgers:
        purger.join()
    purged.append(by_day.purge())
    assert total == 200
    assert sum(purged) == 150
    assert by_day.stats().acked == 200


def test_a_day_whose_table_is_locked_is_left_for_later(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(by_day, 1, 2)
    by_day.ack(1)
    clock.move("5d")
    with database.backend.engine.connect() as reader:
        reader.execute(sa.text("SELECT * FROM orders")).all()
        assert by_day.purge() == 0
        assert by_day.ack(2) == 1
        reader.rollback()
    assert by_day.purge() == 1


def test_groups_keep_their_order_in_a_table_with_partitions(make_table: Make, database: Database) -> None:
    table = make_table(purge_by="partition", groups="sequenced")
    table.put_many([{"payload": str(number), "group": "a"} for number in range(4)])
    table.receive(1)[0].ack()
    assert payloads(table, 1) == ["1"]
    run(database, "UPDATE orders SET time_acked = 1, time_next = NULL WHERE id = 2 AND time_acked IS NULL")
    assert payloads(table, 1) == ["2"]


def test_tables_that_cannot_have_partitions_are_refused(make_table: Make, database: Database) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"^purge_by must .*, got 'weekly'"):
        make_table(purge_by="weekly")
    with pytest.raises(
        wc.InvalidArgumentError, match=r"^name must have at most \d+ characters for a table with partitions.*, got 'x+'"
    ):
        make_table("x" * 41, purge_by="partition")
    run(database, "CREATE TABLE orders(id bigint)")
    with pytest.raises(wc.InvalidArgumentError, match=r"^purge_by must "):
        make_table(purge_by="partition", adopt=True)


@pytest.mark.parametrize("moment", [1, 2, 3, 5])
def test_a_purge_that_is_interrupted_anywhere_loses_nothing_and_is_completed_by_the_next(
    by_day: MessageTable, database: Database, clock: MovableClock, moment: int
) -> None:
    put_numbers(by_day, 1, 2)
    by_day.ack(1)
    clock.move("5d")
    seen = 0

    def break_off(_c: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal seen
        if statement.lstrip().startswith(("ALTER", "CREATE", "DROP", "SET", "SELECT count")):
            seen += 1
            if seen == moment:
                raise ZeroDivisionError

    engine = database.backend.engine
    sa.event.listen(engine, "before_cursor_execute", break_off)
    try:
        by_day.purge()
    except ZeroDivisionError:
        pass
    finally:
        sa.event.remove(engine, "before_cursor_execute", break_off)
    by_day.purge()
    stats = by_day.stats()
    assert (stats.ready, stats.acked) == (1, 0)
    assert payloads(by_day) == ["2"]
