"""The page of a table's groups: their owners, why they are blocked, and buttons for their commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.database.schema.table_catalogue import groups as group_rows
from waterclock.server.access import ManageTable, ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.pages.form_tokens import Form
from waterclock.server.pages.frame import name_url, page, see_other
from waterclock.server.shared_reads import shared
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.info import first_names, has_more_new, list_groups
from waterclock.tables.message_groups import MessageGroups
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.group_admin.group_commands import GroupChange

MOST_GROUPS = 100
"""Maximum groups on a page: each costs some reads of its first messages."""

MOST_NEW = 10_000
"""Maximum messages without a place in their group yet whose groups a page lists: a million take more than a second."""

Command = Literal["release", "close", "skip", "pause", "resume", "purge", "move"]

router = APIRouter(include_in_schema=False, prefix="/tables/{table:name}/groups")


@router.get("")
@shared
def show_groups(act: ReadTable, request: Request, group: str | None = None, show: str = "") -> Response:
    return page(request, "tables/groups.html", groups_data(act.table(), group, blocked_only=show == "blocked"))


def groups_data(table: MessageTable, group: str | None, *, blocked_only: bool) -> dict[str, Any]:
    """Describe one group, the first by name, or the first blocked ones."""
    context = table.context
    kind = context.options.groups
    found: dict[str, Any] = {"table": table.name, "kind": kind, "group": group, "blocked_only": blocked_only}
    if kind is None:
        return {**found, "groups": [], "more": False, "unread": False}
    with context.backend.snapshot(indexed=True) as connection:
        names = [group] if group is not None else _names(context, connection, blocked_only=blocked_only)
        infos = list_groups(context, connection, names[:MOST_GROUPS])
        unread = group is None and not blocked_only and has_more_new(context, connection, MOST_NEW)
    more = len(names) > MOST_GROUPS
    return {**found, "groups": [shapes.group(info) for info in infos], "more": more, "unread": unread}


def _names(context: TableContext, connection: sa.Connection, *, blocked_only: bool) -> list[str]:
    if not blocked_only:
        return first_names(context, connection, MOST_GROUPS + 1, MOST_NEW)
    which = context.sql.blocked_groups(connection, context.table_id)
    return list(connection.scalars(sa.select(group_rows.c.group_id).where(which).limit(MOST_GROUPS + 1)))


@router.get("/{command}")
def preview(act: ManageTable, request: Request, command: Command, group: str = "") -> Response:
    """Show how many messages, or groups, a command would change."""
    act.rows = 0
    change = _changed(act.table().groups, command, group, {}, dry=True)
    data = {"table": act.name, "command": command, "group": group, "count": change.done, "skipped": change.skipped}
    return page(request, "tables/group_command.html", data)


@router.post("/{command}")
def run(act: ManageTable, form: Form, command: Command, group: str = "") -> Response:
    """Run the command, and return to the groups."""
    act.details = {"command": command, "group": group, **form}
    if command == "move":
        act.require("manage", "table", form.get("to", ""))
    change = _changed(act.table().groups, command, group, form, dry=False)
    act.rows = change.done
    return see_other(f"/tables/{name_url(act.name)}/groups", done=command, rows=change.done)


def _changed(groups: MessageGroups, command: Command, group: str, form: Mapping[str, str], *, dry: bool) -> GroupChange:
    force = form.get("force") == "yes"
    changes: dict[Command, Callable[[], GroupChange]] = {
        "release": lambda: groups.release(group, force=force, dry_run=dry),
        "close": lambda: groups.close(group, dry_run=dry),
        "skip": lambda: groups.skip_head(group, force=force, dry_run=dry),
        "pause": lambda: groups.pause(group, dry_run=dry),
        "resume": lambda: groups.resume(group, dry_run=dry),
        "purge": lambda: groups.purge(group, force=force, dry_run=dry),
        # The target is unknown before the form is sent. A deletion would affect as many messages.
        "move": lambda: groups.purge(group, dry_run=True) if dry else groups.move(group, form["to"], force=force),
    }
    return changes[command]()
