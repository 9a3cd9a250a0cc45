"""``waterclock init`` and ``waterclock db`` create, migrate and show the catalogue."""

from __future__ import annotations

from contextlib import suppress

from cyclopts import App

from waterclock._support.urls import shown
from waterclock.cli.terminal.common import Common
from waterclock.database.engines.database_url import parse_url
from waterclock.database.migrating import HEAD, CatalogueVersionError, check_version, migration_sql
from waterclock.errors import SchemaError

app = App(name="db")


def init(*, common: Common = Common()) -> None:
    """Create the catalogue, the tables named waterclock_*, in a database."""
    with common.connect(create=None) as database:
        backend = database.backend
        is_new = not backend.has_catalogue()
        backend.create_catalogue()
        common.output.talk(f"{'created the catalogue' if is_new else 'the catalogue exists already'} in {backend.name}")


@app.command
def migrate(*, common: Common = Common()) -> None:
    """Migrate the catalogue to this version of Waterclock; older versions can no longer open it."""
    with suppress(SchemaError):  # another version is expected here; a missing catalogue is an error
        common.connect().close()
    with common.connect(create=True) as database:
        common.output.talk(f"the catalogue of {database.backend.name} is up to date")


@app.command
def status(*, common: Common = Common()) -> int:
    """Show the version of the catalogue; exit with 1 unless it is the one that this Waterclock needs."""
    version = _version(common)
    if version is None:
        state = "missing: run 'waterclock init'"
    elif version == HEAD:
        state = "up to date"
    else:
        state = "older: run 'waterclock db migrate'" if version < HEAD else "newer: update waterclock"
    common.output.facts({"version": version, "needed": HEAD, "state": state})
    return int(version != HEAD)


@app.command
def sql(*, common: Common = Common()) -> None:
    """Print the SQL that creates or migrates the catalogue, for administrators who run it themselves."""
    version = _version(common)
    if version is not None:
        if version > HEAD:
            check_version(version, shown(common.database_url))
        if version == HEAD:
            common.output.talk(f"the catalogue is up to date: version {version}")
            return
    name = parse_url(common.database_url).get_backend_name()
    statements = migration_sql("mariadb" if name == "mysql" else name, version)
    if common.output.as_json:
        common.output.facts({"sql": statements})
    else:
        common.output.text(statements)


def _version(common: Common) -> str | None:
    try:
        with common.connect(create=None) as database:
            return HEAD if database.backend.has_catalogue() else None
    except CatalogueVersionError as error:
        return error.version
