"""On MariaDB, names, ids and groups that end with spaces differ from those that do not."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import DDL

revision = "0008"
down_revision = "0007"

_OURS = ("id", "group_id", "consumer", "headers", "last_error", "message")
_COLUMNS = sa.text(
    "SELECT column_name AS name, column_type AS type, is_nullable AS nullable, column_default AS preset,"
    " character_set_name AS charset, column_comment AS comment FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND table_name = :table"
    " AND collation_name LIKE '%\\_bin' AND collation_name NOT LIKE '%\\_nopad\\_bin' ORDER BY ordinal_position"
)
_CHECKED = sa.text(  # JSON is a text with such a constraint, which a change of the column would take away
    "SELECT constraint_name FROM information_schema.check_constraints"
    " WHERE constraint_schema = DATABASE() AND table_name = :table AND level = 'Column'"
)
_STRAYS = (
    # In the order of their seq they come behind what their own group has, as if plain SQL had changed their group.
    """
    UPDATE %(table)s AS stray LEFT JOIN waterclock_groups AS own
        ON own.table_id = %(id)s AND own.group_id = stray.group_id
    SET stray.routed = 0, stray.position = NULL
    WHERE stray.group_id IS NOT NULL AND own.group_id IS NULL
        AND stray.time_acked IS NULL AND stray.routed = 1 AND stray.position IS NOT NULL""",
    # The next claim looks at the groups that they leave, and notes those anew.
    """
    UPDATE waterclock_groups AS left_one JOIN (
        SELECT DISTINCT TRIM(TRAILING ' ' FROM group_id) AS stem FROM %(table)s
        WHERE time_acked IS NULL AND routed = 0 AND group_id IS NOT NULL
    ) AS strays ON strays.stem = TRIM(TRAILING ' ' FROM left_one.group_id)
    SET left_one.ready_at = 0
    WHERE left_one.table_id = %(id)s""",
)


def upgrade() -> None:
    """Compare by bytes, with those of spaces at the end: in the catalogue and in message tables, since they are joined.

    Elsewhere there is nothing to do.
    """
    connection = op.get_bind()
    if not getattr(connection.dialect, "is_mariadb", False):
        return
    tables = sa.table("waterclock_message_tables", *map(sa.column, ("table_id", "name", "options")))
    found = connection.execute(sa.select(tables.c.table_id, tables.c.name, tables.c.options)).all()
    for name in sa.inspect(connection).get_table_names():
        if name.startswith("waterclock_"):
            _convert(connection, name, None)
    for row in found:
        options: Mapping[str, Any] = json.loads(row.options)
        texts = [name for name, kind in (options.get("columns") or {}).items() if kind == "text"]
        _convert(connection, row.name, {*_OURS, *texts})
        if options.get("groups") and sa.inspect(connection).has_table(row.name):
            quoted = connection.dialect.identifier_preparer.quote(row.name)
            for statement in _STRAYS:
                connection.execute(DDL(statement, context={"table": quoted, "id": f"{row.table_id:d}"}))


def _convert(connection: sa.Connection, table: str, names: Collection[str] | None) -> None:
    """Give columns, all or those of these names, the collation without padding; in one statement, done or not."""
    checked = set(connection.scalars(_CHECKED, {"table": table}))
    columns = [
        column
        for column in connection.execute(_COLUMNS, {"table": table}).mappings()
        if column["name"] not in checked and (names is None or column["name"] in names)
    ]
    if columns:
        quote = connection.dialect.identifier_preparer.quote
        changes = ", ".join(_changes(connection, columns)).replace("%", "%%")
        connection.execute(DDL(f"ALTER TABLE %(table)s {changes}", context={"table": quote(table)}))


def _changes(connection: sa.Connection, columns: Iterable[sa.RowMapping]) -> Iterable[str]:
    for column in columns:
        comment = sa.literal(column["comment"], sa.String).compile(connection, compile_kwargs={"literal_binds": True})
        yield (
            f"MODIFY COLUMN {connection.dialect.identifier_preparer.quote(column['name'])} {column['type']}"
            f" CHARACTER SET {column['charset']} COLLATE {column['charset']}_nopad_bin"
            f" {'NULL' if column['nullable'] == 'YES' else 'NOT NULL'}"
            f"{'' if column['preset'] is None else ' DEFAULT ' + column['preset']}"
            f" COMMENT {comment}"
        )
