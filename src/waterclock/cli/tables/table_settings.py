"""``waterclock table pause | resume | alter | rm | dead | redrive``: commands for a whole table."""

from __future__ import annotations

from waterclock.cli.tables.table import app, message_id
from waterclock.cli.tables.table_options import ChangingOptions
from waterclock.cli.terminal.common import Common
from waterclock.errors import InvalidArgumentError
from waterclock.time import format_time, to_time

_DEAD_COLUMNS = ("id", "time_died", "dead_reason", "last_error", "epoch", "group_id", "payload")


@app.command
def pause(name: str, /, *, until: str | None = None, common: Common = Common()) -> None:
    """Send nothing until a time, or until `resume`; messages in flight may be acked.

    Parameters
    ----------
    name
        The table.
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
    name: str,
    /,
    *,
    options: ChangingOptions = ChangingOptions(),
    unset: list[str] | None = None,
    common: Common = Common(),
) -> None:
    """Change options; others keep their values. Consumers use them within a second.

    Parameters
    ----------
    name
        The table.
    unset
        An option to remove, for example rate_limit; may be given several times.
    """
    changes = options.given()
    for option in unset or []:
        changes[option.replace("-", "_")] = None
    if not changes:
        raise InvalidArgumentError("cannot alter: no option given; name at least one")
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


@app.command
def dead(name: str, /, *, limit: int = 100, common: Common = Common()) -> None:
    """List a table's dead letters, the latest first.

    Parameters
    ----------
    name
        The table whose messages they were.
    limit
        At most this many.
    """
    with common.connect() as database:
        letters = database.table(name).dead_letters(limit)
        rows = [{**letter, "time_died": format_time(letter["time_died"])} for letter in letters]
        common.output.rows(rows, _DEAD_COLUMNS)


@app.command
def redrive(
    name: str,
    ids: list[str] | None = None,
    /,
    *,
    limit: int | None = None,
    common: Common = Common(),
) -> int:
    """Move dead letters back to their table, in their order, as if never sent.

    Exit code 1 if a named message is not a dead letter of this table.

    Parameters
    ----------
    name
        The table whose messages they were.
    ids
        Which; all unless given.
    limit
        At most this many.
    """
    with common.connect() as database:
        table = database.table(name)
        wanted = [message_id(table, text) for text in ids] if ids else None
        count = table.redrive(wanted, limit=limit)
        common.output.talk(f"redrove {count} dead letters to {name}")
        return int(limit is None and count < len(wanted or []))
