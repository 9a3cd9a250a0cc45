"""A value of 1 MB that is given by mistake, at each of the doors: the error says what it was, not all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import waterclock as wc
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.cli import main
from waterclock.ingest.files import MessageFile, message_from_json
from waterclock.ingest.mapping.collectd import collectd_time, parse_topic
from waterclock.message import Position

LONG = "x" * 2**20
ITEMS: list[Any] = [LONG] * 3
MESSAGE = wc.Message("a", "b", 1, receive_time=1)
TABLE = {"source": ["a"], "stream": ["b"], "event_time": [1], "receive_time": [1]}

MESSAGES: dict[str, Callable[[], object]] = {
    "payload": lambda: wc.Message("a", "b", 1, LONG),  # type: ignore[arg-type]
    "source": lambda: wc.Message(ITEMS, "b", 1),  # type: ignore[arg-type]
    "stream": lambda: wc.Message("a", LONG.encode(), 1),  # type: ignore[arg-type]
    "event_time": lambda: wc.Message("a", "b", LONG),
    "a number as event_time": lambda: wc.Message("a", "b", 10**100_000),
    "receive_time": lambda: wc.Message("a", "b", 1, receive_time=ITEMS),  # type: ignore[arg-type]
    "headers": lambda: wc.Message("a", "b", 1, headers=LONG),  # type: ignore[arg-type]
    "a header": lambda: wc.Message("a", "b", 1, headers={LONG: 1}),  # type: ignore[dict-item]
    "a field": lambda: MESSAGE.replace(**{LONG: 1}),
    "a position": lambda: Position.parse(LONG),
    "a window": lambda: wc.EventTimeBatcher(LONG, "1s"),
    "on_conflict": lambda: wc.EventTimeBatcher("1s", "1s", on_conflict=LONG),  # type: ignore[arg-type]
    "streams": lambda: wc.EventTimeBatcher("1s", "1s", streams=LONG),
    "no message": lambda: wc.EventTimeBatcher("1s", "1s").add(LONG),  # type: ignore[arg-type]
    "an undeclared stream": lambda: wc.EventTimeBatcher("1s", "1s", streams=[LONG, "a"]).add(MESSAGE),
    "no receive time": lambda: wc.EventTimeBatcher("1s", "1s").add(wc.Message(LONG, LONG, 1)),
    "another source": lambda: wc.RateAwareBatcher().add([MESSAGE, wc.Message(LONG, "b", 1)]),
    "gated": lambda: wc.RateAwareBatcher(gated=LONG),
    "no messages": lambda: wc.RateAwareBatcher().add(LONG),  # type: ignore[arg-type]
    "timeout": lambda: wc.RateAwareBatcher(timeout=LONG),
    "a factory": lambda: wc.BySource(LONG),  # type: ignore[arg-type]
    "a batch": lambda: wc.Batch.from_bytes(LONG),  # type: ignore[arg-type]
    "a batch's bytes": lambda: wc.Batch.from_bytes(LONG.encode()),
    "a state": lambda: wc.EventTimeBatcher.restore(LONG.encode()),
    "a column": lambda: wc.assign_batches(pa.table({LONG: [1]}), window=1, max_delay=1),
    "now": lambda: wc.assign_batches(pa.table(TABLE), window=1, max_delay=1, now=LONG),
    "calls": lambda: RateAwareColumns(["a"]).add(np.zeros(1, int), np.zeros(1, int), np.arange(10**6)),
    "a topic of collectd": lambda: parse_topic(LONG),
    "a payload of collectd": lambda: collectd_time(LONG.encode()),
    "JSON": lambda: message_from_json(ITEMS),
    "a field of JSON": lambda: message_from_json({"source": "a", "stream": "b", "event_time": 1, LONG: 1}),
    "base64": lambda: message_from_json({"source": "a", "stream": "b", "event_time": 1, "payload_base64": LONG + "?"}),
    "a file": lambda: list(MessageFile("/" + "x/" * 10**5).chunks()),
    "a URL": lambda: wc.connect(LONG),
}


def test_a_string_in_place_of_messages_is_quoted_as_it_was_given() -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"got 'x{80}'… \(1048576 characters\)"):
        wc.RateAwareBatcher().add(LONG)  # type: ignore[arg-type]


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(wc.WaterclockError) as error:
        call()
    assert len(str(error.value)) < 1100
    assert LONG[:2000] not in "".join(map(str, error.value.args))


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_and_batchers_quote_little_of_a_long_value(name: str) -> None:
    refused(MESSAGES[name])


def test_topics_quote_little_of_a_long_value(sqlite_url: str, tmp_path: Path) -> None:
    with wc.connect(sqlite_url, tmp_path) as database:
        topic = database.create_topic("telemetry")
        subscription = topic.subscribe("billing")
        for call in (
            lambda: database.topic(LONG),
            lambda: database.create_topic(LONG),
            lambda: database.create_topic("a", roll_after=LONG),
            lambda: database.create_topic("a", roll_size=LONG),  # type: ignore[arg-type]
            lambda: database.create_topic("a", retention=LONG),
            lambda: topic.append(LONG),  # type: ignore[arg-type]
            lambda: topic.append(ITEMS),
            lambda: topic.append(pa.table({LONG: [1]})),
            lambda: topic.append(pa.table({**TABLE, "event_time": [LONG]})),
            lambda: topic.append([MESSAGE], producer=LONG, sequence=1),
            lambda: list(topic.read(LONG)),  # type: ignore[arg-type]
            lambda: list(topic.read(since=LONG)),
            lambda: list(topic.read(limit=LONG)),  # type: ignore[arg-type]
            lambda: topic.find(LONG),
            lambda: topic.find(1, by=LONG),  # type: ignore[arg-type]
            lambda: topic.expire(LONG),
            lambda: topic.truncate(LONG),
            lambda: topic.subscribe(LONG),
            lambda: topic.subscribe("other", start=LONG),
            lambda: subscription.seek(LONG),
        ):
            refused(call)


def test_tables_quote_little_of_a_long_value(sqlite_url: str) -> None:
    with wc.connect(sqlite_url) as database:
        orders = database.create_table("orders", groups="sequenced", columns={"customer": "text"})
        documents = database.create_table("documents", payload="json")
        for call in (
            lambda: database.table(LONG),
            lambda: database.create_table(LONG),
            lambda: database.create_table("a", ack_wait=LONG),
            lambda: database.create_table("a", groups=LONG),
            lambda: database.create_table("a", id_type=LONG),
            lambda: database.create_table("a", columns={LONG: "text"}),
            lambda: database.create_table("a", columns={"b": LONG}),
            lambda: orders.put(ITEMS),
            lambda: orders.put(b"", id=LONG),
            lambda: orders.put(b"", at=LONG),
            lambda: orders.put(b"", group=LONG),
            lambda: orders.put(b"", headers=LONG),  # type: ignore[arg-type]
            lambda: orders.put(b"", priority=LONG),  # type: ignore[arg-type]
            lambda: orders.put(b"", **{LONG: 1}),
            lambda: orders.put(b"", connection=LONG),  # type: ignore[arg-type]
            lambda: orders.put_many([LONG]),  # type: ignore[list-item]
            lambda: documents.put({"key": {LONG}}),
            lambda: orders.receive(limit=LONG),  # type: ignore[arg-type]
            lambda: orders.receive(wait=LONG),
            lambda: orders.receive(where=LONG),
            lambda: orders.receive(where=f"customer = {'(' * 40}{LONG[:9000]}"),
            lambda: orders.ack([LONG]),
            lambda: orders.reschedule([1], LONG),
            lambda: orders.explain(LONG),
            lambda: orders.alter(ack_wait=LONG),
            lambda: orders.alter(**{LONG: 1}),
            lambda: orders.pause(until=LONG),
            lambda: orders.groups.move(LONG, LONG),
        ):
            refused(call)


def test_the_command_line_quotes_little_of_a_long_value(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f'{{"source": "a", "stream": "b", "event_time": "{LONG}"}}')
    for command in (
        ["topic", "add", LONG],
        ["topic", "add", "a", "--retention", LONG],
        ["topic", "append", "a", str(file)],
        ["table", "put", LONG, "content"],
        ["batch", str(file), "--window", "1s", "--max-delay", "1s"],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*command, *([] if command[0] == "batch" else ["--url", sqlite_url])])
        assert ended.value.code in (1, 2)
        assert len(capsys.readouterr().err) < 2500
