"""Puts messages into a message table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock._support.quoting import quoted, unknown_name
from waterclock.database.schema.types import BIGINTS
from waterclock.database.shared_compile_cache import alike
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.inserting import OMITTED, new_rows
from waterclock.tables.messages.putting.drawing_ids import draw_uuid
from waterclock.tables.model.schema import WITH_DEFAULTS, put_columns
from waterclock.tables.model.values.arguments import many
from waterclock.tables.model.values.column_values import column_checks
from waterclock.tables.model.values.texts import check_text
from waterclock.tables.payloads.writing import write_payload
from waterclock.time import MAX_NS, to_duration, to_time

MessageId = int | str | uuid.UUID  # a message's id, of the type given by the table's ``id_type``
_ALWAYS_FITS = 65_536  # bytes
_SIZED = (str, bytes)
_KEY_FIELDS = ("unique", "unique_until", "on_conflict")
_KEY_FIELDS_SET = frozenset(_KEY_FIELDS)
_FIELDS = frozenset(
    {"payload", "id", "at", "delay", "group", "headers", "priority", "expires_at", "closes_group", *_KEY_FIELDS}
)
_LONGEST_NAME = 255
_PRIORITIES = range(-(2**31), 2**31)
_ID = itemgetter("id")


class PutIds(list[MessageId]):
    """The ids of messages that were put, in order."""

    existing: list[MessageId]  # ids that existed before, or were passed twice; putting them changed nothing

    def __init__(self, ids: Iterable[MessageId] = (), existing: Iterable[MessageId] = ()) -> None:
        super().__init__(ids)
        self.existing = list(existing)


class UniqueKey(NamedTuple):
    """A key of which only one message waits."""

    text: str  # the key
    until_done: bool  # whether the message has the key until it is acked or dead, not only until it is claimed
    replaces: bool  # whether the waiting message gets the content of the new one


@dataclass(slots=True)
class PreparedRows:
    """Validated messages as rows."""

    rows: list[dict[str, Any]]  # values by column name
    nameless: list[dict[str, Any]]  # rows that get their ids from the database
    fresh: bool  # whether all ids were drawn here, so that no other writer can have chosen any
    tried: bool = False  # whether inserting them was tried before
    keys: Sequence[UniqueKey | None] = ()  # the key of each row; empty if no row has one


def prepare_rows(context: TableContext, messages: Iterable[Mapping[str, Any]]) -> PreparedRows:
    """Check messages, each a dict of the arguments of `MessageTable.put`."""
    given = many("rows", messages, "messages, each a dict")
    rows = [_row(context, message) for message in given]
    keys = _keys(given)
    for row in rows:
        payload = row["message"]
        if type(payload) in _SIZED and len(payload) > _ALWAYS_FITS:
            # Before the transaction: within it, writers that use up the pool would wait for one more connection.
            context.backend.largest_value  # noqa: B018  # caches it
            break
    nameless = [row for row in rows if row["id"] is None]
    if nameless and context.options.id_type == "text":
        raise InvalidArgumentError(f"id must be given for message table {context.name!r}, which has text ids")
    if context.options.id_type == "uuid":
        for row in nameless:
            row["id"] = draw_uuid()
        return PreparedRows(rows, [], fresh=len(nameless) == len(rows), keys=keys)
    return PreparedRows(rows, nameless, fresh=len(nameless) == len(rows), keys=keys)


def put_rows(context: TableContext, connection: SqlConnection, prepared: PreparedRows) -> PutIds:
    """Insert the messages with new ids, and return the ids of all.

    Retrying the same rows, after a commit whose answer was lost, inserts nothing twice.

    Raises `InvalidArgumentError` if a value is larger than the database takes; the error names the column, the message
    and its size.
    """
    for row in prepared.rows:
        payload = row["message"]
        if type(payload) in _SIZED and len(payload) > _ALWAYS_FITS:
            _check_sizes(context, row, ["message"])
    try:
        return _put(context, connection, prepared)
    except exc.DBAPIError as error:
        try:
            for row in prepared.rows:
                _check_sizes(context, row, row)
        except InvalidArgumentError as reason:
            raise reason from error
        except UnavailableError:  # if the database is unavailable, sizes are not the reason
            pass
        raise


def _put(context: TableContext, connection: SqlConnection, prepared: PreparedRows) -> PutIds:
    if not prepared.rows:
        return PutIds()
    first_try, prepared.tried = not prepared.tried, True
    _number(context, connection, prepared)
    if any(row["at"] is not None for row in prepared.rows):
        context.marks.forget()  # it may be due before the messages claimed last
    existing = _insert(context, connection, prepared.rows, fresh=prepared.fresh)
    while prepared.nameless and first_try:
        # Another writer chose an id that the database had not drawn yet, and then drew for us.
        taken = [row for row in prepared.nameless if any(row is one for one in existing)]
        if not taken:
            break
        _draw(context, connection, taken, max(row["id"] for row in taken))
        still = _insert(context, connection, taken, fresh=True)
        existing = [one for one in existing if not any(one is row for row in taken)] + still
    return PutIds(map(_ID, prepared.rows), map(_ID, existing))


def _number(context: TableContext, connection: SqlConnection, prepared: PreparedRows) -> None:
    # A sequence never repeats a number, so the ids of an earlier try are still ours. If a failed transaction returns
    # its numbers, draw them again.
    if not prepared.nameless or (prepared.nameless[0]["id"] is not None and not context.sql.one_writer):
        return
    for row in prepared.nameless:
        row["id"] = None
    chosen = [row["id"] for row in prepared.rows if row["id"] is not None]
    if chosen or context.sql.one_writer:
        _draw(context, connection, prepared.nameless, max(chosen, default=0))
        return
    drawn = context.drawn_ids.take(
        len(prepared.nameless), lambda count: context.sql.reserve_ids(connection, context.rows, count, 0)
    )
    for row, new_id in zip(prepared.nameless, drawn, strict=True):
        row["id"] = new_id


def _draw(context: TableContext, connection: SqlConnection, nameless: list[dict[str, Any]], above: int) -> None:
    drawn = context.sql.reserve_ids(connection, context.rows, len(nameless), above)
    for row, new_id in zip(nameless, drawn, strict=True):
        row["id"] = new_id


def _insert(
    context: TableContext, connection: SqlConnection, messages: list[dict[str, Any]], *, fresh: bool
) -> list[dict[str, Any]]:
    """Insert messages; return those whose ids existed."""
    if defaults := context.rows.info[WITH_DEFAULTS]:
        # In order, because messages of a group are sent in the order in which they are inserted.
        runs = [
            list(run) for _, run in groupby(messages, lambda message: [message[name] is OMITTED for name in defaults])
        ]
        if len(runs) > 1:
            return [one for run in runs for one in _insert(context, connection, run, fresh=fresh)]
    new = new_rows(context.rows, alike(connection.dialect), messages, fresh=fresh)
    inserted = context.sql.insert_new(connection, context.rows, new, context.backend.now_sql())
    if len(inserted) == len(messages):
        return []
    existing: list[dict[str, Any]] = []
    for message_id, message in zip(new.columns["id"], messages, strict=True):
        if message_id in inserted:
            inserted.remove(message_id)
        else:
            existing.append(message)
    return existing


def _row(context: TableContext, message: Mapping[str, Any]) -> dict[str, Any]:
    # A caller may give anything. Most give a dict, which the first check recognizes without a call.
    if type(message) is not dict and not isinstance(message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(f"rows must be dicts with the arguments of put, got {quoted(message)}")
    if "payload" not in message:
        raise InvalidArgumentError(f"payload is missing in {quoted(message)}")
    own = put_columns(context.rows)
    if not message.keys() <= _FIELDS:
        _refuse_unknown(context, message, own)
    headers = message.get("headers")
    at, given_id = message.get("at"), message.get("id")
    row = {
        "id": None if given_id is None else _new_id(context, given_id),
        "at": None if at is None else to_time(at, "at"),
        "message": _payload(context, message["payload"]),
        "group_id": _group(context, message.get("group"), headers),
        "headers": None if headers is None else _headers(headers),
        "priority": _priority(message.get("priority", 0)),
        "expires_at": None if message.get("expires_at") is None else to_time(message["expires_at"], "expires_at"),
        "closes_group": 0,
    }
    if "closes_group" in message:
        row["closes_group"] = _closes_group(context, message, row["group_id"])
    checks = column_checks(context.rows) if own else {}
    if "delay" in message:
        row["at"] = _at_or_after(context, at, message["delay"])
    due: Any = row["at"]
    expires: Any = row["expires_at"]
    if due is not None and expires is not None and expires <= due:
        raise InvalidArgumentError(
            f"expires_at must be later than the message's scheduled time, got {quoted(message['expires_at'])}"
        )
    for name in own:
        value = message.get(name)
        row[name] = _if_missing(context, message, name) if value is None else checks[name](name, value)
    return row


def _if_missing(context: TableContext, message: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column for which a message has none or None."""
    defaults = context.rows.info[WITH_DEFAULTS]
    return OMITTED if column in defaults and (column not in message or not defaults[column]) else None


def _keys(messages: Sequence[Mapping[str, Any]]) -> Sequence[UniqueKey | None]:
    if all(map(_KEY_FIELDS_SET.isdisjoint, messages)):
        return ()
    keys = [_key(message) for message in messages]
    return keys if any(keys) else ()


def _key(message: Mapping[str, Any]) -> UniqueKey | None:
    text, until, conflict = (message.get(name) for name in _KEY_FIELDS)
    until, conflict = until or "claimed", conflict or "existing"
    if until not in ("claimed", "done"):
        raise InvalidArgumentError(f"unique_until must be 'claimed' or 'done', got {quoted(until)}")
    if conflict not in ("existing", "replace"):
        raise InvalidArgumentError(f"on_conflict must be 'existing' or 'replace', got {quoted(conflict)}")
    if text is None:
        return None
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_NAME:
        raise InvalidArgumentError(f"unique must be a string of 1 to {_LONGEST_NAME} characters, got {quoted(text)}")
    return UniqueKey(check_text("unique", text), until == "done", conflict == "replace")


def _at_or_after(context: TableContext, at: Any, delay: Any) -> int | None:
    if delay is None:
        return None if at is None else to_time(at, "at")
    if at is not None:
        raise InvalidArgumentError("delay and at must not both be given")
    return min(context.backend.now_about() + to_duration(delay, "delay"), MAX_NS)


def _new_id(context: TableContext, value: Any) -> MessageId:
    checked = check_id(context, value)
    return check_text("id", checked) if isinstance(checked, str) else checked


def _refuse_unknown(context: TableContext, message: Mapping[str, Any], own: tuple[str, ...]) -> None:
    for name in message:
        if name not in _FIELDS and name not in own:
            known = (*sorted(_FIELDS), *own)
            table, remedy = f"message table {context.name!r}", f"it has {', '.join(known)}"
            raise InvalidArgumentError(unknown_name("column", name, known, remedy, table))


def id_from_text(context: TableContext, text: str) -> MessageId:
    """Read an id that the catalogue keeps as text."""
    return check_id(context, int(text) if context.options.id_type == "bigint" else text)


def check_id(context: TableContext, value: Any) -> MessageId:
    """Return an id in the table's type; raise InvalidArgumentError for another type."""
    kind = context.options.id_type
    if kind == "bigint" and type(value) is int and value in BIGINTS:
        return value
    if kind == "text" and isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME:
        return value
    if kind == "uuid":
        if isinstance(value, uuid.UUID):
            return value
        try:
            return uuid.UUID(value)  # pyright: ignore[reportArgumentType]  # other types are refused below
        except (ValueError, AttributeError, TypeError):
            pass
    wanted = {
        "bigint": "a 64-bit int",
        "text": f"a string of 1 to {_LONGEST_NAME} characters",
        "uuid": "a UUID, as object or string",
    }
    raise InvalidArgumentError(f"id must be {wanted[kind]} in message table {context.name!r}, got {quoted(value)}")


def _payload(context: TableContext, value: Any) -> Any:
    kind = context.options.payload
    if type(value) not in _SIZED:
        value = write_payload(value, kind)
    if kind == "json":
        column_checks(context.rows)["message"]("payload", value)
        return sa.JSON.NULL if value is None else value
    if kind == "text" and isinstance(value, str):
        return check_text("payload", value)
    if kind == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgumentError(f"payload must be {kind} for message table {context.name!r}, got {quoted(value)}")


def _group(context: TableContext, group: Any, headers: Any) -> str | None:
    if group is None and headers is not None and isinstance(headers, Mapping):
        group = headers.get(context.options.group_header)
    if group is not None and (not isinstance(group, str) or len(group) > _LONGEST_NAME):
        raise InvalidArgumentError(f"group must be a string of at most {_LONGEST_NAME} characters, got {quoted(group)}")
    if group:
        return check_text("group", group)
    _refuse_ungrouped(context)
    return None  # empty means missing


def _closes_group(context: TableContext, message: Mapping[str, Any], group: object) -> int:
    closes = message["closes_group"]
    if type(closes) is not bool:
        raise InvalidArgumentError(f"closes_group must be True or False, got {quoted(closes)}")
    options = context.options
    if closes and options.groups is None:
        raise InvalidArgumentError("closes_group must be False in a table without the option groups, got True")
    if closes and group is None and options.ungrouped == "free":
        raise InvalidArgumentError("closes_group must be False for a message that belongs to no group, got True")
    if closes and message.get("on_conflict") == "replace":
        raise InvalidArgumentError("closes_group and on_conflict='replace' must not both be given")
    return int(closes)


def _refuse_ungrouped(context: TableContext) -> None:
    if context.options.groups and context.options.ungrouped == "reject":
        raise InvalidArgumentError(
            f"group is missing, and message table {context.name!r} rejects messages without a group"
            f" (ungrouped='reject'). Pass group=, or the header {quoted(context.options.group_header)}"
        )


def _headers(headers: Any) -> str:
    texts = isinstance(headers, Mapping) and all(isinstance(text, str) for pair in headers.items() for text in pair)
    if not texts:
        raise InvalidArgumentError(f"headers must be a dict of strings, got {quoted(headers)}")
    return check_text("headers", json.dumps(dict(headers), ensure_ascii=False))


def _priority(value: Any) -> int:
    if type(value) is not int or value not in _PRIORITIES:
        raise InvalidArgumentError(f"priority must be a 32-bit int, got {quoted(value)}")
    return value


def _check_sizes(context: TableContext, row: Mapping[str, Any], columns: Iterable[str]) -> None:
    backend = context.backend
    for column in columns:
        value = json.dumps(row[column], default=str) if type(row[column]) in (dict, list) else row[column]
        if type(value) not in _SIZED or len(value) <= _ALWAYS_FITS:
            continue
        if backend.dialect.size_in_statement(value) > backend.largest_value:
            name = "payload" if column == "message" else column
            which = "a message" if row["id"] is None else f"message {quoted(row['id'])}"
            size = len(value) if isinstance(value, bytes) else len(value.encode())
            raise InvalidArgumentError(
                f"{name} of {which} has {size} bytes, more than {backend.name} accepts. Store large data elsewhere"
                " and put its address, or raise the database's limit (max_allowed_packet on MariaDB)"
            )
