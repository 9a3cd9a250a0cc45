"""What it costs to check a sealed ledger on each read: checksums of ranges, in turns with those of pages and with none.

The effect is a few percent, so the read without checks runs twice in each turn: how far these two differ is the noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import in_turns, write_results
from benchmarks.servers import SCRATCH
from benchmarks.topics.append import messages
from benchmarks.topics.read import METADATA, consume
from waterclock.database.backend import Backend
from waterclock.topics.catalogue.creating import create_topic, open_topic
from waterclock.topics.reading import sealed_ledger
from waterclock.topics.store.sealed_file import SealedFile
from waterclock.topics.topic import Topic

ENTRIES = 100
ENTRY_MESSAGES = 10_000
ROUNDS = 61


class Unchecked(SealedFile):
    """Compares nothing."""

    def _check(self, group: int, chunks: Iterable[Any]) -> None:
        pass


class ByPages(Unchecked):
    """Lets pyarrow compare the checksum of each page."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        window = pa.PythonFile(self._window, mode="r")
        self._parquet = pq.ParquetFile(
            window, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True
        )


FILES: dict[str, type[SealedFile]] = {
    "unchecked": Unchecked,
    "ranges": SealedFile,
    "unchecked again": Unchecked,
    "pages": ByPages,
}


def build(folder: str) -> Topic:
    backend = Backend(f"sqlite:///{folder}/topics.db")
    create_topic(backend, "checks", roll_after=None, roll_size=1 << 40, retention=None, exist_ok=False)
    topic = Topic(open_topic(backend, folder, "checks"))
    for entry in range(ENTRIES):
        topic.append(messages(ENTRY_MESSAGES, entry))
    topic.roll()
    topic.seal()
    return topic


def reading(topic: Topic, kind: type[SealedFile], columns: list[str] | None) -> Callable[[], None]:
    def read() -> None:
        with patch.object(sealed_ledger, "SealedFile", kind):
            consume(topic.read_arrow(columns=columns))

    return read


def main() -> None:
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        topic = build(folder)
        size = sum(info.size for info in topic.ledgers())
        figures: dict[str, Any] = {"messages": ENTRIES * ENTRY_MESSAGES, "megabytes": round(size / 1e6, 1)}
        for name, columns in (("all columns", None), ("without payloads", METADATA)):
            seconds = in_turns({kind: reading(topic, each, columns) for kind, each in FILES.items()}, ROUNDS)
            figures[name] = {kind: round(taken / seconds["unchecked"], 3) for kind, taken in seconds.items()}
            figures[name]["unchecked_milliseconds"] = round(1000 * seconds["unchecked"], 1)
            print(f"{name}: {figures[name]}", flush=True)
    write_results("topics_checks", figures, ("waterclock", "pyarrow"))


if __name__ == "__main__":
    main()
