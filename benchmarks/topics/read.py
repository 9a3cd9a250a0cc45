"""Reading sealed ledgers: messages a second of a topic, in turns with pyarrow.parquet reading the same files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from benchmarks.measure import in_turns, write_results
from benchmarks.servers import SCRATCH
from benchmarks.topics.append import messages
from waterclock.database.backend import Backend
from waterclock.topics.catalogue.creating import create_topic, open_topic
from waterclock.topics.topic import Topic

LEDGERS = 4
ENTRIES = 25
ENTRY_MESSAGES = 10_000
METADATA = ["source", "stream", "event_time", "publish_time", "receive_time", "entry", "index"]
ROUNDS = 7


def build(folder: str) -> Topic:
    backend = Backend(f"sqlite:///{folder}/topics.db")
    create_topic(backend, folder, "read", roll_after=None, roll_size=1 << 40, retention=None, exist_ok=False)
    topic = Topic(open_topic(backend, folder, "read"))
    for ledger in range(LEDGERS):
        for entry in range(ENTRIES):
            topic.append(messages(ENTRY_MESSAGES, ledger * ENTRIES + entry))
        topic.roll()
    topic.seal()
    return topic


def consume(batches: Any) -> None:
    for _ in batches:
        pass


def main() -> None:
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        topic = build(folder)
        paths = [str(info.file) for info in topic.ledgers() if info.file]
        count = LEDGERS * ENTRIES * ENTRY_MESSAGES
        figures: dict[str, Any] = {"messages": count, "megabytes": round(sum(i.size for i in topic.ledgers()) / 1e6, 1)}

        def plainly(columns: list[str] | None) -> Callable[[], None]:
            return lambda: [consume(pq.ParquetFile(path).iter_batches(65_536, columns=columns)) for path in paths]

        def whole(columns: list[str] | None) -> Callable[[], None]:
            return lambda: [pq.read_table(path, columns=columns) for path in paths]

        for name, columns in (("all columns", None), ("without payloads", METADATA)):
            runs: dict[str, Callable[[], object]] = {
                "topic": lambda columns=columns: consume(topic.read_arrow(columns=columns)),
                "pyarrow.parquet, batches": plainly(columns),
                "pyarrow.parquet, tables": whole(columns),
            }
            seconds = in_turns(runs, ROUNDS)
            fastest = min(seconds["pyarrow.parquet, batches"], seconds["pyarrow.parquet, tables"])
            figures[name] = {run: round(count / taken) for run, taken in seconds.items()}
            figures[name]["topic_to_parquet"] = round(fastest / seconds["topic"], 2)
            print(f"{name}: {figures[name]}", flush=True)
        messages_per_second = (
            count // 4 / in_turns({"objects": lambda: consume(topic.read(limit=count // 4))}, 3)["objects"]
        )
        figures["as Message objects"] = {"topic": round(messages_per_second)}
        print(f"as Message objects: {messages_per_second:,.0f}/s")
    write_results("topics_read", figures, ("waterclock", "pyarrow"))


if __name__ == "__main__":
    main()
