"""On MariaDB, plain SQL's messages get times that are right also in the hour that comes twice in autumn."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_LOCAL = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) * 1000"
_UTC = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)"
_DEFAULTS = sa.text(
    "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = :table"
    " AND column_name IN ('time_created', 'time_scheduled') AND column_default LIKE '%unix_timestamp(%'"
)
_TRIGGERS = sa.text(
    "SELECT trigger_name AS name, action_timing AS time, event_manipulation AS event, action_statement AS body"
    " FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND event_object_table = :table"
    " AND INSTR(action_statement, :local)"
)


def upgrade() -> None:
    """Replace the clock in the defaults and triggers of message tables; on the other databases it was always UTC's."""
    connection = op.get_bind()
    if connection.dialect.name not in ("mysql", "mariadb"):
        return
    tables = sa.table("waterclock_message_tables", sa.column("name"))
    quote = connection.dialect.identifier_preparer.quote
    for name in connection.scalars(sa.select(tables.c.name)).all():
        for column in connection.scalars(_DEFAULTS, {"table": name}).all():
            _run(connection, f"ALTER TABLE {quote(name)} ALTER COLUMN {column} SET DEFAULT {_UTC}")
        for trigger in connection.execute(_TRIGGERS, {"table": name, "local": _LOCAL}).all():
            _run(
                connection,
                f"CREATE OR REPLACE TRIGGER {quote(trigger.name)} {trigger.time} {trigger.event} ON {quote(name)}"
                f" FOR EACH ROW {trigger.body.replace(_LOCAL, _UTC)}",
            )


def _run(connection: sa.Connection, statement: str) -> None:
    connection.exec_driver_sql(statement.replace("%", "%%"))
