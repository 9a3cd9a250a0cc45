"""Messages that are named like "a1", of group "a"."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable


def put(table: MessageTable, *names: str) -> None:
    table.put_many([{"payload": name, "group": name[0]} for name in names])


def names(deliveries: Iterable[Delivery]) -> list[str]:
    return [delivery.payload for delivery in deliveries]


def lease_until(database: Database, name: str) -> int | None:
    """Say until when a consumer is alive, ns; None: it has left."""
    with database.backend.snapshot() as connection:
        return connection.execute(sa.select(consumers.c.lease_until).where(consumers.c.name == name)).scalar()
