"""What a message table's rows do not tell: how many were purged, and the deliveries of rows that are gone.

How often messages were sent is the sum of the epochs of the rows, so that a claim need not count anywhere else. What
removes a row or sets its epoch back moves the difference to the table's total in the same transaction; both together
are exact, and no row is written by every claim.
"""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import totals
from waterclock.database.sql_connection import SqlConnection


def add_totals(connection: SqlConnection, table_id: int, *, purged: int = 0, sent: int = 0) -> None:
    """Add to a table's totals. Do it last in a transaction: every transaction that removes rows waits for this row."""
    if purged or sent:
        connection.execute(
            sa.update(totals)
            .where(totals.c.table_id == table_id)
            .values(purged=totals.c.purged + purged, sent=totals.c.sent + sent)
        )


def start_totals(connection: sa.Connection, table_id: int) -> None:
    """Begin a new table's totals."""
    connection.execute(sa.insert(totals).values(table_id=table_id, purged=0, sent=0, rate_next=0))


def drop_totals(connection: sa.Connection, table_id: int) -> None:
    """Forget a table's totals."""
    connection.execute(sa.delete(totals).where(totals.c.table_id == table_id))
