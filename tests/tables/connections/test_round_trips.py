"""How often each verb waits for the server: on a network that, and no statement, is what a call costs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count, islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
from benchmarks.tables.peers import conninfo
from benchmarks.tables.slow_wire import SlowWire, slow_wire
from tests.support.moments import ReadFrom
from tests.support.services import Service
from tests.tables.conftest import MovableClock

from waterclock._support.moments import replaced
from waterclock.connection import Database, connect
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable

AWAY = 0.003  # s; a client that is halted for longer counts as one that waited
TRIES = 3  # so the fewest of these is what the verb needs

MOST: dict[str, dict[str, int]] = {
    "no groups": {
        "put": 1,
        "put of 100": 1,
        "put in a caller's transaction": 1,
        "claim of 100": 1,
        "claim of an empty table": 1,
        "claim of an empty table, a second later": 2,
        "ack": 1,
        "ack of 100": 1,
        "ack by id": 1,
        "ack in a caller's transaction": 1,
        "nack": 1,
        "nack of 10": 1,
        "extend": 1,
        "extend of 10": 1,
        "save": 1,
    },
    "sequenced": {
        "put": 1,
        "put of 100": 1,
        "put in a caller's transaction": 1,
        "claim of 100": 2,
        "claim of an empty table": 1,
        "claim of an empty table, a second later": 2,
        "ack": 2,
        "ack of 100": 2,
        "ack by id": 3,
        "ack in a caller's transaction": 3,
        "nack": 2,
        "nack of 10": 2,
        "extend": 2,
        "extend of 10": 2,
        "save": 2,
    },
    "exclusive": {
        "put": 1,
        "put of 100": 1,
        "put in a caller's transaction": 1,
        "claim of 100": 2,
        "claim of an empty table": 1,
        "claim of an empty table, a second later": 2,
        "ack": 2,
        "ack of 100": 2,
        "ack by id": 3,
        "ack in a caller's transaction": 5,
        "nack": 2,
        "nack of 10": 2,
        "extend": 2,
        "extend of 10": 2,
        "save": 2,
    },
}
"""Round trips of each verb on PostgreSQL, at the most. A change that saves one lowers the number."""

GROUPS = {"no groups": None, "sequenced": "sequenced", "exclusive": "exclusive"}


@pytest.fixture
def wire(postgresql_server: Service) -> Generator[SlowWire]:
    with postgresql_server.new_database() as url, slow_wire(url, AWAY) as found:
        yield found


@pytest.fixture
def passing() -> Generator[MovableClock]:
    """Let no second pass but where the test says so: each second, options are looked at and heartbeats beat."""
    clock = MovableClock()
    with replaced(ReadFrom(clock)):
        yield clock


@pytest.fixture
def database(wire: SlowWire, tmp_path: Path, passing: MovableClock) -> Generator[Database]:
    with connect(wire.url, tmp_path / "ledgers") as found:
        yield found


@pytest.fixture
def theirs(wire: SlowWire) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(**conninfo(wire.url)) as found:
        yield found


class _Verbs:
    """Calls verbs of a table in which nothing is due but what goes before, which is not counted."""

    def __init__(self, table: MessageTable, wire: SlowWire) -> None:
        self.table = table
        self._wire = wire
        self._names = (f"g{number}" for number in count())

    def hundred(self) -> list[dict[str, Any]]:
        """Make a hundred messages, ten of a group, and all groups new."""
        return [{"payload": "x", "group": group} for group in islice(self._names, 10) for _ in range(10)]

    def one(self) -> Delivery:
        self.table.put("x", group=next(self._names))
        return self.table.receive(1)[0]

    def claimed(self, limit: int = 100) -> list[Delivery]:
        self.table.put_many(self.hundred()[:limit])
        return self.table.receive(limit)

    def trips(self, before: Callable[[], Any], call: Callable[[Any], object], after: Callable[[], object]) -> int:
        """Count the round trips of a call, which gets what ``before`` gave."""
        found: list[int] = []
        for _ in range(TRIES):
            given = before()
            began = self._wire.trips
            call(given)
            found.append(self._wire.trips - began)
            after()
        return min(found)


@pytest.mark.parametrize("kind", GROUPS)
def test_no_verb_takes_more_round_trips_than_its_limit(
    database: Database, theirs: psycopg.Connection[Any], wire: SlowWire, passing: MovableClock, kind: str
) -> None:
    table = database.create_table("orders", payload="text", ack_wait="1h", groups=GROUPS[kind])
    filled = database.create_table("filled", payload="text", groups=GROUPS[kind])
    empty = database.create_table("nothing", payload="text", groups=GROUPS[kind])
    verbs = _Verbs(table, wire)

    def begun(before: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: (before(), theirs.execute("SELECT 1"))[0]

    calls: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "put": (lambda: None, lambda _: filled.put("x", group="g")),
        "put of 100": (verbs.hundred, filled.put_many),
        "put in a caller's transaction": (
            begun(lambda: None),
            lambda _: filled.put("x", group="g", connection=theirs),
        ),
        "claim of 100": (lambda: table.put_many(verbs.hundred()), lambda _: table.receive(100)),
        "claim of an empty table": (lambda: None, lambda _: empty.receive(1)),
        "claim of an empty table, a second later": (lambda: passing.move("1.5s"), lambda _: empty.receive(1)),
        "ack": (verbs.one, lambda given: given.ack()),
        "ack of 100": (verbs.claimed, table.ack),
        "ack by id": (verbs.one, lambda given: table.ack(given.id)),
        "ack in a caller's transaction": (begun(verbs.one), lambda given: given.ack(connection=theirs)),
        "nack": (verbs.one, lambda given: given.nack("1h")),
        "nack of 10": (lambda: verbs.claimed(10), lambda given: table.nack(given, "1h")),
        "extend": (verbs.one, lambda given: given.extend("2h")),
        "extend of 10": (lambda: verbs.claimed(10), lambda given: table.extend(given, "2h")),
        "save": (verbs.one, lambda given: given.save({"page": 1})),
    }
    found = {name: verbs.trips(before, call, theirs.commit) for name, (before, call) in calls.items()}
    assert {name: trips for name, trips in found.items() if trips > MOST[kind][name]} == {}


def test_all_statements_that_create_a_table_take_one_round_trip(database: Database, wire: SlowWire) -> None:
    names = (f"table_{number}" for number in count())
    trips: list[int] = []
    for _ in range(TRIES):
        began = wire.trips
        database.create_table(next(names), payload="text", groups="sequenced")
        trips.append(wire.trips - began)
    # The others read and write the catalogue, and read the columns of the new table.
    assert min(trips) <= 12
