"""Limits how many messages of each key are delivered per second to all consumers together, by the database's clock.

The state of a limit is in the rows of its key. A claim reads and writes this state only while it owns the key. So the
limit counts exactly the claimed messages. If the process dies, the database rolls the claim back, and the messages do
not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.keys.key_limits import NO_KEY
from waterclock.tables.keys.key_rows import Place, set_rates
from waterclock.tables.keys.turn_tiers import HAS_TURN
from waterclock.tables.model.timing.rate import Rate


class KeyRates:
    """What the rate limit lets go at one moment, of the keys that a transaction owns.

    ``rate`` is None without a limit. ``owned`` are the rows of each key.
    """

    def __init__(self, rate: Rate | None, owned: Mapping[str, Sequence[Any]], now: int) -> None:
        self._rate = rate
        self._now = now
        self._rows = owned
        self._states: dict[str, int] = {}
        if rate is not None:
            self._states = {
                key: rate.anchored(max(row.rate_next for row in rows), now)
                for key, rows in owned.items()
                if key != NO_KEY
            }

    def allowed(self, key: str, most: int) -> int:
        """Return how many of ``most`` messages of a key may go now."""
        if self._rate is None or key not in self._states:
            return most
        return self._rate.allowed(self._states[key], self._now, most)

    def note_sent(self, key: str, count: int, at: int) -> None:
        """Count messages of a key that were sent at a time, ns."""
        if self._rate is not None and key in self._states:
            self._states[key] = self._rate.taken(self._states[key], at, count)

    def used_until(self, key: str) -> int:
        """Return until when the state of a key must be kept, ns; 0 without one."""
        return self._states.get(key, 0)

    def paused(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return those of the rows whose key may send nothing now, and until when, ns."""
        if self._rate is None:
            return {}
        return {place: self._rate.free_at(self._states[place[0]]) for place in places if not self.allowed(place[0], 1)}

    def write(self, context: TableContext, connection: SqlConnection) -> None:
        """Write the states that have changed. The latest in a key's rows applies, so one row can hold a later one."""
        changed: dict[Place, int] = {}
        for key, state in self._states.items():
            rows = self._rows[key]
            written = [row for row in rows if row.rate_next > state]
            if state > max(row.rate_next for row in rows):
                written = [row for row in rows if row.is_due == HAS_TURN][:1]  # not one that has ended
            changed |= {(key, row.level): state for row in written}
        set_rates(context, connection, changed)


def key_free_at(context: TableContext, connection: sa.Connection, key: str, now: int) -> int | None:
    """Return when the rate limit lets the next message of a key go, ns; None without a limit."""
    rate = context.options.rate_of_a_key
    if rate is None or key == NO_KEY:
        return None
    state = connection.execute(_state(context), {"key": key}).scalar() or 0
    return rate.free_at(rate.anchored(state, now))


@built_once(maxsize=256)
def _state(context: TableContext) -> sa.Select[int]:
    its = message_keys.c.message_key == sa.bindparam("key", type_=message_keys.c.message_key.type)
    return sa.select(sa.func.max(message_keys.c.rate_next)).where(message_keys.c.table_id == context.table_id, its)
