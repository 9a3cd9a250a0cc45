"""A consumer that waits for a group that is being changed gets it, as it is then."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.groups.group_state import lock_groups
from waterclock.tables.message_table import MessageTable

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Waiting:
    """Does something in another thread, which has to wait for a lock."""

    def __init__(self, database: Database, work: Any) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=lambda: setattr(self, "result", work()))
        self._thread.start()
        until = time.monotonic() + 60
        with database.backend.engine.connect() as connection:
            while not connection.execute(sa.text(WAITING)).scalar():
                connection.rollback()
                assert self._thread.is_alive(), "it did not wait"
                assert time.monotonic() < until
                time.sleep(0.01)

    def finish(self) -> Any:
        self._thread.join(60)
        return self.result


# The others' rows stay where they are when they are changed.
pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def test_waiting_for_locks_of_groups_returns_groups_changed_meanwhile(
    sequenced: MessageTable, database: Database
) -> None:
    sequenced.put_many([{"payload": "x", "group": group} for group in "abc"])
    sequenced.receive(1)
    context = sequenced._context
    with database.backend.engine.connect() as other:
        other.execute(sa.update(groups).where(groups.c.group_id == "b").values(paused_until=17))
        waiting = Waiting(
            database, lambda: context.backend.transact(lambda own: lock_groups(context, own, ["c", "b", "a"]))
        )
        other.commit()
    assert {name: row.paused_until for name, row in waiting.finish().items()} == {"a": None, "b": 17, "c": None}


def test_an_ack_that_waited_for_its_group_frees_it(sequenced: MessageTable, database: Database) -> None:
    sequenced.put_many([{"payload": number, "group": "a"} for number in "12"])
    [first] = sequenced.receive(1)
    with database.backend.engine.connect() as other:
        # As the consumer does that routes a new message of the group, or a command that touches it.
        other.execute(sa.update(groups).where(groups.c.group_id == "a").values(tail=groups.c.tail))
        waiting = Waiting(database, lambda: sequenced.ack(first))
        other.commit()
    assert waiting.finish() == 1
    with database.backend.snapshot() as connection:
        noted = connection.execute(sa.select(groups).where(groups.c.group_id == "a")).one()
    assert (noted.head, noted.next_position, noted.ready_at is not None) == (2, 2, True)
    assert [one.payload for one in sequenced.receive(10)] == ["2"]
