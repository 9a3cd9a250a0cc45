"""Reads a message table as a stream: claims messages, passes them to Spark, and acks them when Spark has finished.

An offset is JSON in the query's checkpoint, and holds the ids that its micro-batch claimed, each with its epoch. So a
micro-batch that is run again, even after a restart, has the same messages. The messages are acked only after Spark has
recorded in its checkpoint that the micro-batch is finished. Until then, this process extends their leases. An offset
also has the time of the table's creation. If the table was dropped and created again since, the checkpoint is refused,
because its ids may name other messages.
"""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import message_tables
from waterclock.errors import NotFoundError, WaterclockError
from waterclock.spark.options import plainly
from waterclock.spark.reading.table_read_options import TableReadOptions
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing import extending

Offset = dict[str, Any]

MAX_MESSAGES = 1000
"""Messages of a micro-batch without ``maxMessagesPerTrigger``; the checkpoint holds all their ids."""

_IDS_AT_ONCE = 500

_log = logging.getLogger(__name__)


class _Share(NamedTuple):
    """The messages of one task: ids in order, each with the epoch of its claim."""

    messages: tuple[tuple[int | str, int], ...]


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims on the driver, reads the messages by their ids in tasks, and acks finished ones."""

    def __init__(self, options: TableReadOptions) -> None:
        self._options = options
        self._left: int | None = None
        self._keeper: _LeaseKeeper | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset at which nothing has been claimed."""
        return {"batch": 0, "messages": []}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that the option ``maxMessagesPerTrigger`` sets."""
        return ReadMaxRows(self._options.max_messages or MAX_MESSAGES)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Ack the messages of the last micro-batch, since Spark asks only once it is finished, and claim the next."""
        with plainly():
            self._ack(start)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else MAX_MESSAGES
            most = most if self._left is None else min(most, self._left)
            claimed = self._table.receive(limit=most, consumer=self._options.consumer) if most else []
            if not claimed:
                return start
            self._keeper = _LeaseKeeper(self._table, claimed)
            if self._left is not None:
                self._left -= len(claimed)
            messages = [[_to_json(one.id), one.epoch] for one in claimed]
            return {"batch": start["batch"] + 1, "messages": messages, "made": self._made}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Count the due messages: this query claims no more."""
        with plainly():
            self._left = self._table.stats().ready

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # noqa: ARG002  # the end says it all
        """Share a micro-batch out to tasks, each group to one."""
        with plainly():
            self._refuse_other(end)
            groups = self._groups([name for name, _ in end["messages"]])
            shares: dict[int, list[tuple[int | str, int]]] = {}
            for name, epoch in end["messages"]:
                # The same task for a group in each run, as Python's own hash would not give it.
                task = zlib.crc32(groups[name].encode()) % self._options.tasks
                shares.setdefault(task, []).append((name, epoch))
            return [InputPartition(_Share(tuple(share))) for _, share in sorted(shares.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task, in the order in which they were claimed."""
        share = cast("_Share", partition.value).messages
        with plainly(), self._options.connect() as database:
            table = database.table(self._options.table)
            for first in range(0, len(share), _IDS_AT_ONCE):
                some = share[first : first + _IDS_AT_ONCE]
                rows = _rows(table, [name for name, _ in some])
                if lost := [name for name, _ in some if name not in rows]:
                    raise NotFoundError(
                        f"message {lost[0]!r} of message table {table.name!r} was deleted after this stream had claimed"
                        " it. Start the query with a new checkpoint"
                    )
                yield self._options.batch([rows[name] for name, _ in some], [epoch for _, epoch in some])

    def commit(self, end: Offset) -> None:
        """Ack the messages of a finished micro-batch."""
        with plainly():
            self._ack(end)

    def stop(self) -> None:
        """Abandon the leases, and release the database's connections."""
        if self._keeper is not None:
            self._keeper.stop()
        if "_database" in self.__dict__:
            self._database.close()

    @cached_property
    def _database(self) -> Database:
        # Opened at the first use, because Spark sends readers to its workers before that.
        return self._options.connect()

    @cached_property
    def _table(self) -> MessageTable:
        return self._database.table(self._options.table)

    @cached_property
    def _made(self) -> int:
        statement = sa.select(message_tables.c.time_created).where(message_tables.c.name == self._table.name)
        with self._table.context.backend.snapshot() as connection:
            return connection.execute(statement).scalar_one()

    def _refuse_other(self, offset: Offset) -> None:
        """Check that an offset is of this message table, and not of one that had its name."""
        if offset["messages"] and offset["made"] != self._made:
            raise NotFoundError(
                f"the checkpoint belongs to another message table named {self._table.name!r}, which was"
                " removed or is in another database. Start the query with a new checkpoint, or connect to the"
                " original database"
            )

    def _ack(self, offset: Offset) -> None:
        self._refuse_other(offset)
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        if offset["messages"]:
            self._table.ack([name for name, _ in offset["messages"]])

    def _groups(self, names: Sequence[int | str]) -> dict[int | str, str]:
        """Return for each message a key that keeps it in one task: its group, or its own id if it has no order."""
        if self._table.options.groups is None:
            return {name: str(name) for name in names}
        rows = _rows(self._table, names)
        return {name: rows[name].group_id or "" if name in rows else "" for name in names}


class _LeaseKeeper:
    """Extends the leases of a micro-batch in the background while Spark processes it."""

    def __init__(self, table: MessageTable, deliveries: Sequence[Delivery]) -> None:
        self._table = table
        self._leased = [delivery.leased for delivery in deliveries]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"leases of {table.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not moments.wait(self._stopped, self._table.options.ack_wait / 3e9):
            context = self._table.context
            length = context.options.ack_wait
            try:
                lost = context.backend.transact(
                    lambda own: sum(extending.extend(context, own, leased, length) is None for leased in self._leased)  # noqa: B023  # run at once
                )
            except WaterclockError as error:
                _log.warning("cannot extend the leases of message table %r: %s", self._table.name, error)
                continue
            if lost:
                _log.warning("%d messages of message table %r went to another consumer", lost, self._table.name)


def _rows(table: MessageTable, names: Sequence[int | str]) -> dict[int | str, Any]:
    context = table.context
    ids = [uuid.UUID(str(name)) for name in names] if context.options.id_type == "uuid" else list(names)
    statement = sa.select(context.rows).where(context.rows.c.id.in_(ids))
    with context.backend.snapshot() as connection:
        return {_to_json(row.id): row for row in connection.execute(statement)}


def _to_json(name: object) -> int | str:
    return name if isinstance(name, int) else str(name)
