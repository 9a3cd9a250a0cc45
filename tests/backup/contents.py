"""What a database holds, in a form that can be compared: every message of every topic, every row, every group."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.message import Message
from waterclock.tables.groups.info import GroupInfo

# What a restored copy has of its own: the store of its ledger files.
_OWN_TABLES = ("waterclock_stores",)
_OWN_COLUMNS = ("store_id",)


def messages(database: Database) -> dict[str, list[Message]]:
    """Read every topic; a message is equal to another one with the same position, times, headers and payload."""
    return {name: list(database.topic(name).read()) for name in database.topics()}


def rows(engine: sa.Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Read every row of every table, of any owner."""
    metadata = sa.MetaData()
    found: dict[str, list[tuple[Any, ...]]] = {}
    with engine.connect() as connection, connection.begin():
        metadata.reflect(connection)
        for name, table in metadata.tables.items():
            columns = [column for column in table.c if column.name not in _OWN_COLUMNS]
            if name not in _OWN_TABLES:
                found[name] = sorted(map(tuple, connection.execute(sa.select(*columns)).all()), key=repr)
    return found


def groups(database: Database) -> dict[str, list[GroupInfo]]:
    """List the groups of every table that has them, with their states, in their order; the clock must stand still."""
    tables = [database.table(name) for name in database.tables()]
    return {table.name: table.groups.list() for table in tables if table.options.groups}


def drained(database: Database, table: str) -> list[tuple[str | None, Any]]:
    """Take and ack all that a table holds, as a fresh consumer; give group and payload of each, in order."""
    opened = database.table(table)
    done: list[tuple[str | None, Any]] = []
    while deliveries := opened.receive(limit=100, consumer="after the restore"):
        for delivery in deliveries:
            done.append((delivery.group, delivery.payload))
            delivery.ack()
    return done


def sent_from(first: int) -> list[Message]:
    """Give ten messages as they are appended, numbered from ``first`` on."""
    return [Message("press", "load", n, b"%d" % n * 9, headers={"n": str(n)}) for n in range(first, first + 10)]


def furnish(database: Database) -> None:
    """Fill a database with some of everything, in every state."""
    topic = database.create_topic("telemetry", roll_after=None)
    topic.subscribe("billing").commit()
    for ledger in range(4):
        for entry in range(2):
            numbers = range(ledger * 20 + entry * 10, ledger * 20 + entry * 10 + 10)
            topic.append(sent_from(numbers[0]), producer="p", sequence=numbers[0])
        if ledger != 3:
            topic.roll()
        if ledger == 1:
            topic.seal()
            topic.compact()
    topic.seal()  # the third; the fourth stays closed
    topic.roll()
    topic.append([Message("press", "load", 80, b"")])
    reader = topic.subscribe("accounts")
    reader.read(limit=15)
    reader.commit()
    database.create_topic("empty")
    orders = database.create_table("orders", payload="json", groups="sequenced", ack_wait="1h")
    orders.put_many([{"payload": {"n": n}, "group": f"g{n % 3}"} for n in range(9)])
    orders.receive(limit=4, consumer="busy")[0].ack()
    orders.groups.pause("g2")
    kept = database.create_table("kept", id_type="uuid", groups="exclusive", columns={"amount": "bigint"})
    kept.put(b"\x00\xff", group="\u00f6", headers={"a": "b"}, amount=7, priority=3)
    plain = database.create_table("plain", payload="text", purge_by="partition" if _on_server(database) else "rows")
    plain.put_many([{"payload": each} for each in ("one", "two", "three")])
    plain.put("later", at="2100-01-01T00:00:00Z")
    plain.receive(limit=1)[0].ack()
    plain.receive(limit=1)[0].nack("1h")
    plain.pause()


def _on_server(database: Database) -> bool:
    return database.backend.dialect.name != "sqlite"
