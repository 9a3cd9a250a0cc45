"""Lists and changes the groups of a message table, for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import sqlalchemy as sa

from waterclock._support.quoting import quoted, unknown_name
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import explaining
from waterclock.tables.groups.group_state import UNGROUPED
from waterclock.tables.groups.info import GroupInfo, first_names, list_groups, seen_locked
from waterclock.tables.messages.group_admin import group_commands, group_moving
from waterclock.tables.messages.group_admin.group_commands import GroupChange
from waterclock.tables.messages.rows.process_heartbeat import changing
from waterclock.tables.model.options import check_count
from waterclock.tables.model.values.arguments import check_consumer
from waterclock.tables.model.values.texts import check_text
from waterclock.time import MAX_NS, Time, to_time

Group = str | None  # a group's name; None: the group of messages without one
_NAMES_COMPARED = 1_000  # maximum number of groups compared with an unknown name: a table may have millions


class NamedTable(Protocol):
    """The part of a message table that a move needs."""

    @property
    def name(self) -> str:
        """Its name in the catalogue."""
        ...


class MessageGroups:
    """The groups of one message table (*Message Groups*, "Manageability").

    Messages in flight are left alone and counted as skipped, unless ``force=True``. With ``dry_run=True`` a command
    only reports its changes.
    """

    def __init__(self, context: TableContext, load: Callable[[str], TableContext]) -> None:
        if context.options.groups is None:
            raise InvalidArgumentError(
                f"message table {context.name!r} has no groups. Create a table with groups='sequenced' or 'exclusive'"
            )
        self._context = context
        self._load = load

    def list(self, limit: int | None = None) -> list[GroupInfo]:
        """Return all groups by name, or the first ``limit`` of them without reading the others.

        The database's order of names applies, which need not be by code points.
        """
        with explaining(self._context), self._context.backend.snapshot() as connection:
            names = None if limit is None else first_names(self._context, connection, check_count(limit))
            return list_groups(self._context, connection, names)

    def info(self, group: Group) -> GroupInfo:
        """Return one group; NotFoundError if missing."""
        with explaining(self._context), self._context.backend.snapshot() as connection:
            found = list_groups(self._context, connection, [_name(group)])
            known = () if found else first_names(self._context, connection, _NAMES_COMPARED)
        if not found:
            table, remedy = f"message table {self._context.name!r}", "it never had messages, or has none left"
            raise NotFoundError(unknown_name("group", group, known, remedy, table))
        return seen_locked(self._context, found[0])

    def purge(
        self, group: Group, *, count: int | None = None, force: bool = False, dry_run: bool = False
    ) -> GroupChange:
        """Delete the unacked messages of a group, or the first ``count`` of them."""
        _check_count(count)
        return self._run(
            lambda own: group_commands.purge(
                self._context, own, self._named(group), count, force=force, dry_run=dry_run
            )
        )

    def move(
        self,
        group: Group,
        to: NamedTable | str,
        *,
        count: int | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> GroupChange:
        """Move a group's messages to another message table in order; messages whose id exists there stay.

        Raises
        ------
        InvalidArgumentError
            If that table cannot take them.
        NotFoundError
            If that table does not exist.
        """
        name = to if isinstance(to, str) else getattr(to, "name", None)
        if not isinstance(name, str):
            raise InvalidArgumentError(f"'to' must be a message table or its name, got {quoted(to)}")
        _check_count(count)
        target = self._load(name)
        group_moving.check_target(self._context, target)
        if target.options.groups and target.options.ungrouped == "reject" and not group:
            raise InvalidArgumentError(
                f"cannot move to table {target.name!r}: this table rejects messages without a group"
                " (ungrouped='reject')"
            )
        return self._run(
            lambda own: group_moving.move(
                self._context, target, own, self._named(group), count, force=force, dry_run=dry_run
            )
        )

    def reroute(
        self, group: Group, to: str, *, count: int | None = None, force: bool = False, dry_run: bool = False
    ) -> GroupChange:
        """Append a group's messages to the group ``to`` of the same table, in order."""
        if not isinstance(to, str) or not to or to == self._named(group):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may give anything
            raise InvalidArgumentError(f"'to' must be the name of another group, got {quoted(to)}")
        check_text("to", to)
        _check_count(count)
        return self._run(
            lambda own: group_moving.reroute(
                self._context, own, self._named(group), to, count, force=force, dry_run=dry_run
            )
        )

    def pause(self, group: Group, until: Time | None = None, *, dry_run: bool = False) -> GroupChange:
        """Stop sending messages of a group until this time, or until `resume`; messages in flight may be acked."""
        end = MAX_NS if until is None else to_time(until, "until")
        return self._run(lambda own: group_commands.pause(self._context, own, self._named(group), end, dry_run=dry_run))

    def resume(self, group: Group, *, dry_run: bool = False) -> GroupChange:
        """End a group's pause."""
        return self._run(
            lambda own: group_commands.pause(self._context, own, self._named(group), None, dry_run=dry_run)
        )

    def close(self, group: Group, *, dry_run: bool = False) -> GroupChange:
        """Release an exclusive group from its consumer as soon as none of its messages is in flight.

        InvalidArgumentError if the group is pinned: `unpin` releases it.
        """
        return self._run(lambda own: group_commands.close(self._context, own, self._named(group), dry_run=dry_run))

    def release(self, group: Group, *, force: bool = False, dry_run: bool = False) -> GroupChange:
        """Release a group from its consumer now. With force, messages in flight are sent again."""
        return self._run(
            lambda own: group_commands.release(self._context, own, self._named(group), force=force, dry_run=dry_run)
        )

    def pin(self, group: Group, consumer: str, *, dry_run: bool = False) -> GroupChange:
        """Assign a group to one consumer, alive or not, until `unpin`."""
        if not check_consumer(consumer):
            raise InvalidArgumentError(f"consumer must be the name of a consumer, got {quoted(consumer)}")
        return self._run(
            lambda own: group_commands.pin(self._context, own, self._named(group), consumer, dry_run=dry_run)
        )

    def unpin(self, group: Group, *, dry_run: bool = False) -> GroupChange:
        """Unpin a group, so that any consumer may get it."""
        return self._run(lambda own: group_commands.unpin(self._context, own, self._named(group), dry_run=dry_run))

    def skip_head(self, group: Group, *, force: bool = False, dry_run: bool = False) -> GroupChange:
        """Ack a group's first message without handling it, so that the group can proceed."""
        return self._run(
            lambda own: group_commands.skip_head(self._context, own, self._named(group), force=force, dry_run=dry_run)
        )

    def rebalance(self, *, dry_run: bool = False) -> GroupChange:
        """Share exclusive groups evenly among the live consumers, for example when one has joined.

        A group with messages in flight moves when they are acked or given back; the result counts it as skipped.
        """
        return self._run(lambda own: group_moving.rebalance(self._context, own, dry_run=dry_run))

    def _named(self, group: Group) -> str:
        name = _name(group)
        if name == UNGROUPED and self._context.options.ungrouped == "free":
            raise InvalidArgumentError(
                f"group must be a non-empty name, got {quoted(group)}: messages without a group form no group in"
                f" {self._context.name!r}, because its option ungrouped is 'free'"
            )
        return name

    def _run(self, work: Callable[[sa.Connection], GroupChange]) -> GroupChange:
        with explaining(self._context), changing(self._context):
            return self._context.backend.transact(work)


def _check_count(count: int | None) -> None:
    if count is not None:
        check_count(count, "count")


def _name(group: Group) -> str:
    if group is None or group == "":
        return UNGROUPED
    if not isinstance(group, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may give anything
        raise InvalidArgumentError(f"group must be a string, got {quoted(group)}")
    return check_text("group", group)
