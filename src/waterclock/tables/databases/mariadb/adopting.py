"""Turns a MariaDB table into a message table.

MariaDB commits at each DDL statement. So one atomic statement changes the table, and all steps before and after that
statement can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.schema import DDL, CreateColumn

from waterclock.errors import SchemaError
from waterclock.tables.model.options import IdType
from waterclock.tables.model.schema import ADOPTED, has_unique_id


def adopt(connection: sa.Connection, rows: sa.Table, id_type: IdType, present: Collection[str], now: str) -> None:
    """Add columns, defaults and the uniqueness of ids."""
    quote = connection.dialect.identifier_preparer.quote
    _check_collations(connection, rows.name, {"group_id"} & set(present) | ({"id"} if id_type == "text" else set()))
    changes = [
        f"ALTER COLUMN time_scheduled SET DEFAULT ({now})",
        f"ALTER COLUMN time_created SET DEFAULT ({now})",
        "MODIFY COLUMN epoch BIGINT NOT NULL DEFAULT 0",
    ]
    for column in rows.columns:
        if column.name in present:
            continue
        if column.name == "seq":
            changes.append(f"ADD COLUMN seq BIGINT NOT NULL AUTO_INCREMENT UNIQUE COMMENT '{ADOPTED}'")
        else:
            changes.append(f"ADD COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}")
    if "priority" in present:
        changes.append("MODIFY COLUMN priority INTEGER NOT NULL DEFAULT 0")
    if id_type == "bigint":
        sequence = sa.Sequence(f"{rows.name}_id_seq")
        sequence.create(connection, checkfirst=True)
        greatest = connection.execute(sa.select(sa.func.max(rows.c.id))).scalar()
        if greatest is not None and greatest > 0:
            named = sa.literal_column(quote(sequence.name))
            connection.execute(sa.select(sa.func.setval(named, greatest)))
        # A table has only one AUTO_INCREMENT column, and that is seq.
        changes.append(f"MODIFY COLUMN id BIGINT NOT NULL DEFAULT NEXTVAL({quote(sequence.name)})")
    elif id_type == "uuid":
        changes.append("ALTER COLUMN id SET DEFAULT (UUID())")
    if not has_unique_id(connection, rows.name):
        changes.append("ADD UNIQUE (id)")
    statement = f"ALTER TABLE %(table)s {', '.join(changes).replace('%', '%%')}"
    connection.execute(DDL(statement, context={"table": quote(rows.name)}))


def _check_collations(connection: sa.Connection, name: str, columns: Collection[str]) -> None:
    facts = sa.table(
        "columns", *map(sa.column, ("table_schema", "table_name", "column_name", "collation_name", "data_type")),
        schema="information_schema",
    )  # fmt: skip
    here = (facts.c.table_schema == sa.func.database()) & (facts.c.table_name == name)
    for column, collation, kind in connection.execute(
        sa.select(facts.c.column_name, facts.c.collation_name, facts.c.data_type).where(
            here, facts.c.column_name.in_(columns)
        )
    ):
        if kind == "char" or not collation.endswith("_nopad_bin"):
            how = "drops trailing spaces" if kind == "char" else f"compares by {collation}"
            wanted = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin" + " NOT NULL" * (column == "id")
            raise SchemaError(
                f"cannot adopt {name!r}: column {column!r} {how}, so different texts may compare equal. Run"
                f" {type_remedy(name, column, wanted)}"
            )


def type_remedy(table: str, column: str, wanted: str) -> str:
    """Return the statement that changes a column's type."""
    return f"ALTER TABLE `{table}` MODIFY COLUMN {column} {wanted}"
