"""Counts a table's purged messages, and the deliveries of rows that were removed or reset.

The epoch of a row counts its deliveries, so claims need not update a counter. An operation that removes a row or resets
its epoch adds the old epoch to the table's total in the same transaction. So the total plus the epochs of all rows is
the exact number of deliveries.
"""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import totals
from waterclock.database.sql_connection import SqlConnection


def add_totals(connection: SqlConnection, table_id: int, *, purged: int = 0, sent: int = 0) -> None:
    """Add to a table's totals. Do it last in a transaction: all transactions that remove rows wait for this row."""
    if purged or sent:
        connection.execute(
            sa.update(totals)
            .where(totals.c.table_id == table_id)
            .values(purged=totals.c.purged + purged, sent=totals.c.sent + sent)
        )


def start_totals(connection: sa.Connection, table_id: int) -> None:
    connection.execute(sa.insert(totals).values(table_id=table_id, purged=0, sent=0, rate_next=0))


def drop_totals(connection: sa.Connection, table_id: int) -> None:
    connection.execute(sa.delete(totals).where(totals.c.table_id == table_id))
