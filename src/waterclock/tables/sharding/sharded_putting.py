"""Puts messages into a sharded table. The id of a message determines its shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

from waterclock.errors import InvalidArgumentError, PartlyPutError, UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.putting.drawing_ids import draw_id, draw_uuid
from waterclock.tables.messages.putting.putting import MessageId, PreparedRows, PutIds, check_id, prepare_rows, put_rows
from waterclock.tables.model.keyspace import KeyRange, keyspace_id
from waterclock.tables.sharding.shard import Shard

_Row = dict[str, Any]


class _UnusedIds:
    def __init__(self, given: Iterable[MessageId]) -> None:
        self._taken = set(given)
        self.drawn: set[int] = set()

    def draw(self, where: KeyRange | None) -> int:
        drawn = draw_id(where, self._taken)
        self._taken.add(drawn)
        self.drawn.add(drawn)
        return drawn


def put_over_shards(
    context: TableContext,  # the table on any shard, against which the messages are checked
    messages: Iterable[Mapping[str, Any]],
    shards: Sequence[Shard],
    open_table: Callable[[Shard], MessageTable],
) -> PutIds:
    """Put messages in one transaction per shard, in parallel.

    Raises `PartlyPutError` if shards were unavailable.
    """
    prepared = prepare_rows(context, messages)
    if prepared.keys:
        raise _no_keys(context.name)
    ids = _UnusedIds(row["id"] for row in prepared.rows if row["id"] is not None)
    for row in prepared.nameless:
        row["id"] = ids.draw(None)
    by_shard: dict[Shard, list[_Row]] = {}
    for row in prepared.rows:
        place = keyspace_id(row["id"])
        by_shard.setdefault(next(shard for shard in shards if place in shard.key_range), []).append(row)
    existing: list[MessageId] = []
    failures: dict[Shard, UnavailableError] = {}
    with ThreadPoolExecutor(max(1, len(by_shard))) as pool:
        waiting = {shard: pool.submit(_put_on, open_table, shard, rows, ids) for shard, rows in by_shard.items()}
        for shard, result in waiting.items():
            try:
                existing += result.result()
            except UnavailableError as error:
                failures[shard] = error
    everything = PutIds([row["id"] for row in prepared.rows], existing)
    if failures:
        missing = [row["id"] for shard in failures for row in by_shard[shard]]
        raise PartlyPutError(_partly(failures, missing, len(everything)), everything, missing) from next(
            iter(failures.values())
        )
    return everything


def put_with(
    table: MessageTable,
    messages: Iterable[Mapping[str, Any]],
    home: Shard,
    connection: Any,
    elsewhere: Callable[[MessageId, Shard], InvalidArgumentError],
) -> PutIds:
    """Put messages in the caller's transaction on one shard, which all of them must belong to."""
    rows = [dict(message) for message in messages]
    if any(row.get("unique") is not None for row in rows):
        raise _no_keys(table.name)
    given = [check_id(table.context, row["id"]) for row in rows if row.get("id") is not None]
    for message_id in given:
        if keyspace_id(message_id) not in home.key_range:
            raise elsewhere(message_id, home)
    ids = _UnusedIds(given)
    drawn = [row for row in rows if row.get("id") is None and table.options.id_type == "bigint"]
    for row in drawn:
        row["id"] = ids.draw(home.key_range)
    if table.options.id_type == "uuid":
        for row in rows:
            if row.get("id") is None:
                row["id"] = draw_uuid(home.key_range)
    put = table.put_many(rows, connection=connection)
    existing = [message_id for message_id in put.existing if message_id not in ids.drawn]
    taken = set(put.existing) & ids.drawn
    while taken:
        again = [row for row in drawn if row["id"] in taken]
        for row in again:
            row["id"] = ids.draw(home.key_range)
        taken = set(table.put_many(again, connection=connection).existing)
    return PutIds([check_id(table.context, row["id"]) for row in rows], existing)


def _no_keys(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"unique must be omitted for table {name!r}, which is sharded by id: no shard knows the keys of the others."
        " Give the message a unique id of your own, or use a table in one database"
    )


def _put_on(
    open_table: Callable[[Shard], MessageTable], shard: Shard, rows: list[_Row], ids: _UnusedIds
) -> list[MessageId]:
    """Put one shard's messages; return the ids that existed before."""
    context = open_table(shard).context
    tries = 0

    def put_once(own: sa.Connection) -> list[MessageId]:
        nonlocal tries
        tries += 1
        found = put_rows(context, own, PreparedRows(rows, [], fresh=False)).existing
        taken = {message_id for message_id in found if message_id in ids.drawn}
        # If the first try finds a message under an id drawn for it, that is another writer's. If a later try does, it
        # is its own: the earlier try committed, although its answer was lost.
        while taken and tries == 1:
            again = [row for row in rows if row["id"] in taken]
            for row in again:
                row["id"] = ids.draw(shard.key_range)
            taken = set(put_rows(context, own, PreparedRows(again, [], fresh=False)).existing)
        return [message_id for message_id in found if message_id not in ids.drawn]

    return context.backend.transact(put_once)


def _partly(failures: Mapping[Shard, UnavailableError], missing: list[MessageId], count: int) -> str:
    away = "; ".join(f"{shard.name}: {error}" for shard, error in failures.items())
    named = ", ".join(map(repr, missing[:10])) + (" …" if len(missing) > 10 else "")  # noqa: PLR2004  # a line's worth
    return (
        f"{len(missing)} of {count} messages were not put ({named}), because shards are unavailable ({away})."
        " Put them again later, with the ids of this error"
    )
