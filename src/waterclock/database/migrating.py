"""Migrate a database's catalogue to the version of this library, with Alembic."""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.engines.engine_dialect import EngineDialect
from waterclock.errors import SchemaError

HEAD = "0001"
"""The catalogue version that this library needs."""

_VERSION_TABLE = "waterclock_migrations"
_FOLDER = Path(__file__).parent / "migrations"
_upgrading = threading.Lock()


def catalogue_version(connection: sa.Connection) -> str | None:
    """Return the catalogue's version; None if the database has no catalogue."""
    if not sa.inspect(connection).has_table(_VERSION_TABLE):
        return None
    versions = sa.table(_VERSION_TABLE, sa.column("version_num", sa.String))
    return connection.execute(sa.select(versions.c.version_num)).scalar()


def check_version(version: str, name: str) -> None:
    """Raise a SchemaError if a catalogue has another version than this library needs; ``name`` is the database."""
    if version > HEAD:
        raise SchemaError(
            f"cannot open {name}: its catalogue has version {version}, and this Waterclock only supports versions up"
            f" to {HEAD}. Update waterclock"
        )
    if version < HEAD:
        raise SchemaError(
            f"cannot open {name}: its catalogue has version {version}, and this Waterclock needs {HEAD}. Run"
            " 'waterclock db migrate'"
        )


def migrate(connection: sa.Connection, dialect: EngineDialect) -> None:
    """Migrate the catalogue to `HEAD`; one process at a time, and not if it is newer."""
    dialect.lock_migrations(connection)
    try:
        version = catalogue_version(connection)  # another process may have migrated meanwhile
        if version is None or version < HEAD:
            _upgrade(connection)
    finally:
        dialect.unlock_migrations(connection)


def _upgrade(connection: sa.Connection) -> None:
    # One thread at a time, even for different databases: Alembic's state is a module.
    with moments.holding(_upgrading):
        _upgrade_alone(connection)


def _upgrade_alone(connection: sa.Connection) -> None:
    # Alembic takes a quarter of a second to import, and nearly every start has nothing to migrate.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = _VERSION_TABLE
    command.upgrade(config, HEAD)
