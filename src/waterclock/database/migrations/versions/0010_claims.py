"""In message tables, the number of a claim has a column of its own name, and so has the claim whose ack it was."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import DDL

from waterclock.database.migrations.steps import add_column
from waterclock.database.types import BigInt
from waterclock.errors import SchemaError

revision = "0010"
down_revision = "0009"

_NEW_NAMES = {"lease": "claim_id", "held_at": "ack_held_at"}
_ADDED = "acked_by"
_TRIGGERS = sa.text(
    "SELECT trigger_name AS name, action_timing AS time, event_manipulation AS event, action_statement AS body"
    " FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table = :table"
    " AND trigger_name = :trigger AND INSTR(action_statement, 'NEW.lease')"
)
_MOVES = (
    # An acked row kept the number, in a group negated. In this order, because MariaDB assigns from left to right.
    "UPDATE %(table)s SET acked_by = ABS(claim_id), claim_id = NULL"
    " WHERE time_acked IS NOT NULL AND claim_id IS NOT NULL",
    # Plain SQL had made an acked message of a group one that is not acked: no claim has that.
    "UPDATE %(table)s SET claim_id = NULL WHERE claim_id < 0",
)


def upgrade() -> None:
    """Rename and add the columns, in triggers too, and move the numbers of acked messages.

    Each step looks whether it is done: MariaDB commits every DDL alone.
    """
    connection = op.get_bind()
    tables = sa.table("waterclock_message_tables", sa.column("name"))
    known = connection.scalars(sa.select(tables.c.name)).all()
    names = sorted(name for name in known if sa.inspect(connection).has_table(name))
    for name in names:  # all of them before the first one changes
        _check_free(connection, name)
    quote = connection.dialect.identifier_preparer.quote
    for name in names:
        context = {"table": quote(name)}
        for old, new in _NEW_NAMES.items():
            if old in _columns(connection, name):
                # SQLite and PostgreSQL rename it in triggers as well.
                connection.execute(DDL(f"ALTER TABLE %(table)s RENAME COLUMN {old} TO {new}", context=context))
        add_column(name, sa.Column(_ADDED, BigInt))
        if connection.dialect.name in ("mysql", "mariadb"):
            _rename_in_trigger(connection, name)
        for statement in _MOVES:
            connection.execute(DDL(statement, context=context))


def _check_free(connection: sa.Connection, name: str) -> None:
    """Refuse a table with a column of the user's that bears one of our new names; nothing is changed then."""
    found = _columns(connection, name)
    taken = [new for old, new in _NEW_NAMES.items() if old in found and new in found]
    if _ADDED in found and not found.isdisjoint(_NEW_NAMES):
        taken.append(_ADDED)
    if taken:
        quote = connection.dialect.identifier_preparer.quote
        raise SchemaError(
            f"message table {name!r}: this version of Waterclock keeps a column {taken[0]!r} of its own; rename yours"
            f" and connect again: ALTER TABLE {quote(name)} RENAME COLUMN {taken[0]} TO …"
        )


def _columns(connection: sa.Connection, name: str) -> set[str]:
    columns = {column["name"] for column in sa.inspect(connection).get_columns(name)}
    # Names that differ in case are different ones on PostgreSQL only.
    return columns if connection.dialect.name == "postgresql" else {column.lower() for column in columns}


def _rename_in_trigger(connection: sa.Connection, table: str) -> None:
    quote = connection.dialect.identifier_preparer.quote
    for trigger in connection.execute(_TRIGGERS, {"table": table, "trigger": f"{table}_moved"}).all():
        body = trigger.body
        for old, new in _NEW_NAMES.items():
            body = re.sub(rf"\b(NEW|OLD)\.{old}\b", rf"\1.{new}", body)
        statement = (
            f"CREATE OR REPLACE TRIGGER {quote(trigger.name)} {trigger.time} {trigger.event} ON {quote(table)}"
            f" FOR EACH ROW {body}"
        )
        connection.exec_driver_sql(statement.replace("%", "%%"))
