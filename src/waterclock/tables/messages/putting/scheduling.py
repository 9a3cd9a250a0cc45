"""Puts the messages of schedules, repeatedly, at the times of a cron expression.

A schedule is a row of the catalogue, which records the last processed tick, by the database's clock. The process that
puts the message of a tick updates the row in the same transaction, and holds the row's lock. So one process puts each
tick, exactly once, and the clocks of processes do not matter. A new, changed or resumed schedule starts with the next
tick.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal, cast

import sqlalchemy as sa

from waterclock._support.log_events import event
from waterclock._support.quoting import quoted, unknown_name
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import schedules
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import (
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    WaterclockError,
)
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import change
from waterclock.tables.messages.putting.drawing_ids import draw_id, draw_uuid
from waterclock.tables.messages.putting.putting import MessageId, PutIds, id_from_text, prepare_rows, put_rows
from waterclock.tables.model.keyspace import WHOLE, KeyRange, keyspace_id
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.timing.cron import ON_TIME, CatchUp, Tick, check_cron, check_timezone, due_ticks, next_tick
from waterclock.tables.model.timing.tick_history import PastTick, read_ticks, with_ticks
from waterclock.tables.model.values.texts import check_text, storable
from waterclock.time import MAX_NS, format_duration, format_time, to_duration

Overlap = Literal["run", "skip"]

HEADER, TICK, CAUGHT_UP = "waterclock.schedule", "waterclock.tick", "waterclock.caught_up"
"""Headers of a message that a schedule put: its name, the tick's time, and "true" if the tick was missed."""

_LONGEST_NAME = 255
_LONGEST_NAME_IN_ID = 200  # characters, which leaves room for the rest of an id
_AT_ONCE = 100
_SECOND = 1_000_000_000
_MINUTE = 60 * _SECOND
_log = logging.getLogger(__name__)
_GIVEN = ("cron", "timezone", "catch_up", "within", "overlap")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The current state of a schedule. Times in ns.

    Attributes
    ----------
    name
        Its name, unique in its table.
    cron, timezone
        When it ticks: minute, hour, day, month and weekday, in the time zone.
    payload, group, headers, priority
        Those of the messages that it puts.
    catch_up, within, overlap
        As in `MessageTable.schedule`; ``within`` in ns.
    paused
        Whether it is paused.
    last_tick
        The last tick for which it put a message; None: none.
    next_tick
        The next tick; None: paused, or none.
    last_id
        Id of the message that it put last; None: none.
    ahead
        How far the last processed tick is ahead of the database's clock, ns, because that clock was set back. Until
        then it puts nothing, unless it is reset. None: not ahead.
    history
        Its last ten ticks with their outcomes, latest last.
    """

    name: str
    cron: str
    timezone: str
    payload: Any
    group: str | None
    headers: Mapping[str, str]
    priority: int
    catch_up: CatchUp
    within: int | None
    overlap: Overlap
    paused: bool
    last_tick: int | None
    next_tick: int | None
    last_id: MessageId | None
    ahead: int | None
    history: Sequence[PastTick]


def check_name(name: object, longest: int = _LONGEST_NAME) -> str:
    """Return the name of a schedule; raise InvalidArgumentError if invalid."""
    if not isinstance(name, str) or not 0 < len(name) <= longest:
        raise InvalidArgumentError(f"name must be a string of 1 to {longest} characters, got {quoted(name)}")
    return check_text("name", name)


def set_schedule(context: TableContext, name: str, rule: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    """Create a schedule, or change it if it differs."""
    values: dict[str, Any] = {
        "cron": check_cron(rule["cron"]),
        "timezone": check_timezone(rule["timezone"]),
        "catch_up": _choice("catch_up", rule["catch_up"], ("none", "one", "all")),
        "within": None if rule["within"] is None else to_duration(rule["within"], "within"),
        "overlap": _choice("overlap", rule["overlap"], ("run", "skip")),
        "message": _packed(context, message),
    }
    name = check_name(name, _LONGEST_NAME_IN_ID if context.options.id_type == "text" else _LONGEST_NAME)

    def write_schedule(own: SqlConnection) -> None:
        known = own.execute(_of_name(context).with_for_update(), {"name": name}).first()
        if known is not None and _is_as_given(known, values):
            return
        now = context.backend.now(own)
        following = next_tick(values["cron"], values["timezone"], now)
        if known is None:
            fixed = {"table_id": context.table_id, "name": name, "paused": 0}
            times = {"seen_until": now, "next_tick": following}
            own.execute(sa.insert(schedules).values(**fixed, **times, **values))
        else:
            own.execute(
                _changing(context, name, **values, seen_until=now, next_tick=None if known.paused else following)
            )
        change(context, own)  # all processes that have the table open check its schedules within a second

    context.backend.transact(write_schedule)


def _is_as_given(known: Any, values: Mapping[str, Any]) -> bool:
    return _sorted(known.message) == _sorted(values["message"]) and all(
        getattr(known, column) == values[column] for column in _GIVEN
    )


def _sorted(message: str) -> str:
    """Write a message as text that does not depend on the order of its keys."""
    return json.dumps(json.loads(message), sort_keys=True)


def remove_schedule(context: TableContext, name: str) -> bool:
    """Remove a schedule, but not the messages it has put. Return whether it existed."""
    return bool(_remove(context, lambda known: known == name))


def keep_schedules(context: TableContext, names: Collection[str]) -> list[str]:
    """Remove all schedules except these; return the removed ones."""
    return _remove(context, lambda known: known not in names)


def _remove(context: TableContext, which: Callable[[str], bool]) -> list[str]:
    def delete_schedules(own: SqlConnection) -> list[str]:
        removed = [row.name for row in own.execute(_all(context)) if which(row.name)]
        for name in removed:
            own.execute(sa.delete(schedules).where(*_this(context, name)))
        if removed:
            change(context, own)
        return removed

    return context.backend.transact(delete_schedules)


def pause_schedule(context: TableContext, name: str, *, paused: bool) -> None:
    """Pause or resume a schedule; NotFoundError if missing."""

    def write_pause(own: SqlConnection) -> None:
        row = _locked(context, own, name)
        if bool(row.paused) == paused:
            return
        now = context.backend.now(own)
        following = None if paused else next_tick(row.cron, row.timezone, now)
        own.execute(_changing(context, name, paused=int(paused), seen_until=now, next_tick=following))
        change(context, own)

    context.backend.transact(write_pause)


def reset_schedule(context: TableContext, name: str) -> None:
    """Restart a schedule with the next tick after now, if it saw a clock that was ahead; NotFoundError if missing."""

    def write_next_run(own: SqlConnection) -> None:
        row = _locked(context, own, name)
        now = context.backend.now(own)
        following = None if row.paused else next_tick(row.cron, row.timezone, now)
        own.execute(_changing(context, name, seen_until=now, next_tick=following))
        change(context, own)

    context.backend.transact(write_next_run)


def run_schedule(context: TableContext, name: str) -> MessageId:
    """Put a schedule's message now, in addition to its ticks; return its id. NotFoundError if missing."""

    def put_now(own: SqlConnection) -> MessageId:
        row = _locked(context, own, name)
        now = context.backend.now(own)
        message_id = _put(context, own, row, [Tick(now, False)], f"/{secrets.token_hex(4)}")[-1]
        history = with_ticks(row.history, [PastTick(now, "run", str(message_id))])
        own.execute(_changing(context, name, last_id=str(message_id), history=history))
        return message_id

    return context.backend.transact(put_now)


def list_schedules(context: TableContext) -> list[Schedule]:
    """Return a table's schedules, by name."""
    with context.backend.snapshot() as connection:
        found = connection.execute(_all(context)).all()
        now = context.backend.now(connection)
    return [_read(context, row, now) for row in found]


def tick(context: TableContext, *, pieces: int | None = None) -> int:
    """Put the due messages of the table's schedules; return how many.

    A schedule whose message cannot be put does not stop others. It is retried a minute later. Raises `RefusedError` if
    one cannot put its message, once all others are done.

    ``pieces`` is the maximum number of transactions; None: as many as needed.
    """
    put = done = 0
    refused: dict[str, WaterclockError] = {}
    due_at, now = _due_at(context, refused)
    while due_at is not None and due_at <= now and done != pieces:
        some = _tick_all(context, refused)
        put, done = put + some, done + 1
        due_before, (due_at, now) = due_at, _due_at(context, refused)
        if due_at == due_before and not some:  # another process is doing it
            break
    next_look = MAX_NS if due_at is None else due_at
    context.ticks.due_at = min(next_look, now + _MINUTE) if refused else next_look
    for name, error in refused.items():
        raise RefusedError(
            f"schedule {quoted(name)} of table {context.name!r} cannot put its message: {error}"
        ) from error
    return put


def _due_at(context: TableContext, refused: Collection[str]) -> tuple[int | None, int]:
    """Return when the next tick of the schedules that were not refused is due, and the current time."""
    with context.backend.snapshot(indexed=True) as connection:
        due_at, seen_until, now = connection.execute(_earliest(context)).one()
        if seen_until is not None and _ahead(seen_until, now) is not None:
            _warn_of_clock(context, connection.execute(_all(context)).all(), now)
        context.ticks.looked_at = now
        if refused and due_at is not None:
            others = (row for row in connection.execute(_all(context)) if row.name not in refused)
            due_at = min((row.next_tick for row in others if row.next_tick is not None), default=None)
    return due_at, now


def _ahead(seen_until: int, now: int) -> int | None:
    """Return how far processed ticks are ahead of the clock, if by more than servers' clocks usually differ."""
    return seen_until - now if seen_until - now > ON_TIME else None


def _warn_of_clock(context: TableContext, rows: Sequence[Any], now: int) -> None:
    """Warn once per process of each schedule that puts nothing until the clock catches up."""
    for row in rows:
        if row.paused or _ahead(row.seen_until, now) is None or (row.name, row.seen_until) in context.ticks.warned:
            continue
        context.ticks.warned.add((row.name, row.seen_until))
        _log.warning(
            "schedule %r of table %r puts nothing until %s: at its last tick, the database's clock was %s ahead."
            " Run 'waterclock schedule reset %s %s'",
            row.name,
            context.name,
            format_time(row.seen_until),
            format_duration((row.seen_until - now) // _SECOND * _SECOND),
            context.name,
            row.name,
            extra=event("schedule_waits", table=context.name, schedule=row.name),
        )


def _tick_all(context: TableContext, refused: dict[str, WaterclockError]) -> int:
    """Put all due messages in one transaction; if it fails, use one transaction per schedule."""
    try:
        return context.backend.transact(lambda own: _tick(context, own, lambda name: name not in refused))
    except (UnavailableError, ForbiddenError):
        raise
    except WaterclockError:
        put = 0
        for schedule in list_schedules(context):
            if schedule.name in refused:
                continue
            try:
                put += context.backend.transact(
                    lambda own, mine=schedule.name: _tick(context, own, lambda name: name == mine)
                )
            except (UnavailableError, ForbiddenError):
                raise
            except WaterclockError as error:
                _log.warning(
                    "schedule %r of table %r cannot put its message: %s",
                    schedule.name,
                    context.name,
                    error,
                    extra=event("schedule_failed", table=context.name, schedule=schedule.name),
                )
                refused[schedule.name] = error
                context.backend.transact(
                    lambda own, mine=schedule, why=str(error): _note_failure(context, own, mine, why)
                )
        return put


def _note_failure(context: TableContext, connection: SqlConnection, schedule: Schedule, why: str) -> None:
    row = connection.execute(_of_name(context).with_for_update(), {"name": schedule.name}).first()
    if row is not None and row.next_tick is not None and row.next_tick == schedule.next_tick:
        failed = PastTick(row.next_tick, "failed", error=storable(why))
        connection.execute(_changing(context, schedule.name, history=with_ticks(row.history, [failed])))


def _tick(context: TableContext, connection: SqlConnection, is_wanted: Callable[[str], bool]) -> int:
    now = context.backend.now(connection)
    put = 0
    for row in connection.execute(_due(context), {"now": now}).all():
        if not is_wanted(row.name):
            continue
        within, timezone = row.within, check_timezone(row.timezone)  # time zones may differ between machines
        due = due_ticks(row.cron, timezone, row.seen_until, now, catch_up=row.catch_up, within=within)
        ticks = list(due.ticks)
        values: dict[str, Any] = {"next_tick": due.following}
        past = [] if row.next_tick in [one.at for one in ticks] else [PastTick(row.next_tick, "missed")]
        if due.seen is not None:
            values["seen_until"] = due.seen
        if ticks and row.overlap == "skip":
            if _is_under_way(context, connection, row.last_id):
                past.append(PastTick(ticks[-1].at, "skipped"))
                ticks = []
            ticks = ticks[-1:]
        if ticks:
            ids = _put(context, connection, row, ticks)
            values |= {"last_tick": ticks[-1].at, "last_id": str(ids[-1])}
            put += len(ids) - len(ids.existing)
            past += [PastTick(one.at, "put", str(id_)) for one, id_ in zip(ticks, ids, strict=True)]
        connection.execute(_changing(context, row.name, history=with_ticks(row.history, past), **values))
    return put


def _put(context: TableContext, connection: SqlConnection, row: Any, ticks: list[Tick], suffix: str = "") -> PutIds:
    message = _unpacked(context, row.message)
    rows: list[dict[str, Any]] = [
        message
        | {
            "id": _id_of(context, f"{row.name}@{format_time(one.at)}{suffix}"),
            "headers": {
                **(message["headers"] or {}),
                HEADER: row.name,
                TICK: format_time(one.at),
                CAUGHT_UP: "true" if one.caught_up else "false",
            },
        }
        for one in ticks
    ]
    put = put_rows(context, connection, prepare_rows(context, rows))
    existing = put.existing
    while existing and context.options.id_type == "bigint":  # other puts have drawn those numbers
        taken = [one for one in rows if one["id"] in existing]
        for one in taken:
            one["id"] = _id_of(context, "")
        existing = put_rows(context, connection, prepare_rows(context, taken)).existing
        put = PutIds(one["id"] for one in rows)
    return put


def _id_of(context: TableContext, text: str) -> MessageId | None:
    """Return the id of a message: a text id is built from the tick, and on a shard the id maps to it.

    None: the database or the put draws one.
    """
    options = context.options
    where = KeyRange.parse(options.key_range, "key_range")
    if options.id_type == "text":
        texts = chain([text], (f"{text}#{number}" for number in count(2)))
        return next(each for each in texts if keyspace_id(each) in where)
    if options.key_range == WHOLE:
        return None
    return draw_id(where, ()) if options.id_type == "bigint" else draw_uuid(where)


def _is_under_way(context: TableContext, connection: SqlConnection, last_id: str | None) -> bool:
    if last_id is None:
        return False
    rows = context.rows
    lives = sa.func.coalesce(rows.c.expires_at, MAX_NS) > context.backend.now_sql()
    found = sa.select(rows.c.seq).where(rows.c.id == id_from_text(context, last_id), not_acked(rows), lives)
    return connection.execute(found).first() is not None


def _packed(context: TableContext, message: Mapping[str, Any]) -> str:
    [row] = prepare_rows(context, [{**message, "id": _id_of(context, "probe")}]).rows  # raises if it cannot be put
    payload: Any = None if row["message"] is sa.JSON.NULL else row["message"]
    if context.options.payload == "bytes":
        payload = base64.b64encode(payload).decode()
    headers = None if message["headers"] is None else dict(message["headers"])
    return json.dumps({**message, "payload": payload, "headers": headers}, ensure_ascii=False)


def _unpacked(context: TableContext, text: str) -> dict[str, Any]:
    message = json.loads(text)
    if context.options.payload == "bytes":
        message["payload"] = base64.b64decode(message["payload"])
    return message


def _read(context: TableContext, row: Any, now: int) -> Schedule:
    message = _unpacked(context, row.message)
    return Schedule(
        row.name,
        row.cron,
        row.timezone,
        message["payload"],
        message["group"],
        message["headers"] or {},
        message["priority"],
        cast("CatchUp", row.catch_up),
        row.within,
        cast("Overlap", row.overlap),
        bool(row.paused),
        row.last_tick,
        row.next_tick,
        None if row.last_id is None else id_from_text(context, row.last_id),
        _ahead(row.seen_until, now),
        read_ticks(row.history),
    )


def _choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidArgumentError(f"{name} must be one of {', '.join(map(repr, choices))}, got {quoted(value)}")
    return str(value)


def _locked(context: TableContext, connection: SqlConnection, name: str) -> Any:
    row = connection.execute(_of_name(context).with_for_update(), {"name": check_name(name)}).first()
    if row is None:
        known = sa.select(schedules.c.name).where(schedules.c.table_id == context.table_id)
        raise unknown_schedule(context.name, name, [each.name for each in connection.execute(known)])
    return row


def unknown_schedule(table: str, name: str, known: Sequence[str]) -> NotFoundError:
    """Return the error about a schedule that a table does not have."""
    return NotFoundError(unknown_name("schedule", name, known, "create it first", f"message table {quoted(table)}"))


def _this(context: TableContext, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return schedules.c.table_id == context.table_id, schedules.c.name == name


def _changing(context: TableContext, name: str, **values: Any) -> sa.Update:
    return sa.update(schedules).where(*_this(context, name)).values(**values)


@built_once(maxsize=256)
def _of_name(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    named = schedules.c.name == sa.bindparam("name", type_=schedules.c.name.type)
    return sa.select(schedules).where(schedules.c.table_id == context.table_id, named)


@built_once(maxsize=256)
def _all(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    return sa.select(schedules).where(schedules.c.table_id == context.table_id).order_by(schedules.c.name)


@built_once(maxsize=256)
def _earliest(context: TableContext) -> sa.Select[Any, Any, int]:
    its = schedules.c.table_id == context.table_id
    earliest = sa.select(sa.func.min(schedules.c.next_tick)).where(its)
    seen = sa.select(sa.func.max(schedules.c.seen_until)).where(its)
    return sa.select(earliest.scalar_subquery(), seen.scalar_subquery(), context.backend.now_sql())


@built_once(maxsize=256)
def _due(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    due = schedules.c.table_id == context.table_id, schedules.c.next_tick <= sa.bindparam("now", type_=sa.BigInteger)
    return sa.select(schedules).where(*due).order_by(schedules.c.name).limit(_AT_ONCE).with_for_update(skip_locked=True)
