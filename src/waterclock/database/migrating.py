"""Migrates a database's catalogue to the schema of this version of the library, with Alembic."""

from __future__ import annotations

import threading
from io import StringIO
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.engines.engine_dialect import EngineDialect
from waterclock.errors import SchemaError

HEAD = "0001"  # the catalogue version that this library needs

_VERSION_TABLE = "waterclock_migrations"
_FOLDER = Path(__file__).parent / "migrations"
_upgrading = threading.Lock()  # one thread at a time, even for different databases: Alembic's state is a module


def catalogue_version(connection: sa.Connection) -> str | None:
    """Return the catalogue's version; None if the database has no catalogue."""
    if not sa.inspect(connection).has_table(_VERSION_TABLE):
        return None
    versions = sa.table(_VERSION_TABLE, sa.column("version_num", sa.String))
    return connection.execute(sa.select(versions.c.version_num)).scalar()


class CatalogueVersionError(SchemaError):
    """A catalogue has another version than this library needs."""

    def __init__(self, message: str, version: str) -> None:
        super().__init__(message)
        self.version = version  # the catalogue's


def check_version(version: str, name: str) -> None:
    """Raise a CatalogueVersionError unless a catalogue has the needed version; ``name`` is the database."""
    if version > HEAD:
        raise CatalogueVersionError(
            f"cannot open {name}: its catalogue has version {version}, and this Waterclock only supports versions up"
            f" to {HEAD}. Update waterclock",
            version,
        )
    if version < HEAD:
        raise CatalogueVersionError(
            f"cannot open {name}: its catalogue has version {version}, and this Waterclock needs {HEAD}. Run"
            " 'waterclock db migrate'",
            version,
        )


def migrate(connection: sa.Connection, dialect: EngineDialect) -> None:
    """Migrate the catalogue to `HEAD`; one process at a time, and not if it is newer."""
    dialect.lock_migrations(connection)
    try:
        version = catalogue_version(connection)  # another process may have migrated meanwhile
        if version is None or version < HEAD:
            config = _config()
            config.attributes["connection"] = connection
            with moments.holding(_upgrading):
                _alembic().upgrade(config, HEAD)
    finally:
        dialect.unlock_migrations(connection)


def migration_sql(dialect: str, version: str | None) -> str:
    """Return the statements that migrate a catalogue to `HEAD`, or create it.

    ``dialect`` is ``"sqlite"``, ``"postgresql"`` or ``"mariadb"``. ``version`` is the catalogue's; None if it has none.
    """
    text = StringIO()
    config = _config()
    config.output_buffer = text
    config.attributes["dialect"] = dialect
    with moments.holding(_upgrading):
        _alembic().upgrade(config, f"{version or 'base'}:{HEAD}", sql=True)
    return text.getvalue()


def _config() -> Any:
    from alembic.config import Config  # noqa: PLC0415  # Alembic takes a quarter of a second, and is rarely needed

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["version_table"] = _VERSION_TABLE
    return config


def _alembic() -> Any:
    from alembic import command  # noqa: PLC0415  # as above

    return command
