"""New databases with the catalogue in them: copies of one that was migrated, which takes ten times as long."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa

_COPY = "CREATE TABLE %(name)s.%(table)s LIKE %(template)s.%(table)s;"
_FILL = "INSERT INTO %(name)s.%(table)s SELECT * FROM %(template)s.%(table)s;"


def migrate(url: str) -> None:
    """Give an empty database the catalogue."""
    # Imported here, so that a mistake there fails the tests that need it and not the collection of all.
    from waterclock.database.backend import Backend  # noqa: PLC0415

    Backend(url, create=True).close()


def add_next_version(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make the library one version newer until the patch is undone: a migration adds a column to its topics."""
    from waterclock.database import migrating  # noqa: PLC0415

    migrations = folder / "migrations"
    shutil.copytree(Path(migrating.__file__).parent / "migrations", migrations)
    (migrations / "versions" / "0002_next.py").write_text(_NEXT_VERSION)
    patch.setattr(migrating, "_FOLDER", migrations)
    for module in ("migrating", "backend"):
        patch.setattr(f"waterclock.database.{module}.HEAD", "0002")


_NEXT_VERSION = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    there = [] if op.get_context().as_sql else sa.inspect(op.get_bind()).get_columns("waterclock_topics")
    if "colour" not in {column["name"] for column in there}:
        op.add_column("waterclock_topics", sa.Column("colour", sa.String(16)))
    op.execute("UPDATE waterclock_topics SET colour = 'red'")
"""


def sqlite_with_catalogue(path: Path) -> str:
    """Make an SQLite database, and give its URL."""
    path.write_bytes(_migrated_file())
    return f"sqlite:///{path}"


def create_migrated(connection: sa.Connection, name: str, template: str) -> None:
    """Make a database on a server as a copy of one that was migrated, to which no client is connected."""
    quote = connection.dialect.identifier_preparer.quote
    names = {"name": quote(name), "template": quote(template)}
    if connection.dialect.name == "postgresql":
        # By files it takes half as long as by blocks that pass through the log.
        statement = "CREATE DATABASE %(name)s TEMPLATE %(template)s STRATEGY FILE_COPY"
        connection.execute(sa.DDL(statement, context=names))
        return
    connection.execute(sa.DDL("CREATE DATABASE %(name)s", context=names))
    # In one round trip, since there are some twenty tables.
    connection.execute(sa.DDL(f"BEGIN NOT ATOMIC {_copying(connection.engine, template)} END", context=names))


@cache
def _copying(engine: sa.Engine, template: str) -> str:
    """Give the statements that copy a database of MariaDB's that stays as it is; the copy's name is left out."""
    quote = engine.dialect.identifier_preparer.quote
    statements: list[str] = []
    with engine.connect() as connection:
        for table in sa.inspect(connection).get_table_names(schema=template):
            rows = sa.select(sa.literal(1)).select_from(sa.table(table, schema=template)).limit(1)
            has_rows = connection.execute(rows).first() is not None
            names = {"name": "%(name)s", "table": quote(table), "template": quote(template)}
            statements += [statement % names for statement in (_COPY, _FILL)[: 1 + has_rows]]
    return " ".join(statements)


@cache
def _migrated_file() -> bytes:
    """Give what an SQLite database holds once it was migrated."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "waterclock.db"
        migrate(f"sqlite:///{path}")
        assert [each.name for each in Path(folder).iterdir()] == [path.name]  # and so no log of what is not in it yet
        return path.read_bytes()
