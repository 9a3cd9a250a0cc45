"""The forms that change messages of a table. A form first shows how many rows would change, then changes them.

A change affects at most as many messages as its preview showed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.server.access import Act, ManageTable
from waterclock.server.api.formats.bodies import MOST_ITEMS, time_of
from waterclock.server.pages.form_tokens import Form
from waterclock.server.pages.frame import name_url, page, see_other
from waterclock.server.pages.tables.failures import dead_ids
from waterclock.server.pages.tables.selections import message_filter, selection_of
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing.dead_letters import dead_letter_table
from waterclock.tables.messages.inspecting.failures import dead_messages
from waterclock.tables.messages.inspecting.searching import find_messages
from waterclock.tables.model.row_conditions import is_waiting
from waterclock.time import is_duration, to_duration, to_time

MOST_CHANGED = 10_000
"""Maximum messages that one form changes, which takes some seconds.

For more, send it again, or use the command line.
"""

_EXAMPLES = 10

Action = Literal["retry", "reschedule", "cancel", "dead-letter", "redrive", "purge", "pause", "resume", "rate"]

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Touched:
    """The effect of an action."""

    # Waiting messages and dead letters that it changes by id.
    ids: Sequence[Any] = ()
    dead: Sequence[Any] = ()
    count: int = 0  # how many rows in all
    more: bool = False  # whether there are more, which it would leave unchanged
    complete: bool = True  # whether every message was checked


@router.get("/tables/{table:name}/act/{action}")
def preview(act: ManageTable, request: Request, action: Action) -> Response:
    """Show how many rows an action would change."""
    chosen = selection_of(request.query_params)
    table = act.table()
    touched = _touched(table, action, chosen)
    act.rows = 0
    return page(
        request,
        "tables/action.html",
        {
            "table": act.name,
            "action": action,
            "selection": chosen,
            "count": touched.count,
            "more": touched.more,
            "complete": touched.complete,
            "dead": len(touched.dead),
            "ids": [str(one) for one in [*touched.ids, *touched.dead][:_EXAMPLES]],
            "rate_limit": table.options.rate_limit,
        },
    )


@router.post("/tables/{table:name}/act/{action}")
def change(act: ManageTable, request: Request, form: Form, action: Action) -> Response:
    """Run the action, and return to the table."""
    chosen = selection_of(request.query_params)
    act.details = {"action": action, **chosen, **{name: form[name] for name in form if name != "most"}}
    act.rows = _ACTIONS[action](act, chosen, form)
    return see_other(f"/tables/{name_url(act.name)}", done=action, rows=act.rows)


def _touched(table: MessageTable, action: Action, chosen: Mapping[str, str]) -> Touched:
    context = table.context
    with context.backend.snapshot(indexed=True) as connection:
        if action == "redrive":
            dead = [one.id for one in dead_messages(context, connection)]
            return Touched(dead=dead, count=len(dead), more=len(dead) >= MOST_CHANGED)
        if action == "purge":
            return _counted(connection, _purged(table, context.backend.now(connection)))
        if action in ("pause", "resume", "rate"):
            return _counted(connection, is_waiting(context.rows), context.rows)
        wanted = message_filter(context.options.id_type, chosen)
        found = find_messages(context, connection, wanted, MOST_CHANGED)
        if action == "dead-letter":
            dead_letter_table(context)  # refuses a table without one
            found = replace(found, messages=[one for one in found.messages if one.state != "in_flight"])
        ids = [one.id for one in found.messages]
        dead = (
            dead_ids(context, connection, chosen["error"], MOST_CHANGED)
            if action == "retry" and "error" in chosen
            else []
        )
    return Touched(ids, dead, len(ids) + len(dead), found.more, found.complete)


def _purged(table: MessageTable, now: int) -> sa.ColumnElement[bool]:
    keep = table.options.purge_after
    return table.context.rows.c.time_acked < now - keep if keep is not None else sa.false()


def _counted(connection: sa.Connection, which: sa.ColumnElement[bool], rows: sa.Table | None = None) -> Touched:
    some = sa.select(sa.literal(1)).where(which)
    some = some if rows is None else some.select_from(rows)
    count = connection.execute(
        sa.select(sa.func.count()).select_from(some.limit(MOST_CHANGED + 1).subquery())
    ).scalar_one()
    return Touched(count=min(count, MOST_CHANGED), more=count > MOST_CHANGED)


def _each(
    act: Act,
    chosen: Mapping[str, str],
    form: Mapping[str, str],
    change_ids: Callable[[Any], int],
    action: Action = "cancel",
) -> int:
    """Change the messages of a selection, as many as the preview showed, some at a time."""
    ids = _touched(act.table(), action, chosen).ids[: _most(form)]
    return sum(change_ids(list(ids[at : at + MOST_ITEMS])) for at in range(0, len(ids), MOST_ITEMS))


def _most(form: Mapping[str, str]) -> int:
    text = form.get("most", "")
    if not text.isascii() or not text.isdecimal():
        raise InvalidArgumentError(
            f"the field 'most' must be the number of messages in the preview, got {quoted(text)}"
        )
    return min(int(text[:9]), MOST_CHANGED)


def _retry(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    table, most = act.table(), _most(form)
    touched = _touched(table, "retry", chosen)
    ids = touched.ids[:most]
    done = sum(table.retry(list(ids[at : at + MOST_ITEMS])) for at in range(0, len(ids), MOST_ITEMS))
    dead = touched.dead[: most - len(ids)]
    return done + (table.redrive(list(dead)) if dead else 0)


def _reschedule(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    table = act.table()
    at = _time_ahead(act, form, "at") or act.database.backend.now()
    return _each(act, chosen, form, lambda ids: table.reschedule(ids, at))


def _cancel(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    table, reason = act.table(), form.get("reason") or None
    return _each(act, chosen, form, lambda ids: table.cancel(ids, reason))


def _dead_letter(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    table, reason = act.table(), form.get("reason") or "moved by an operator"
    return _each(act, chosen, form, lambda ids: table.dead_letter(ids, reason), "dead-letter")


def _redrive(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    del chosen  # all dead letters
    most = _most(form)
    return act.table().redrive(limit=most) if most else 0


def _purge(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    del chosen, form  # everything past purge_after
    return act.table().purge()


def _pause(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    del chosen  # the whole table
    act.table().pause(_time_ahead(act, form, "until"))
    return 1


def _time_ahead(act: Act, form: Mapping[str, str], name: str) -> int | None:
    """Return a time of a form: a time, or a duration from now; None if it is empty."""
    text = form.get(name, "").strip()
    if not text:
        return None
    if is_duration(text):
        return act.database.backend.now() + to_duration(text, name)
    return to_time(time_of(text) or text, name)


def _resume(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    del chosen, form  # the whole table
    act.table().resume()
    return 1


def _rate(act: Act, chosen: Mapping[str, str], form: Mapping[str, str]) -> int:
    del chosen  # the whole table
    text = form.get("rate_limit", "").strip()
    try:
        rate = float(text) if text else None
    except ValueError:
        raise InvalidArgumentError(f"rate_limit must be a number of messages a second, got {quoted(text)}") from None
    act.table().alter(rate_limit=rate)
    return 1


_ACTIONS: dict[Action, Callable[[Act, Mapping[str, str], Mapping[str, str]], int]] = {
    "retry": _retry,
    "reschedule": _reschedule,
    "cancel": _cancel,
    "dead-letter": _dead_letter,
    "redrive": _redrive,
    "purge": _purge,
    "pause": _pause,
    "resume": _resume,
    "rate": _rate,
}
