"""Partitions a message table on MariaDB: one partition for each day of acks, and one for unacked messages.

In MariaDB, each unique key of a partitioned table must contain the column that chooses the partition, here the day of
the ack. This day is 0 before the ack, so the key makes ids unique among unacked messages. A trigger checks the ids of
acked messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import DDL

from waterclock.tables.model.claims.epochs import times_sent_sql
from waterclock.tables.model.days import DAY, Gone
from waterclock.tables.model.options import IdType

_LATER = "PARTITION p_undated VALUES LESS THAN MAXVALUE"
_STATEMENTS = (
    "ALTER TABLE %(table)s ADD COLUMN acked_day BIGINT NOT NULL DEFAULT 0,"
    " DROP PRIMARY KEY, ADD PRIMARY KEY (seq, acked_day), DROP INDEX id, ADD UNIQUE (id, acked_day)",
    "ALTER TABLE %(table)s PARTITION BY RANGE (acked_day) (PARTITION p_open VALUES LESS THAN (1), %(later)s)",
    """
    CREATE OR REPLACE TRIGGER %(dated)s BEFORE UPDATE ON %(table)s FOR EACH ROW
    SET NEW.acked_day = IF(NEW.time_acked IS NULL, 0, GREATEST(1, NEW.time_acked DIV %(day)s))""",
    """
    CREATE OR REPLACE TRIGGER %(born)s BEFORE INSERT ON %(table)s FOR EACH ROW
    SET NEW.acked_day = IF(NEW.time_acked IS NULL, 0, GREATEST(1, NEW.time_acked DIV %(day)s))""",
    """
    CREATE OR REPLACE TRIGGER %(once)s AFTER INSERT ON %(table)s FOR EACH ROW
    IF NEW.acked_day = 0 AND EXISTS (SELECT 1 FROM %(table)s WHERE id = NEW.id AND acked_day > 0) THEN
        SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = 'a message with this id was acked';
    END IF""",
)


class MariadbDays:
    """Partitions by range. ``create`` creates the table without partitions."""

    def __init__(self, create: Callable[..., None]) -> None:
        self._create = create

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the SQL table with its partitions, except those of days."""
        self._create(connection, rows, id_type, grouped=grouped, free=free)
        quote = connection.dialect.identifier_preparer.quote
        context = {"table": quote(rows.name), "later": _LATER, "day": DAY}
        context |= {verb: quote(f"{rows.name}_{verb}") for verb in ("dated", "born", "once")}
        for statement in _STATEMENTS:
            connection.execute(DDL(statement, context=context))

    def known(self, connection: sa.Connection, name: str) -> list[int]:
        """Return the days that have partitions."""
        names = connection.scalars(
            sa.text(
                "SELECT partition_name FROM information_schema.partitions"
                " WHERE table_schema = DATABASE() AND table_name = :name"
            ),
            {"name": name},
        )
        return [int(one[1:]) for one in names if one[1:].isdigit()]

    def add(self, connection: sa.Connection, name: str, days: Sequence[int]) -> None:
        """Split partitions for days off the last one, with their rows."""
        parts = ", ".join(f"PARTITION p{day:d} VALUES LESS THAN ({day + 1:d})" for day in days)
        self._alter(connection, name, f"REORGANIZE PARTITION p_undated INTO ({parts}, {_LATER})")

    def drop_day(self, connection: sa.Connection, name: str, day: int) -> Gone:
        """Drop a day's partition, and return its totals."""
        table = sa.table(name, sa.column("epoch", sa.BigInteger))
        counted = sa.select(sa.func.count(), sa.func.coalesce(times_sent_sql(table.c.epoch), 0)).select_from(table)
        messages, sent = connection.execute(counted.with_hint(table, f"PARTITION (p{day:d})")).one()
        self._alter(connection, name, f"DROP PARTITION p{day:d}")
        return Gone(messages, int(sent))

    def undated(self, rows: sa.Table) -> sa.Select[Any, Any, Any]:
        """Select seq, time_acked and epoch of the acked messages whose day has no partition."""
        part = sa.table(rows.name, *(sa.column(name, sa.BigInteger) for name in ("seq", "time_acked", "epoch")))
        return sa.select(part.c.seq, part.c.time_acked, part.c.epoch).with_hint(part, "PARTITION (p_undated)")

    def _alter(self, connection: sa.Connection, name: str, change: str) -> None:
        # A transaction that waits for a table's lock blocks all later ones.
        table = connection.dialect.identifier_preparer.quote(name)
        connection.execute(DDL(f"ALTER TABLE %(table)s WAIT 1 {change}", context={"table": table}))
