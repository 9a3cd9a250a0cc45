"""Every verb of a message table, next to other queues, with a server that is 1 ms away, and with one that is not.

``python -m benchmarks tables.round_trips`` takes some four minutes. The queues take turns, call by call. Round trips
and bytes are counted on the way, so they hold on any machine; milliseconds hold for a quiet one.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.servers import SCRATCH, running
from benchmarks.tables.peers import ON_POSTGRESQL, PAYLOAD, WITH_GROUPS, MissingPeerError, Verbs
from benchmarks.tables.queues import new_database
from benchmarks.tables.slow_wire import SlowWire, slow_wire

AWAY = 0.001  # s, a round trip
ROWS = 20_000
ROWS_IN_GROUPS = 5_000  # for pgmq a claim of groups takes six seconds with 20,000
FILL = 1000
ROUNDS = 15
WARM = 3  # rounds that do not count: what comes first is compiled, planned and cached
LONGEST = 1.5  # s of a queue at one verb; it is called no more then
BESIDE = "CREATE TABLE beside (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data text NOT NULL)"

BESIDE_THEM = "waterclock, no groups"

Prepare = Callable[[Verbs], Any]
Call = Callable[[Verbs, Any], Any]
Tidy = Callable[[Verbs, Any], Any]


@dataclass(frozen=True)
class Verb:
    """What is measured.

    Attributes
    ----------
    call
        What is timed; it gets what `before` gave.
    before, after
        What is done around it without being timed; the latter gets what the call gave, or where that is None what
        `before` gave.
    """

    call: Call
    before: Prepare = lambda _: None
    after: Tidy = lambda _, __: None


def claiming(count: int) -> Prepare:
    return lambda queue: queue.claim(count)


def verbs() -> dict[str, Verb]:
    found: dict[str, Verb] = {}
    for count in (1, 10, 100, 1000):
        found[f"put {count}"] = Verb(lambda queue, _, count=count: queue.enqueue(count))
    for count in (1, 10, 100):
        found[f"claim {count}"] = Verb(
            lambda queue, _, count=count: queue.claim(count), after=lambda queue, held: queue.ack(held)
        )
        found[f"ack {count}"] = Verb(lambda queue, held: queue.ack(held), claiming(count))
        found[f"claim and ack {count}"] = Verb(lambda queue, _, count=count: queue.take(count))
    for count in (1, 10):
        found[f"nack {count}"] = Verb(lambda queue, held: queue.nack(held), claiming(count))
    for count in (1, 10):
        found[f"extend {count}"] = Verb(
            lambda queue, held: queue.extend(held), claiming(count), lambda queue, held: queue.ack(held)
        )
    found["put 1 in the caller's transaction"] = Verb(lambda queue, _: queue.put_beside())
    return found


def verbs_of_groups() -> dict[str, Verb]:
    every = verbs()
    return {
        f"{name}, in groups": every[name]
        for name in ("put 100", "claim 100", "ack 100", "claim and ack 100", "claim and ack 10", "nack 1", "extend 1")
    }


@dataclass
class Measured:
    """What calls took.

    Attributes
    ----------
    trips, bytes
        Of the call with the fewest, since what else a client does in the meantime comes on top.
    """

    seconds: list[float]
    trips: int
    bytes: int

    def note(self, seconds: float, trips: int, sent: int) -> None:
        self.seconds.append(seconds)
        self.trips = min(self.trips, trips)
        self.bytes = min(self.bytes, sent)


def compare(name: str, verb: Verb, queues: Mapping[str, Verbs], wire: SlowWire | None) -> dict[str, Any]:
    """Call each queue once a round, and give the median ms of each, with the round trips and bytes of a call."""
    found = {kind: Measured([], sys.maxsize, sys.maxsize) for kind in queues}
    spent = dict.fromkeys(queues, 0.0)
    for number in range(-WARM, ROUNDS):
        for kind, queue in queues.items():
            if spent[kind] > LONGEST and found[kind].seconds:
                continue
            started = time.perf_counter()
            given = verb.before(queue)
            trips, sent = (wire.trips, wire.sent) if wire else (0, 0)
            began = time.perf_counter()
            got = verb.call(queue, given)
            seconds = time.perf_counter() - began
            if number >= 0:
                found[kind].note(seconds, (wire.trips if wire else 0) - trips, (wire.sent if wire else 0) - sent)
            verb.after(queue, given if got is None else got)
            spent[kind] += time.perf_counter() - started
    row = {kind: cell(each, counted=wire is not None) for kind, each in found.items()}
    print(f"{name}: {json.dumps(row)}", flush=True)
    return row


def cell(measured: Measured, *, counted: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"ms": round(statistics.median(measured.seconds) * 1000, 2)}
    return {**found, "round_trips": measured.trips, "bytes": measured.bytes} if counted else found


def empty(queues: Mapping[str, Verbs], wire: SlowWire | None, name: str) -> dict[str, Any]:
    """Claim where there is nothing."""
    for queue in queues.values():
        while queue.take(100):
            pass
    return {name: compare(name, Verb(lambda queue, _: queue.claim(10)), queues, wire)}


def opened(kinds: Mapping[str, Any], server: str, reach: Callable[[str], str], stack: ExitStack) -> dict[str, Verbs]:
    """Give each kind of queue a database of its own, filled; those that are missing are left out, aloud.

    Parameters
    ----------
    reach
        Says by which URL a database is reached while it is measured.
    """
    queues: dict[str, Verbs] = {}
    for kind, make in kinds.items():
        url = new_database(server)
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=SCRATCH))
        try:
            near = make(url, folder)
        except MissingPeerError as error:
            print(f"{kind} is left out: {error}", flush=True)
            continue
        for _ in range((ROWS_IN_GROUPS if kinds is WITH_GROUPS else ROWS) // FILL):
            near.enqueue(FILL)
        near.close()
        with sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect() as connection:
            connection.exec_driver_sql(BESIDE)
            connection.exec_driver_sql("VACUUM ANALYZE")
        queues[kind] = make(reach(url), folder)
        stack.callback(queues[kind].close)
    return queues


def measure(server: str, wire: SlowWire | None) -> dict[str, Any]:
    """Measure every verb over a wire, or without one."""

    def reach(url: str) -> str:
        if wire is None:
            return url
        return sa.make_url(wire.url).set(database=sa.make_url(url).database).render_as_string(hide_password=False)

    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        queues = opened(ON_POSTGRESQL, server, reach, stack)
        for name, verb in verbs().items():
            figures[name] = compare(name, verb, queues, wire)
        with ExitStack() as inner:
            grouped = opened(WITH_GROUPS, server, reach, inner)
            # Beside them what has no groups, so that what they cost shows.
            beside: dict[str, Verbs] = {**grouped, BESIDE_THEM: queues["waterclock"]}
            for name, verb in verbs_of_groups().items():
                figures[name] = compare(name, verb, beside, wire)
            figures |= empty(grouped, wire, "claim of an empty queue, in groups")
        figures |= empty(queues, wire, "claim of an empty queue")
    return figures


def best(row: Mapping[str, Any]) -> float:
    """Say how many times as long as ours the best of the others takes."""
    others = [each["ms"] for kind, each in row.items() if not kind.startswith("waterclock")]
    ours = min(each["ms"] for kind, each in row.items() if kind in ("waterclock", "waterclock, sequenced"))
    return round(min(others) / ours, 2) if others else 0.0


def table(figures: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Lay figures out as they stand in the documentation: milliseconds, and round trips in brackets."""
    lines = [f"| verb | {' | '.join(kinds)} | the best other, of ours |", f"| --- |{' --- |' * (len(kinds) + 1)}"]
    for name, row in figures.items():
        if not row.keys() & set(kinds):
            continue
        cells = [text_of(row[kind]) if kind in row else "-" for kind in kinds]
        lines.append(f"| {name} | {' | '.join(cells)} | {best(row)} |")
    return "\n".join(lines)


def text_of(found: Mapping[str, Any]) -> str:
    return f"{found['ms']} ({found['round_trips']})" if "round_trips" in found else f"{found['ms']}"


def main() -> None:
    with running("postgresql") as facts:
        server = facts["servers"]["postgresql"]["url"]
        figures: dict[str, Any] = {"payload_bytes": len(PAYLOAD), "rows": ROWS, "load": os.getloadavg()[0]}
        with slow_wire(server, AWAY) as wire:
            began = time.perf_counter()
            figures["1 ms away"] = measure(server, wire)
            figures["wire_busy_of_the_time"] = round(wire.busy_s / (time.perf_counter() - began), 3)
            figures["wire_us_a_round_trip"] = round(wire.busy_s / wire.trips * 1e6, 1)
        figures["near"] = measure(server, None)
    for where in ("1 ms away", "near"):
        alone = {name: row for name, row in figures[where].items() if not name.endswith("in groups")}
        grouped = {name: row for name, row in figures[where].items() if name.endswith("in groups")}
        print(f"\n{where}\n\n{table(alone, list(ON_POSTGRESQL))}\n\n{table(grouped, [*WITH_GROUPS, BESIDE_THEM])}")
    packages = ("waterclock", "sqlalchemy", "psycopg", "pgmq", "pgqueuer", "procrastinate")
    print(f"written to {write_results('tables_round_trips', figures, packages)}")


if __name__ == "__main__":
    main()
