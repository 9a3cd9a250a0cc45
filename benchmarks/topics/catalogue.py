"""Large catalogues: what is asked of topics of a thousand and a hundred thousand ledgers, and of thousands of topics.

Ledgers are rows of the catalogue as sealing would have written them, of eight row groups each; there are no files. Of
two large topics one begins with a ledger of a producer whose clock is three years ahead, which is then trimmed: finding
in it is measured in turns with finding in the other, before and after the running maxima are lowered.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import in_turns, write_results
from benchmarks.servers import SCRATCH, databases
from benchmarks.topics.append import BEGIN
from benchmarks.topics.find import LEDGER_MESSAGES, SPACING, sealed_row, write_file
from waterclock.connection import Database
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import BOUNDED, ledgers, topics
from waterclock.message import Position
from waterclock.topics.catalogue import running_max
from waterclock.topics.format.row_groups import row_groups_from_json, row_groups_to_json
from waterclock.topics.store.ledger_root import LedgerRoot
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import retention

SMALL, LARGE = 1_000, 100_000
"""Ledgers, of a thousand messages each."""
TOPICS = 4_000
ROW_GROUPS = 8
THREE_YEARS = 94_608_000_000_000_000  # ns
ROWS_AT_ONCE = 1_000
ROUNDS = 5
FINDS = 50


def rows(topic: Topic, count: int, *, wild: bool) -> Iterable[dict[str, Any]]:
    """Give the rows of the catalogue; where ``wild``, the first ledger's publish time is three years ahead."""
    written = write_file(topic, 0)
    (group,) = row_groups_from_json(written["row_groups"])
    written |= {"row_groups": row_groups_to_json([group] * ROW_GROUPS), "bytes": written["file_bytes"]}
    peak = dict.fromkeys(BOUNDED, 0)
    for number in range(count):
        first = BEGIN + number * LEDGER_MESSAGES * SPACING
        last = first + (LEDGER_MESSAGES - 1) * SPACING
        end = dict.fromkeys(BOUNDED, last)
        if wild and number == 0:
            end["publish_time"] += THREE_YEARS
        peak = {at: max(peak[at], end[at]) for at in BOUNDED}
        yield {
            **written,
            **sealed_row(topic, number, first, last),
            **{f"end_{at}": value for at, value in end.items()},
            **{f"peak_{at}": value for at, value in peak.items()},
            "path": f"catalogue-{topic.storage.topic_id}/{number:010d}.parquet",
        }


def build(database: Database, count: int, *, wild: bool = False) -> Topic:
    backend = database.backend
    topic = database.create_topic(f"{count} ledgers{', wild' if wild else ''}", roll_after=None)
    total = 0
    last: dict[str, Any] = {}
    following = iter(rows(topic, count, wild=wild))
    while part := list(islice(following, ROWS_AT_ONCE)):
        backend.transact(lambda connection, part=part: connection.execute(sa.insert(ledgers), part))
        total += sum(row["bytes"] for row in part)
        last = part[-1]
    values = {f"peak_{at}": last[f"peak_{at}"] for at in BOUNDED}
    values |= {"ledger": count, "ordinal": count * LEDGER_MESSAGES, "stored_bytes": total}
    mine = topics.c.id == topic.storage.topic_id
    backend.transact(lambda connection: connection.execute(sa.update(topics).where(mine).values(values)))
    if backend.dialect.name == "postgresql":
        with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    return topic


def fill_with_topics(backend: Backend) -> None:
    template = {"roll_size": 1, "created_at": 0, "ledger": 0, "entries": 0, "messages": 0, "bytes": 0, "ordinal": 0}
    many = [{**template, "name": f"topic {number}"} for number in range(TOPICS)]
    backend.transact(lambda connection: connection.execute(sa.insert(topics), many))


def milliseconds(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    return {name: round(s * 1e3, 2) for name, s in in_turns(runs, rounds, time.perf_counter).items()}


def measure_listing(small: Topic, large: Topic, database: Database) -> dict[str, Any]:
    middle = Position(LARGE // 2, 0, 0)
    by_size = {
        "ledgers": lambda topic: topic.ledgers(),
        "ledgers, a page of 100": lambda topic: topic.ledgers(topic.info.ledgers // 2, 100),
        "plan": lambda topic: topic.plan(),
        "info and bounds": lambda topic: (topic.info, topic.bounds),
    }
    runs: dict[str, Callable[[], object]] = {
        f"{name}, {size} ledgers": lambda ask=ask, topic=topic: ask(topic)
        for name, ask in by_size.items()
        for size, topic in ((SMALL, small), (LARGE, large))
    }
    runs["every ledger's row groups"] = lambda: [info.row_groups for info in large.ledgers()]
    runs["plan of the later half"] = lambda: large.plan(middle)
    runs[f"topic_infos of {TOPICS} topics"] = database.topic_infos
    return milliseconds(runs, ROUNDS)


def measure_trimming(ordered: Topic, wild: Topic) -> dict[str, Any]:
    behind = BEGIN + (LARGE + 5) * LEDGER_MESSAGES * SPACING  # nothing is there, so no file is read
    finds = {"in order": lambda: ordered.find(behind), "trimmed": lambda: wild.find(behind)}
    lower = retention.lower_peaks
    retention.lower_peaks = lambda _: None
    wild.truncate(Position(2, 0, 0))
    retention.lower_peaks = lower
    before = milliseconds(finds, FINDS)
    began = time.perf_counter()
    running_max.lower_peaks(wild.storage)
    took = time.perf_counter() - began
    after = milliseconds(finds, FINDS)
    ratios = [round(each["trimmed"] / each["in order"], 1) for each in (before, after)]
    return {
        "find, maxima stale": before,
        "find, maxima lowered": after,
        "times as long as in order, stale and lowered": ratios,
        "lowering_s": round(took, 2),
    }


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for kind, url in urls.items():
            backend = Backend(url)
            database = Database(backend, LedgerRoot(str(Path(folder) / kind)))
            small, large, wild = build(database, SMALL), build(database, LARGE), build(database, LARGE, wild=True)
            fill_with_topics(backend)
            figures[kind] = {**measure_listing(small, large, database), **measure_trimming(large, wild)}
            print(f"{kind}: {figures[kind]}", flush=True)
            backend.close()
    write_results("topics_catalogue", figures, ("waterclock", "sqlalchemy"))


if __name__ == "__main__":
    main()
