"""Reads the figures of a database that metrics export and the overview page shows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from waterclock._support import moments
from waterclock._support.quoting import in_a_line
from waterclock.database.backend import Backend
from waterclock.database.deadlines import answers_within
from waterclock.database.held_snapshots import held_snapshots
from waterclock.errors import ForbiddenError, UnavailableError, WaterclockError
from waterclock.monitoring.table_facts import TableCounter, TableCounts, TableRecord, table_records
from waterclock.monitoring.topic_facts import (
    SubscriptionRecord,
    TopicRecord,
    UpkeepRecord,
    subscription_records,
    topic_records,
    upkeep_records,
)

LONGEST = 4.0  # seconds after which a collection reads no further tables, and closes a connection that does not answer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a database."""

    # The catalogue's record of each message table, and the counts of readable tables, by name.
    tables: Sequence[TableRecord]
    counts: dict[str, TableCounts]
    unread: Sequence[str]  # names of tables that could not be read, or for which no time was left
    # The catalogue's records of them.
    topics: Sequence[TopicRecord]
    subscriptions: Sequence[SubscriptionRecord]
    upkeep: Sequence[UpkeepRecord]
    oldest_transaction: int | None  # for how many seconds the oldest transaction is open; None: not shown
    seconds: float  # how long the reading took


class FactsReader:
    """Reads the facts of a database. Keeps the columns of its tables between two readings."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._counter = TableCounter(backend)

    def read(self) -> Facts:
        began = moments.monotonic()
        backend = self._backend
        with answers_within(LONGEST), backend.patience(LONGEST):
            with backend.snapshot(indexed=True) as connection:
                tables = table_records(backend, connection)
                topics = topic_records(connection)
                subscriptions = subscription_records(connection)
                upkeep = upkeep_records(connection)
            oldest = _oldest_transaction(backend)
            counts, unread = self._count(tables, began + LONGEST)
        return Facts(tables, counts, unread, topics, subscriptions, upkeep, oldest, moments.monotonic() - began)

    def _count(self, tables: Sequence[TableRecord], until: float) -> tuple[dict[str, TableCounts], list[str]]:
        """Count the rows of each table; one that cannot be read, or for which no time is left, does not stop others."""
        backend = self._backend
        self._counter.keep_only(tables)
        counts: dict[str, TableCounts] = {}
        unread: list[str] = []
        left = deque(tables)
        while left:
            try:
                with backend.snapshot(indexed=True) as connection:
                    now = backend.now(connection)
                    while left:
                        if moments.monotonic() <= until:
                            counts[left[0].name] = self._counter.count(left[0], connection, now)
                        else:
                            unread.append(left[0].name)
                        left.popleft()
            except UnavailableError:
                raise
            except WaterclockError as error:
                _log.info("cannot count the messages of table %r: %s", left[0].name, in_a_line(str(error)))
                unread.append(left.popleft().name)
        return counts, unread


def _oldest_transaction(backend: Backend) -> int | None:
    """Return for how many seconds the oldest transaction is open.

    None on SQLite, whose readers do not make writers slower, and if the server shows no transactions to this user.
    """
    try:
        held = held_snapshots(backend, longest=0)
    except ForbiddenError:
        return None
    return None if held is None else max((one.seconds for one in held), default=0)
