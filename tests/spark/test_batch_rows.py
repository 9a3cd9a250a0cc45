"""What a task looks up at once is bounded by bytes; what is too large is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import waterclock as wc
from waterclock.batching.batch import Batch
from waterclock.spark.packing import ROWS
from waterclock.spark.records import POSITIONED, cells_of_records
from waterclock.spark.streaming import batch_rows
from waterclock.spark.streaming.batch_rows import Payloads, encoded, looks

SIZES = [1, 1, 1, 1, 9_000, 9_000, 9_000, 1]
FACTS = {"start": 1, "end": 2, "closed_at": 3}


@pytest.fixture
def payloads(tmp_path: Path) -> Iterator[Payloads]:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        for n, size in enumerate(SIZES):
            topic.append([wc.Message("press", "load", n + 1, bytes(size), receive_time=n + 1)])
        yield Payloads(topic)


def a_batch_each(payloads: Payloads) -> pa.RecordBatch:
    """Return a batch for each message of the topic."""
    messages = list(payloads.topic.read())
    records = np.zeros(len(messages), POSITIONED)
    for record, message in zip(records, messages, strict=True):
        assert message.position is not None
        record["event_time"] = record["receive_time"] = message.event_time
        record["ledger"], record["entry"], record["index"] = message.position
    count = len(messages)
    columns = {
        "source": ["press"] * count,
        "streams": [["load"]] * count,
        "count": pa.array([1] * count, pa.int32()),
        "messages": cells_of_records(records, np.arange(count + 1)),
    }
    rows = pa.record_batch(columns, ROWS)
    for name, value in FACTS.items():
        rows = rows.append_column(name, pa.array([value] * count))
    return rows.append_column("reason", pa.array(["timeout"] * count))


def test_a_look_that_brings_too_many_bytes_is_halved(payloads: Payloads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "MOST_BYTES", 10_000)
    found = [messages.column("payload") for _, messages in looks(iter([a_batch_each(payloads)]), payloads)]
    assert [len(payload) for payload in found] == [4, 1, 1, 2]
    assert [len(value.as_py()) for payload in found for value in payload] == SIZES


def test_batches_have_the_same_bytes_however_they_are_looked_up(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [Batch("press", 1, 2, 3, "timeout", (message,)).to_bytes() for message in payloads.topic.read()]
    for most in (1, 10_000, 1_000_000):
        monkeypatch.setattr(batch_rows, "MOST_BYTES", most)
        written = [each for _, some in encoded(iter([a_batch_each(payloads)]), payloads) for each in some.to_pylist()]
        assert written == expected


def test_a_batch_that_exceeds_memory_is_named_with_its_topic_position_and_size(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> pa.Table:
        raise MemoryError("malloc of size 9000 failed")

    monkeypatch.setattr(batch_rows, "look_up", exhausted)
    named = r"source 'press', whose first message is at 0:0:0 of topic 'telemetry': its 1 messages .*size 9000 failed"
    with pytest.raises(wc.UnavailableError, match=named):
        list(looks(iter([a_batch_each(payloads)]), payloads))
