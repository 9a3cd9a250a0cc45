"""``waterclock init`` and ``waterclock db``: create and migrate the catalogue."""

from __future__ import annotations

from contextlib import suppress

from cyclopts import App

from waterclock.cli.terminal.common import Common
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
