"""Message tables have a column that says when a message expires, and an index by which those are found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import DDL

from waterclock.errors import SchemaError

revision = "0012"
down_revision = "0011"

_COLUMN = "expires_at"
# On MariaDB, which commits each statement by itself, so that a column of ours is never there without its index.
_AT_ONCE = ("ALTER TABLE %(table)s ADD COLUMN expires_at BIGINT, ADD INDEX %(index)s (time_acked, expires_at, seq)",)
_ONE_BY_ONE = (
    "ALTER TABLE %(table)s ADD COLUMN expires_at BIGINT",
    "CREATE INDEX %(index)s ON %(table)s (time_acked, expires_at, seq) WHERE expires_at IS NOT NULL",
)


def upgrade() -> None:
    """Add both to every table; run again, those that lack them get them."""
    connection = op.get_bind()
    tables = sa.table("waterclock_message_tables", sa.column("name"))
    known = connection.scalars(sa.select(tables.c.name)).all()
    names = sorted(name for name in known if sa.inspect(connection).has_table(name))
    missing = [name for name in names if not _is_there(connection, name)]  # all of them before the first one changes
    quote = connection.dialect.identifier_preparer.quote
    statements = _AT_ONCE if connection.dialect.name in ("mysql", "mariadb") else _ONE_BY_ONE
    for name in missing:
        context = {"table": quote(name), "index": quote(f"{name}_expires_idx")}
        for statement in statements:
            connection.execute(DDL(statement, context=context))


def _is_there(connection: sa.Connection, name: str) -> bool:
    """Say whether a table has our column; SchemaError where it has one of the user's of this name."""
    inspector = sa.inspect(connection)
    # Names that differ in case are different ones on PostgreSQL only.
    exactly = connection.dialect.name == "postgresql"
    columns = {column["name"] if exactly else column["name"].lower() for column in inspector.get_columns(name)}
    if _COLUMN not in columns:
        return False
    if f"{name}_expires_idx" in {index["name"] for index in inspector.get_indexes(name)}:
        return True
    quote = connection.dialect.identifier_preparer.quote
    raise SchemaError(
        f"message table {name!r}: this version of Waterclock keeps a column {_COLUMN!r} of its own; rename yours"
        f" and connect again: ALTER TABLE {quote(name)} RENAME COLUMN {_COLUMN} TO …"
    )
