"""``waterclock group`` shows and changes the groups of a message table and their consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cyclopts import App

from waterclock.cli.terminal.common import Common, TableName
from waterclock.cli.terminal.output import Output, pause_end, span
from waterclock.errors import NotFoundError
from waterclock.time import MAX_NS, format_time

if TYPE_CHECKING:
    from waterclock.tables.groups.info import GroupInfo
    from waterclock.tables.message_groups import MessageGroups
    from waterclock.tables.messages.group_admin.group_commands import GroupChange

    _Change = Callable[[MessageGroups], GroupChange]

app = App(name="group")

_COLUMNS = ("group", "owner", "in_flight", "waiting", "head_id", "head_age", "head_attempts", "blocked_by")


@app.command
def ls(table: TableName, /, *, limit: int | None = None, common: Common = Common()) -> None:
    """List a table's groups: owner, number of messages, first message, and the reason if it is blocked.

    Parameters
    ----------
    limit
        At most this many.
    """
    with common.connect() as database:
        common.output.rows([_row(info) for info in database.table(table).groups.list(limit)], _COLUMNS)


@app.command
def info(table: str, group: str, /, *, common: Common = Common()) -> None:
    """Show one group; "" is the group of messages without one."""
    with common.connect() as database:
        common.output.facts(_row(database.table(table).groups.info(group)))


@app.command
def purge(
    table: str,
    group: str,
    /,
    *,
    count: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    common: Common = Common(),
) -> None:
    """Delete a group's messages, or the first COUNT of them."""
    if not dry_run:
        common.confirm(f"delete messages of group {group!r} of table {table!r}")
    _change(common, table, group, "deleted", lambda of: of.purge(group, count=count, force=force, dry_run=dry_run))


@app.command
def move(
    table: str,
    group: str,
    to: str,
    /,
    *,
    count: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    common: Common = Common(),
) -> None:
    """Move a group's messages to another message table."""
    _change(common, table, group, "moved", lambda of: of.move(group, to, count=count, force=force, dry_run=dry_run))


@app.command
def reroute(
    table: str,
    group: str,
    to: str,
    /,
    *,
    count: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    common: Common = Common(),
) -> None:
    """Put a group's messages behind those of another group of the table."""
    _change(
        common, table, group, "rerouted", lambda of: of.reroute(group, to, count=count, force=force, dry_run=dry_run)
    )


@app.command
def pause(
    table: str,
    group: str,
    /,
    *,
    until: str | None = None,
    dry_run: bool = False,
    common: Common = Common(),
) -> None:
    """Pause a group until a time, or until it is resumed, even if it has no messages yet."""
    note = "The pause applies to messages that come later. 'waterclock group resume' ends it"
    _mark(common, table, group, "paused", lambda of: of.pause(group, until, dry_run=dry_run), note)


@app.command
def resume(table: str, group: str, /, *, dry_run: bool = False, common: Common = Common()) -> None:
    """End a group's pause."""
    _change(common, table, group, "resumed", lambda of: of.resume(group, dry_run=dry_run), "group")


@app.command
def close(table: str, group: str, /, *, dry_run: bool = False, common: Common = Common()) -> None:
    """Release an exclusive group from its consumer once none of its messages is in flight."""
    _change(common, table, group, "closed", lambda of: of.close(group, dry_run=dry_run), "group")


@app.command
def release(
    table: str,
    group: str,
    /,
    *,
    force: bool = False,
    dry_run: bool = False,
    common: Common = Common(),
) -> None:
    """Take a group from its consumer; with --force its messages in flight are sent again."""
    _change(common, table, group, "released", lambda of: of.release(group, force=force, dry_run=dry_run))


@app.command
def pin(table: str, group: str, consumer: str, /, *, dry_run: bool = False, common: Common = Common()) -> None:
    """Assign a group to one consumer until it is unpinned, even if the group has no messages yet."""
    note = "The pin applies to messages that come later. 'waterclock group unpin' ends it"
    _mark(common, table, group, "pinned", lambda of: of.pin(group, consumer, dry_run=dry_run), note)


@app.command
def unpin(table: str, group: str, /, *, dry_run: bool = False, common: Common = Common()) -> None:
    """Unpin a group, so that any consumer may take it."""
    _change(common, table, group, "unpinned", lambda of: of.unpin(group, dry_run=dry_run), "group")


@app.command
def skip_head(
    table: str,
    group: str,
    /,
    *,
    force: bool = False,
    dry_run: bool = False,
    common: Common = Common(),
) -> None:
    """Ack a group's first message although no consumer handled it, so that the group continues."""
    _change(common, table, group, "skipped", lambda of: of.skip_head(group, force=force, dry_run=dry_run))


@app.command
def rebalance(table: str, /, *, dry_run: bool = False, common: Common = Common()) -> None:
    """Share exclusive groups evenly among live consumers."""
    with common.connect() as database:
        _say(common.output, "moved", database.table(table).groups.rebalance(dry_run=dry_run), "group")


def _change(
    common: Common,
    table: str,
    group: str,
    verb: str,
    change: _Change,
    noun: str = "message",
) -> None:
    """Change a group and report the change; NotFoundError if nothing changed and the group is unknown."""
    with common.connect() as database:
        groups = database.table(table).groups
        changed = change(groups)
        if not changed.done and not changed.skipped:
            groups.info(group)
        _say(common.output, verb, changed, noun)


def _mark(common: Common, table: str, group: str, verb: str, mark: _Change, note: str) -> None:
    """Pause or pin a group, which adds it to the table if it is unknown: then warn, with the note."""
    with common.connect() as database:
        groups = database.table(table).groups
        missing = None
        try:
            groups.info(group)
        except NotFoundError as error:
            missing = str(error) if str(error).endswith("?") else f"{error}."
        _say(common.output, verb, mark(groups), "group")
        if missing:
            common.output.complain(f"warning: {missing} {note}")


def _say(output: Output, verb: str, change: GroupChange, noun: str = "message") -> None:
    if output.as_json:
        output.facts(asdict(change))
        return
    left = f", skipped {change.skipped} in flight or in the way" if change.skipped else ""
    output.talk(f"{verb} {change.done} {noun}{'' if change.done == 1 else 's'}{left}")


def _row(info: GroupInfo) -> dict[str, Any]:
    row = asdict(info)
    row["group"] = info.group or ""
    row["head_age"] = span(info.head_age)
    row["due_at"] = None if info.due_at in (None, MAX_NS) else format_time(info.due_at or 0)
    row["paused_until"] = pause_end(info.paused_until)
    return row
