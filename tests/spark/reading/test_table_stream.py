"""A message table as a stream: claimed, processed, acked, and the same messages again after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

import waterclock as wc
from waterclock.spark import register
from waterclock.spark.reading.table_read_options import TableReadOptions
from waterclock.spark.reading.table_stream import TableStreamReader


def reader(database: wc.Database, **given: str) -> TableStreamReader:
    url = database.backend.url.render_as_string(hide_password=False)
    return TableStreamReader(
        TableReadOptions.checked({"url": url, "ledgers": database.ledgers, "table": "orders", "tasks": "3", **given})
    )


def tasks(stream: TableStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [[row for batch in stream.read(part) for row in batch.to_pylist()] for part in stream.partitions(start, end)]


@pytest.mark.parametrize("id_type", ["bigint", "text", "uuid"])
def test_a_micro_batch_that_runs_again_has_the_same_messages_and_they_are_acked_when_it_is_finished(
    database: wc.Database, id_type: Any
) -> None:
    table = database.create_table("orders", id_type=id_type)
    names = [
        str(table.put(f"{n}".encode(), headers={"n": str(n)}, id=f"m{n}" if id_type == "text" else None))
        for n in range(5)
    ]
    first = reader(database)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(3))
    rows = [row for task in tasks(first, start, end) for row in task]
    assert sorted(row["payload"] for row in rows) == [b"0", b"1", b"2"]
    assert {row["id"] for row in rows} == set(names[:3])
    assert all(row["epoch"] == 1 and dict(row["headers"])["n"].encode() == row["payload"] for row in rows)
    assert table.stats().acked == 0
    first.stop()

    again = reader(database)
    assert [row for task in tasks(again, start, end) for row in task] == rows
    following = again.latestOffset(end, ReadMaxRows(3))
    assert table.stats().acked == 3
    assert len(following["messages"]) == 2
    again.commit(end)  # Spark says it once more
    assert again.latestOffset(following, ReadMaxRows(3)) == following
    assert table.stats().acked == 5
    again.stop()


def test_the_messages_of_a_group_meet_in_one_task_in_their_order(database: wc.Database) -> None:
    table = database.create_table("orders", groups="sequenced")
    for n in range(40):
        table.put(str(n).encode(), group=f"g{n % 7}")
    stream = reader(database, maxMessagesPerTrigger="100")
    offset = stream.initialOffset()
    seen: dict[str, list[int]] = {}
    while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        where: dict[str, int] = {}
        for number, rows in enumerate(tasks(stream, offset, end)):
            for row in rows:
                assert where.setdefault(row["group"], number) == number
                seen.setdefault(row["group"], []).append(int(row["payload"]))
        offset = end
    stream.stop()
    assert seen == {f"g{g}": list(range(g, 40, 7)) for g in range(7)}
    assert table.stats().acked == 40


def test_available_now_claims_messages_due_at_the_start(database: wc.Database) -> None:
    table = database.create_table("orders")
    table.put(b"early")
    stream = reader(database)
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(10))
    table.put(b"late")
    assert stream.latestOffset(end, ReadMaxRows(10)) == end
    stream.stop()
    assert table.stats().ready == 1


def test_leases_are_prolonged_while_spark_works(connect: Callable[..., wc.Database]) -> None:
    database = connect()
    table = database.create_table("orders", ack_wait="300ms")
    table.put(b"slow")
    stream = reader(database)
    offset = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    ((name, _),) = offset["messages"]
    until = lease_until(table, name)
    while lease_until(table, name) == until:  # a third of the lease later at the most
        pass
    assert lease_until(table, name) > until
    stream.stop()


def lease_until(table: wc.MessageTable, name: int) -> int:
    with table.context.backend.snapshot() as connection:
        return connection.execute(table.context.rows.select().where(table.context.rows.c.id == name)).one().time_next


def test_a_claimed_message_that_an_operator_deleted_is_missed(database: wc.Database) -> None:
    table = database.create_table("orders")
    table.put(b"gone")
    stream = reader(database)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    with table.context.backend.engine.begin() as connection:
        connection.execute(table.context.rows.delete())
    with pytest.raises(wc.NotFoundError, match="was deleted after this stream had claimed it"):
        tasks(stream, stream.initialOffset(), end)
    stream.stop()


def test_a_checkpoint_of_a_table_that_was_removed_and_made_again_acks_nothing_of_the_new_one(
    database: wc.Database,
) -> None:
    database.create_table("orders").put(b"old")
    before = reader(database)
    end = before.latestOffset(before.initialOffset(), ReadMaxRows(1))
    before.stop()
    database.table("orders").drop()
    table = database.create_table("orders")
    table.put(b"new")
    after = reader(database)
    for use in (
        lambda: after.latestOffset(end, ReadMaxRows(1)),
        lambda: after.commit(end),
        lambda: tasks(after, {}, end),
    ):
        with pytest.raises(wc.NotFoundError, match="another message table named 'orders'"):
            use()
    assert table.stats().ready == 1
    after.stop()


def test_spark_empties_a_message_table(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        table = database.create_table("orders", groups="sequenced", payload="json")
        for n in range(6):
            table.put({"n": n}, group=f"g{n % 2}")
        options = {"url": str(database.backend.url), "table": "orders", "maxMessagesPerTrigger": 4}
        seen: list[str] = []

        def note(rows: DataFrame, _: int) -> None:
            seen.extend(row.text for row in rows.selectExpr("CAST(payload AS STRING) text").collect())

        stream = spark.readStream.format("waterclock").options(**options).load().writeStream.foreachBatch(note)
        stream.option("checkpointLocation", f"{tmp_path}/c").trigger(availableNow=True).start().awaitTermination()
        assert sorted(seen) == [f'{{"n": {n}}}' for n in range(6)]
        assert table.stats().acked == 6
        with pytest.raises(PySparkException, match="ordinary SQL table"):
            spark.read.format("waterclock").options(url=str(database.backend.url), table="orders").load().count()
