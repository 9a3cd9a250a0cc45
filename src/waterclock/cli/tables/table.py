"""``waterclock table`` creates message tables, and puts, receives, acks and explains messages."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from waterclock._support.quoting import counted, quoted
from waterclock.cli.tables.payloads import columns_of, headers_of, pairs, payload_of, put_lines
from waterclock.cli.tables.table_options import ChangingOptions, shown
from waterclock.cli.terminal.common import Common, TableName
from waterclock.cli.terminal.output import PerSecond, Span, pause_end, span
from waterclock.errors import ForbiddenError, InvalidArgumentError
from waterclock.time import TimeUnit, format_time, to_time

if TYPE_CHECKING:
    from waterclock.connection import Database
    from waterclock.tables.consumers.delivery import Delivery
    from waterclock.tables.message_table import MessageTable
    from waterclock.tables.messages.inspecting.peeking import Peeked
    from waterclock.tables.messages.putting.putting import MessageId
    from waterclock.tables.model.attempts import Attempt

app = App(name="table")

_DELIVERY_COLUMNS = ("id", "group", "epoch", "lease_until", "headers", "payload", "progress")
_WAITING_COLUMNS = ("id", "group", "state", "priority", "epoch", "due_at", "expires_at", "headers", "payload")
_FAILURE_COLUMNS = ("count", "first", "last", "ids", "error")
_STATES = (
    "ready",
    "scheduled",
    "in_flight",
    "delayed",
    "blocked",
    "exhausted",
    "acked",
    "expired",
    "cancelled",
    "dead",
)


@app.command
def add(
    name: str,
    /,
    *,
    id_type: Literal["bigint", "text", "uuid"] = "bigint",
    payload: Literal["bytes", "text", "json"] = "bytes",
    groups: Literal["sequenced", "exclusive"] | None = None,
    group_header: str | None = None,
    ungrouped: Literal["default", "free", "reject"] = "default",
    ack_order: Literal["strict", "hold", "lenient"] = "strict",
    purge_by: Literal["rows", "partition"] = "rows",
    fair_by: str | None = None,
    column: Annotated[list[str] | None, Parameter(name="--column", negative="")] = None,
    adopt: Annotated[bool, Parameter(negative="")] = False,
    exist_ok: bool = False,
    options: ChangingOptions = ChangingOptions(),
    common: Common = Common(),
) -> None:
    """Create a message table.

    Parameters
    ----------
    name
        Its name, also in SQL.
    id_type
        bigint and uuid ids are generated if missing.
    payload
        The type of payloads.
    groups
        sequenced: the messages of a group are handed out in order, to one consumer at a time; exclusive: a group also
        stays with its consumer.
    group_header
        The header that names a message's group.
    ungrouped
        Messages without a group form one group (default), have no order (free) or are refused (reject).
    ack_order
        An ack that skips an earlier message of its group is refused (strict), held until its turn (hold) or accepted
        (lenient).
    purge_by
        partition: acked messages are dropped by whole days, on PostgreSQL and MariaDB.
    fair_by
        The key by which messages take turns, one message each, whatever their priorities: a column, a header or group.
    column
        A further column, name=type with bigint, double, boolean, text, bytes or json; may be given several times.
    adopt
        Turn the existing SQL table of this name into a message table.
    exist_ok
        Do nothing if the table exists already.
    """
    header = {} if group_header is None else {"group_header": group_header}
    with common.connect(create=None) as database:
        database.create_table(
            name,
            id_type=id_type,
            payload=payload,
            groups=groups,
            ungrouped=ungrouped,
            ack_order=ack_order,
            purge_by=purge_by,
            fair_by=fair_by,
            columns=pairs("column", column),
            adopt=adopt,
            exist_ok=exist_ok,
            **header,
            **options.given(),
        )
        common.output.talk(f"message table {name} exists")


@app.command
def ls(*, common: Common = Common()) -> None:
    """List the message tables and the states of their messages."""
    with common.connect() as database:
        rows = [{"name": name, **asdict(database.table(name).stats())} for name in database.tables()]
        common.output.rows(rows, ("name", *_STATES))


@app.command
def info(name: str, /, *, common: Common = Common()) -> None:
    """Show a table's messages by state, and its options."""
    with common.connect() as database:
        table = database.table(name)
        table_stats = table.stats()
        facts: dict[str, Any] = {
            "name": name,
            **asdict(table_stats),
            "oldest_age": span(table_stats.oldest_age),
            **{name: PerSecond(getattr(table_stats, name)) for name in ("put_rate", "ack_rate", "sent_rate")},
            **_pause(table),
            "open_transactions": _open_transactions(database),
            **shown(table.options),
        }
        common.output.facts(facts)


def _open_transactions(database: Database) -> str | None:
    """Name the transactions that make the server keep old rows; None without any, or if the server hides them."""
    from waterclock.database.held_snapshots import held_snapshots

    with suppress(ForbiddenError):
        return "; ".join(map(str, held_snapshots(database.backend) or ())) or None
    return None


def _pause(table: MessageTable) -> dict[str, Any]:
    until = table.paused_until
    return {"paused": until is not None, "paused_until": pause_end(until)}


@app.command
def put(
    name: TableName,
    payload: str | None = None,
    /,
    *,
    jsonl: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    id: str | None = None,  # noqa: A002  # the option's name
    at: str | None = None,
    delay: str | None = None,
    group: str | None = None,
    priority: int = 0,
    header: Annotated[list[str] | None, Parameter(name="--header", negative="")] = None,
    expires: str | None = None,
    unique: str | None = None,
    unique_until: Literal["claimed", "done"] | None = None,
    on_conflict: Literal["existing", "replace"] | None = None,
    closes_group: Annotated[bool, Parameter(negative="")] = False,
    column: Annotated[list[str] | None, Parameter(name="--column", negative="")] = None,
    time_unit: TimeUnit = "ns",
    common: Common = Common(),
) -> None:
    """Put a message and print its id; with --jsonl, put many messages and print their ids.

    Parameters
    ----------
    payload
        The message, in a table of JSON as JSON; @FILE takes a file's content, @- standard input.
    jsonl
        A file of messages, one JSON object per line; - is standard input. A line has "payload" or "payload_base64", and
        may have id, at, delay, group, priority, headers, expires_at, unique, unique_until, on_conflict, closes_group
        and further columns, which override the options given here.
    id
        Its id. Putting the same id again changes nothing.
    at
        When to send it: a time with offset.
    delay
        How long to wait before sending it, for example 5m.
    group
        Its group.
    priority
        Higher priorities are sent first.
    header
        name=text; may be given several times.
    expires
        The time after which it is not sent any more, with offset.
    unique
        A key that only one waiting message may have. If a message with this key waits, its id is printed.
    unique_until
        claimed (default): a message keeps the key until a consumer gets it; done: until it is acked or dead.
    on_conflict
        existing (default): the waiting message is not changed; replace: it gets this payload and time.
    closes_group
        Once the message is acked, the exclusive group is released from its consumer.
    column
        A value of a further column of the table, name=value; may be given several times.
    time_unit
        Unit of at and expires_at in a line if they are integers, since 1970.
    """
    if (payload is None) == (jsonl is None):
        raise InvalidArgumentError("exactly one of payload and --jsonl must be given")
    with common.connect() as database:
        table = database.table(name)
        if expires is not None and to_time(expires, "expires") <= database.backend.now():
            raise InvalidArgumentError(f"--expires must be in the future, got {quoted(expires)}")
        options: dict[str, Any] = {
            "id": None if id is None else message_id(table, id),
            "at": at,
            "delay": delay,
            "group": group,
            "priority": priority,
            "headers": headers_of(header),
            "expires_at": expires,
            "unique": unique,
            "unique_until": unique_until,
            "on_conflict": on_conflict,
            "closes_group": closes_group,
            **columns_of(table, column),
        }
        if jsonl:
            ids = put_lines(table, jsonl, options, time_unit)
        else:
            ids = iter([table.put(payload_of(table, payload or ""), **options)])
        common.output.rows(({"id": str(each)} for each in ids), ("id",))


@app.command
def receive(
    name: TableName,
    /,
    *,
    limit: int | None = None,
    wait: str | None = None,
    where: str | None = None,
    order: str | None = None,
    ack: bool = False,
    common: Common = Common(),
) -> int:
    """Take messages that are due, and print them. Exit code 1 if no message was due.

    Parameters
    ----------
    limit
        At most this many; the table's batch size unless given.
    wait
        How long to wait for the first message, for example 30s.
    where
        An SQL condition, for example "region = 'eu' AND amount > 3".
    order
        The order, for example "priority DESC, amount".
    ack
        Ack the messages once they are printed; otherwise they are sent again when the lease ends.
    """
    with common.connect() as database:
        deliveries = database.table(name).receive(limit=limit, wait=wait, where=where, order=order)
        common.output.rows(map(_delivery, deliveries), _DELIVERY_COLUMNS)
        sys.stdout.flush()
        if ack:
            for delivery in deliveries:
                delivery.ack()
        return 0 if deliveries else 1


@app.command
def peek(name: TableName, /, *, limit: int = 10, group: str | None = None, common: Common = Common()) -> int:
    """Print waiting messages, without taking them. Exit code 1 if no messages wait.

    Parameters
    ----------
    limit
        At most this many.
    group
        Only messages of this group; an empty string selects messages without a group.
    """
    with common.connect() as database:
        found = database.table(name).peek(limit, group)
        common.output.rows(map(_waiting, found), _WAITING_COLUMNS)
        return 0 if found else 1


@app.command
def ack(name: str, ids: list[str], /, *, common: Common = Common()) -> int:
    """Ack messages by id: they are never sent again. Exit code 1 if a message is unknown, or was acked before."""
    with common.connect() as database:
        table = database.table(name)
        count = table.ack([message_id(table, text) for text in ids])
        common.output.talk(f"acked {count} of {len(ids)}")
        return int(count < len(ids))


@app.command
def cancel(name: TableName, ids: list[str], /, *, reason: str | None = None, common: Common = Common()) -> int:
    """Cancel messages by id: waiting ones are dropped, and consumers of leased ones are notified.

    Exit code 1 if a message is unknown, or was acked or cancelled before.

    Parameters
    ----------
    ids
        Which messages.
    reason
        Why; explain shows it.
    """
    with common.connect() as database:
        table = database.table(name)
        count = table.cancel([message_id(table, text) for text in ids], reason)
        common.output.talk(f"cancelled {count} of {len(ids)}")
        return int(count < len(ids))


@app.command
def retry(
    name: TableName,
    ids: list[str] | None = None,
    /,
    *,
    at: str | None = None,
    common: Common = Common(),
) -> int:
    """Send messages again, now or at a time, and reset their back-off.

    Exit code 1 if a named message is unknown, acked or cancelled.

    Parameters
    ----------
    ids
        The messages; all that back off unless given.
    at
        A time with offset; now unless given.
    """
    with common.connect() as database:
        table = database.table(name)
        if not ids:
            if at is not None:
                raise InvalidArgumentError(f"--at can only be used with ids, got --at {quoted(at)} without an id")
            common.output.talk(f"retrying {counted(table.retry(), 'message')} now")
            return 0
        when = database.backend.now() if at is None else to_time(at, "at")
        count = table.reschedule([message_id(table, text) for text in ids], when, epoch=0)
        common.output.talk(f"retrying {count} of {len(ids)} messages from {format_time(when)} on")
        return int(count < len(ids))


@app.command
def purge(name: str, /, *, common: Common = Common()) -> None:
    """Delete messages that were acked longer ago than the table's purge_after."""
    with common.connect() as database:
        common.output.talk(f"purged {counted(database.table(name).purge(), 'message')}")


@app.command
def archive(
    name: TableName,
    topic: str,
    /,
    *,
    older_than: str = "0s",
    common: Common = Common(),
) -> None:
    """Move acked messages into a topic, each exactly once.

    Parameters
    ----------
    topic
        The topic to move them to, in the same database.
    older_than
        The minimum time since the ack, for example 1d.
    """
    with common.connect() as database:
        count = database.archive(name, topic, older_than)
        common.output.talk(f"archived {counted(count, 'message')} in topic {topic}")


@app.command
def explain(name: str, id: str, /, *, common: Common = Common()) -> None:  # noqa: A002  # the option's name
    """Explain why a message has not been sent."""
    with common.connect() as database:
        table = database.table(name)
        explanation = table.explain(message_id(table, id))
        if common.json:
            attempts = [_attempt(each) | {"duration": Span(each.duration).seconds} for each in explanation.attempts]
            common.output.facts(asdict(explanation) | {"due_at": _time_of(explanation.due_at), "attempts": attempts})
        else:
            common.output.text(str(explanation))
            for each in explanation.attempts:
                who = f" by {each.consumer}" if each.consumer else ""
                common.output.text(
                    f"attempt {each.epoch} at {format_time(each.claimed_at)}{who} ended after {Span(each.duration)}"
                    f" ({each.outcome}): {each.error}"
                )


@app.command
def failures(name: str, /, *, limit: int = 20, common: Common = Common()) -> None:
    """Group failed messages and dead letters by error, the largest group first.

    Errors that differ only in numbers, ids, quoted texts, paths and URLs are one group.

    Parameters
    ----------
    limit
        Maximum number of groups.
    """
    with common.connect() as database:
        rows = [
            {**asdict(group), "first": _time_of(group.first), "last": _time_of(group.last)}
            for group in database.table(name).failures(limit)
        ]
        common.output.rows(rows, _FAILURE_COLUMNS)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return asdict(attempt) | {"claimed_at": format_time(attempt.claimed_at)}


def _time_of(time: int | None) -> str | None:
    return None if time is None else format_time(time)


def message_id(table: MessageTable, text: str) -> MessageId:
    """Parse an id in the table's type."""
    if table.options.id_type != "bigint":
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"id must be an integer for message table {table.name!r}, got {quoted(text)}"
        ) from None


def _delivery(delivery: Delivery) -> dict[str, Any]:
    row = {name: getattr(delivery, name) for name in _DELIVERY_COLUMNS}
    return row | {"lease_until": format_time(delivery.lease_until), "headers": dict(delivery.headers) or None}


def _waiting(message: Peeked) -> dict[str, Any]:
    row = {name: getattr(message, name) for name in _WAITING_COLUMNS}
    expires_at = None if message.expires_at is None else format_time(message.expires_at)
    times = {"due_at": format_time(message.due_at), "expires_at": expires_at}
    return row | times | {"headers": dict(message.headers) or None}
