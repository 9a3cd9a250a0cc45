"""Deduplicates messages by keys that producers choose: of all messages with the same key, at most one waits at a time.

A key's row in the catalogue names the message that was last put with this key. A put with the key locks the row until
its transaction ends, so puts with one key run one after another. A message keeps its key until it is claimed, or until
it is acked or dead; the producer chooses which. The message's row shows whether that has happened, so claims, acks,
nacks and plain SQL need not know about keys. A retried message that gave up its key when it was claimed does not get
the key back, so it cannot conflict with a message that was put with this key meanwhile.

In a caller's transaction, a put also locks the existing message, so that no consumer takes it before the caller's own
data are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import USED_SLOT_BITS, unique_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.inserting import OMITTED, parameter_name
from waterclock.tables.messages.putting.putting import (
    MessageId,
    PreparedRows,
    PutIds,
    UniqueKey,
    id_from_text,
    put_rows,
)
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import put_columns
from waterclock.time import MAX_NS

_HOUR = 3_600_000_000_000

KEPT = _HOUR  # minimum time for which the row of a key is kept after a producer used it, ns

_AT_ONCE = 500
_CONTENT = ("message", "headers", "group_id", "priority", "expires_at")


def prepare_keys(context: TableContext, keys: Sequence[UniqueKey | None]) -> None:
    """Create missing rows of keys, in a short transaction of our own.

    Transactions that insert the same key wait for each other, and MariaDB aborts one of two waiting ones when the first
    is rolled back. Transactions that lock an existing row simply follow each other.
    """
    if context.sql.one_writer:
        return  # on a database with one writer, the put's own transaction creates them
    names = _names(keys)

    def insert_keys(own: SqlConnection) -> None:
        now = context.backend.now(own)
        used = {row.unique_key: row.used_at for row in own.execute(_used(context), {"names": names})}
        _insert_missing(context, own, [name for name in names if name not in used], now)
        old = [name for name in names if used.get(name, now) < now - KEPT // 2]
        # Otherwise a purge could delete them before they are locked. Locked ones are in use, maybe by the caller.
        free = _lock(context, own, old, waits=False) if old else {}
        if free:
            own.execute(_using(context), [{"key": name, "now": now} for name in sorted(free)])

    context.backend.transact(insert_keys)


def put_keyed(context: TableContext, connection: SqlConnection, prepared: PreparedRows, *, locks: bool) -> PutIds:
    """Put messages, except those whose keys are taken; return the ids of the messages that stand for them.

    ``locks`` says whether those stay locked until the transaction ends.
    """
    names = _names(prepared.keys)
    held = _lock(context, connection, names)
    if len(held) < len(names):
        now = context.backend.now(connection)
        _insert_missing(context, connection, [name for name in names if name not in held], now)
        held = _lock(context, connection, names)
    waiting = _waiting(context, connection, held, locks=locks)
    there = _there(context, connection, prepared)
    new: list[dict[str, Any]] = []
    by_key: dict[str, dict[str, Any]] = {}
    put: list[dict[str, Any] | MessageId] = []
    existing: list[dict[str, Any] | MessageId] = []
    for row, key in zip(prepared.rows, prepared.keys, strict=True):
        stands: dict[str, Any] | MessageId | None = None
        if key is not None:
            stands = by_key.get(key.text)
            if isinstance(stands, dict):
                if key.replaces:
                    stands.update({name: value for name, value in row.items() if name != "id" and value is not OMITTED})
            elif key.text in waiting:
                stands = waiting[key.text]
                is_there = not key.replaces or _replace(context, connection, stands, row, held[key.text])
                if not (is_there or locks or held[key.text].until_done):  # a consumer has just claimed it
                    del waiting[key.text]
                    stands = None
        if stands is None:
            new.append(row)
            stands = row
            if key is not None and row["id"] not in there:
                by_key[key.text] = row
        else:
            existing.append(stands)
        put.append(stands)
    inserted = _put_new(context, connection, prepared, new)
    prepared.tried = True
    there.update(inserted.existing)  # put meanwhile
    _note(context, connection, prepared.keys, {key: row for key, row in by_key.items() if row["id"] not in there})
    return PutIds([_id(one) for one in put], [*inserted.existing, *(_id(one) for one in existing)])


def _there(context: TableContext, connection: SqlConnection, prepared: PreparedRows) -> set[MessageId]:
    """Return which keyed messages already exist by id: putting them changes nothing, so they get no key."""
    drawn = {id(row) for row in prepared.nameless}
    given = [
        row["id"]
        for row, key in zip(prepared.rows, prepared.keys, strict=True)
        if key is not None and id(row) not in drawn
    ]
    return set(connection.scalars(_being_there(context), {"ids": sorted(given, key=str)})) if given else set()


def _id(one: dict[str, Any] | MessageId) -> MessageId:
    return one["id"] if isinstance(one, dict) else one


def _put_new(
    context: TableContext, connection: SqlConnection, prepared: PreparedRows, new: list[dict[str, Any]]
) -> PutIds:
    chosen = {id(row) for row in new}
    nameless = [row for row in prepared.nameless if id(row) in chosen]
    return put_rows(context, connection, PreparedRows(new, nameless, fresh=prepared.fresh, tried=prepared.tried))


def _names(keys: Sequence[UniqueKey | None]) -> list[str]:
    return sorted({key.text for key in keys if key is not None})


def _lock(context: TableContext, connection: SqlConnection, names: list[str], *, waits: bool = True) -> dict[str, Any]:
    found = connection.execute(_locking(context, waits=waits), {"names": names})
    return {row.unique_key: row for row in found}


def _insert_missing(context: TableContext, connection: SqlConnection, names: list[str], now: int) -> None:
    if names:
        fixed = {"table_id": context.table_id, "message_id": None, "until_done": 0, "used_at": now}
        context.sql.insert_missing(connection, unique_keys, [{**fixed, "unique_key": name} for name in names])


def _waiting(
    context: TableContext, connection: SqlConnection, held: Mapping[str, Any], *, locks: bool
) -> dict[str, MessageId]:
    """Return which messages still have their keys."""
    ids = {name: id_from_text(context, row.message_id) for name, row in held.items() if row.message_id is not None}
    if not ids:
        return {}
    # A caller's transaction may have an old snapshot, so our own transaction reads rows that others have committed.
    sees_old = locks and context.sql.reads_old
    unclaimed = context.backend.look(_looking_at(context, ids)) if sees_old else _looking_at(context, ids)(connection)
    # Leased messages are not locked: the consumer's transaction, which acks one, may be waiting for the key.
    out = {name: one for name, one in ids.items() if not unclaimed.get(one, True)}
    if sees_old and out:  # other transactions do not see the acks of this one yet
        acked = set(connection.scalars(_acked(context), {"ids": sorted(out.values(), key=str)}))
        out = {name: one for name, one in out.items() if one not in acked}
    free = {name: one for name, one in ids.items() if name not in out and (one in unclaimed or sees_old)}
    if locks and free:
        unclaimed = _looking_at(context, free, locked=True)(connection)
    stands = {name: one for name, one in out.items() if held[name].until_done}
    return stands | {
        name: one for name, one in free.items() if one in unclaimed and (unclaimed[one] or held[name].until_done)
    }


def _looking_at(
    context: TableContext, ids: Mapping[str, MessageId], *, locked: bool = False
) -> Callable[[SqlConnection], dict[MessageId, bool]]:
    """Return whether messages that are neither acked nor expired are unclaimed."""

    def look(connection: SqlConnection) -> dict[MessageId, bool]:
        rows = connection.execute(_looking(context, locked=locked), {"ids": sorted(ids.values(), key=str)})
        return {row.id: bool(row.is_unclaimed) for row in rows}

    return look


def _replace(
    context: TableContext, connection: SqlConnection, message_id: MessageId, row: Mapping[str, Any], held: Any
) -> bool:
    """Replace the content of a waiting message with that of another one; return False if a consumer has claimed it."""
    # A column with a default keeps the value that it has.
    own = tuple(name for name in put_columns(context.rows) if row[name] is not OMITTED)
    values = {parameter_name(f"new_{name}"): row[name] for name in (*_CONTENT, *own)}
    at = {"of": message_id, "new_at": row["at"]}
    statement = _replacing(context, own, until_done=bool(held.until_done))
    changed = connection.execute(statement, {**values, **at}).rowcount == 1
    context.marks.forget()
    return changed


def _note(
    context: TableContext,
    connection: SqlConnection,
    keys: Sequence[UniqueKey | None],
    by_key: Mapping[str, Mapping[str, Any]],
) -> None:
    until_done = {key.text: int(key.until_done) for key in keys if key is not None}
    noted = [
        {"key": name, "message": str(row["id"]), "until": until_done[name]} for name, row in sorted(by_key.items())
    ]
    if noted:
        connection.execute(_noting(context), noted)


def purge_keys(context: TableContext) -> int:
    """Delete keys without a message that no producer used for `KEPT`, some at a time; return how many."""
    with context.backend.snapshot() as connection:
        # On SQLite, do not take the write lock if there is nothing to delete.
        before = context.backend.now(connection) - KEPT
        if connection.execute(_old(context).limit(1), {"before": before}).first() is None:
            return 0
    return context.backend.transact(lambda own: _purge_chunk(context, own))


def _purge_chunk(context: TableContext, connection: sa.Connection) -> int:
    now = context.backend.now(connection)
    old = _old(context).limit(_AT_ONCE).with_for_update(skip_locked=True)
    held = {row.unique_key: row for row in connection.execute(old, {"before": now - KEPT})}
    waiting = _waiting(context, connection, held, locks=False)
    if waiting:
        connection.execute(_using(context), [{"key": name, "now": now} for name in sorted(waiting)])
    gone = [{"key": name} for name in sorted(held.keys() - waiting.keys())]
    if gone:
        connection.execute(sa.delete(unique_keys).where(*_this(context)), gone)
    return len(gone)


def _this(context: TableContext) -> tuple[sa.ColumnElement[bool], ...]:
    return unique_keys.c.table_id == context.table_id, unique_keys.c.unique_key == sa.bindparam("key")


@built_once(maxsize=256)
def _locking(context: TableContext, *, waits: bool) -> sa.Select[*tuple[Any, ...]]:
    columns = unique_keys.c.table_id, unique_keys.c.unique_key
    return context.sql.lock_keys(unique_keys, context.table_id, columns, "names", skip_locked=not waits)


@built_once(maxsize=256)
def _used(context: TableContext) -> sa.Select[Any, Any]:
    columns = unique_keys.c.table_id, unique_keys.c.unique_key
    these = context.sql.any_key(unique_keys, context.table_id, columns, "names")
    return sa.select(unique_keys.c.unique_key, unique_keys.c.used_at).where(these)


@built_once(maxsize=256)
def _using(context: TableContext) -> sa.Update:
    return sa.update(unique_keys).where(*_this(context)).values(used_at=sa.bindparam("now", type_=sa.BigInteger))


@built_once(maxsize=256)
def _noting(context: TableContext) -> sa.Update | sa.Insert:
    noted = {"message_id": sa.bindparam("message"), "until_done": sa.bindparam("until")}
    key = {"table_id": context.table_id, "unique_key": sa.bindparam("key")}
    return context.sql.change_each(unique_keys, sa.and_(*_this(context)), key, noted, used_at=context.backend.now_sql())


@built_once(maxsize=256)
def _old(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    before = sa.bindparam("before", type_=sa.BigInteger)
    slot = before.bitwise_rshift(sa.literal_column(str(USED_SLOT_BITS)))
    which = unique_keys.c.used_slot <= slot, unique_keys.c.used_at <= before
    chosen = sa.select(unique_keys).where(unique_keys.c.table_id == context.table_id, *which)
    return chosen.order_by(unique_keys.c.used_slot)


@built_once(maxsize=256)
def _being_there(context: TableContext) -> sa.Select[Any]:
    return sa.select(context.rows.c.id).where(context.sql.any_of(context.rows.c.id, "ids"))


@built_once(maxsize=256)
def _acked(context: TableContext) -> sa.Select[Any]:
    rows = context.rows
    acked = sa.not_(not_acked(rows)) | rows.c.ack_held_at.is_not(None)
    return sa.select(rows.c.id).where(context.sql.any_of(rows.c.id, "ids"), acked)


@built_once(maxsize=256)
def _looking(context: TableContext, *, locked: bool) -> sa.Select[*tuple[Any, ...]]:
    rows = context.rows
    lives = (sa.func.coalesce(rows.c.expires_at, MAX_NS) > context.backend.now_sql()) & rows.c.ack_held_at.is_(None)
    chosen = sa.select(rows.c.id, _is_unclaimed(rows).label("is_unclaimed")).where(
        context.sql.any_of(rows.c.id, "ids"), not_acked(rows), lives
    )
    return chosen.order_by(rows.c.seq).with_for_update() if locked else chosen


def _is_unclaimed(rows: sa.Table) -> sa.ColumnElement[bool]:
    return rows.c.claim_id.is_(None) & (rows.c.epoch == 0)


@built_once(maxsize=256)
def _replacing(context: TableContext, own: tuple[str, ...], *, until_done: bool) -> sa.Update:
    rows, now = context.rows, context.backend.now_sql()
    free = rows.c.claim_id.is_(None) | (rows.c.time_next <= now) if until_done else _is_unclaimed(rows)
    at = sa.func.coalesce(sa.bindparam("new_at", type_=sa.BigInteger), now)
    content = {name: sa.bindparam(parameter_name(f"new_{name}"), type_=rows.c[name].type) for name in (*_CONTENT, *own)}
    chosen = rows.c.id == sa.bindparam("of", type_=rows.c.id.type)
    # A consumer with a lapsed lease may still ack late. That ack is for the old content, not for the new.
    times = {"time_scheduled": at, "time_next": at, "claim_id": None}
    return sa.update(rows).where(chosen, not_acked(rows), free).values(**times, **content)
