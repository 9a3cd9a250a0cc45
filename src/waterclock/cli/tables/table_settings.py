"""``waterclock table pause | resume | alter | rm`` changes or removes a whole table."""

from __future__ import annotations

import waterclock.cli.tables.dead_letters  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registers commands
from waterclock.cli.tables.table import app
from waterclock.cli.tables.table_options import ChangingOptions
from waterclock.cli.terminal.common import Common, TableName
from waterclock.errors import InvalidArgumentError
from waterclock.time import format_time, to_time


@app.command
def pause(name: TableName, /, *, until: str | None = None, common: Common = Common()) -> None:
    """Send nothing until a time, or until `resume`; messages in flight may be acked.

    Parameters
    ----------
    until
        A time with offset; without it the pause has no end.
    """
    moment = None if until is None else to_time(until, "until")
    with common.connect() as database:
        database.table(name).pause(moment)
        common.output.talk(f"{name} is paused until {'it is resumed' if moment is None else format_time(moment)}")


@app.command
def resume(name: str, /, *, common: Common = Common()) -> None:
    """End a pause."""
    with common.connect() as database:
        database.table(name).resume()
        common.output.talk(f"{name} is resumed")


@app.command
def alter(
    name: TableName,
    /,
    *,
    options: ChangingOptions = ChangingOptions(),
    unset: list[str] | None = None,
    common: Common = Common(),
) -> None:
    """Change options; others keep their values. Consumers use them within a second.

    Parameters
    ----------
    unset
        An option to remove, for example rate_limit; may be given several times.
    """
    changes = options.given()
    for option in unset or []:
        changes[option.replace("-", "_")] = None
    if not changes:
        raise InvalidArgumentError("cannot alter the table: no option was given. Pass at least one option")
    with common.connect() as database:
        database.table(name).alter(**changes)
        common.output.talk(f"changed {', '.join(changes)} of {name}")


@app.command
def rm(name: str, /, *, common: Common = Common()) -> None:
    """Remove a table with all its messages; the dead-letter table stays."""
    with common.connect() as database:
        table = database.table(name)
        common.confirm(f"remove message table {name} with all its messages")
        table.drop()
        common.output.talk(f"removed {name}")
