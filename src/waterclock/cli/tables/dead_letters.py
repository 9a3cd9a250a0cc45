"""``waterclock table dead | dead-letter | redrive`` lists dead letters, creates them, and redrives them."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from waterclock._support.quoting import counted
from waterclock.cli.tables.payloads import pairs
from waterclock.cli.tables.table import app, message_id
from waterclock.cli.terminal.common import Common, TableName
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.searching import MessageFilter, SearchState, find_messages
from waterclock.time import format_time

_DEAD_COLUMNS = ("id", "time_died", "dead_reason", "last_error", "epoch", "group_id", "payload")

_AT_ONCE = 1_000
"""Messages that one transaction moves."""

_MOST = 10_000
"""Messages that one command finds and moves: it holds all their ids."""


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
def dead_letter(
    name: TableName,
    ids: list[str] | None = None,
    /,
    *,
    reason: str,
    group: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    state: SearchState | None = None,
    header: str | None = None,
    where: str | None = None,
    text: str | None = None,
    error: str | None = None,
    common: Common = Common(),
) -> int:
    """Move messages to the dead letters: those with the given ids, or at most 10,000 that match every filter.

    Messages that consumers have stay with them. Exit code 1 if a named message is unknown, acked, or with a consumer.

    Parameters
    ----------
    ids
        The messages; omit them with a filter.
    reason
        The reason, stored as dead_reason.
    group
        Messages of this group.
    state
        Messages in this state; failed: those with an error.
    header
        Messages with this header, KEY=VALUE.
    where
        Messages whose columns meet a condition, such as "priority > 0".
    text
        Messages whose payload contains this text.
    error
        Messages with this error, as `table failures` prints it.
    """
    headers = pairs("header", [header] if header is not None else None)
    wanted = MessageFilter(None, group, state, next(iter(headers.items()), None), where, text, error)
    if (wanted == MessageFilter()) == (not ids):
        raise InvalidArgumentError("either ids or a filter such as --state failed must be given, not both")
    with common.connect() as database:
        table = database.table(name)
        if ids:
            count = table.dead_letter([message_id(table, each) for each in ids], reason)
            common.output.talk(f"moved {count} of {len(ids)} messages to the dead letters")
            return int(count < len(ids))
        found, is_complete = _found(table, wanted)
        common.confirm(f"move {counted(len(found), 'message')} of {name} to the dead letters")
        parts = [found[at : at + _AT_ONCE] for at in range(0, len(found), _AT_ONCE)]
        count = sum(table.dead_letter(part, reason) for part in parts)
        common.output.talk(f"moved {counted(count, 'message')} to the dead letters")
        if not is_complete:
            common.output.talk("more messages may match: repeat the command until it moves none")
        return 0


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
        The dead letters to move; all unless given.
    limit
        At most this many.
    """
    with common.connect() as database:
        table = database.table(name)
        wanted = [message_id(table, text) for text in ids] if ids else None
        count = table.redrive(wanted, limit=limit)
        common.output.talk(f"redrove {count} dead letters to {name}")
        return int(limit is None and count < len(wanted or []))


def _found(table: MessageTable, wanted: MessageFilter) -> tuple[list[Any], bool]:
    """Return the ids of the messages that may move, and whether these are all."""
    with table.context.backend.snapshot(indexed=True) as connection:
        found = find_messages(table.context, connection, wanted, _MOST)
    return [one.id for one in found.messages if one.state != "in_flight"], found.complete and not found.more
