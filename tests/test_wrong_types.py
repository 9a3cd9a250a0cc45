"""For any value that a public method gets, the error is one of ours, with the argument, the value and what to do."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import waterclock as wc

NO_ID = [object(), [None], [object()], {"a": 1}, [[1]], math.nan, 1.5, "abc", b"x", 2**70, int]
WRONG = [None, "abc", "", b"x", 7, -1, 1.5, True, object(), *NO_ID, {}, {1: 2}, 10**30, "\ud800", "a\0b", "9" * 5000]
"""No argument can mean all of them, and most can mean none."""

CONTROLS = {"close", "drop", "remove", "backup", "archive", "restore", "state", "verify", "repair", "relocate"}
"""Methods that end what they are called on, or take minutes to try; their arguments are names and durations."""

INTERNAL = {"is_done", "take", "check", "advance", "plan", "messages_at", "create", "open", "context"}
"""Methods that only Waterclock calls, which types guard."""

NEEDED: dict[str, Any] = {
    "payload": "x",
    "rows": [{"payload": "x"}],
    "ids": [1],
    "id": 1,
    "deliveries": [],
    "at": 1,
    "group": "a",
    "to": "b",
    "consumer": "c",
    "name": "t",
    "time": "1h",
    "ttl": "1h",
    "before": "1h",
    "table": "orders",
    "topic": "telemetry",
    "messages": [wc.Message("a", "b", 1, receive_time=2)],
    "message": wc.Message("a", "b", 1, receive_time=2),
    "now": 1,
    "source": "a",
    "batch_length": "1s",
    "idle": "1h",
    "linger": 0,
    "max_bytes": 10,
}


def methods(thing: object) -> Iterator[str]:
    for name, _ in inspect.getmembers(type(thing), inspect.isfunction):
        if not name.startswith("_") and name not in CONTROLS | INTERNAL:
            yield name


def calls(thing: object) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every method with each of its arguments wrong in every way, the others right."""
    for method in methods(thing):
        parameters = [
            each
            for each in inspect.signature(getattr(thing, method)).parameters.values()
            if each.kind is not each.VAR_KEYWORD
        ]
        for chosen in parameters:
            for wrong in WRONG:
                given = {each.name: NEEDED.get(each.name) for each in parameters if each.default is each.empty}
                given[chosen.name] = wrong
                yield f"{method}({chosen.name}={wrong!r:.40})", lambda m=method, g=given: getattr(thing, m)(**g)


def errors_of_others(tried: Iterator[tuple[str, Callable[[], object]]]) -> list[str]:
    found: list[str] = []
    for name, call in tried:
        try:
            result = call()
            if inspect.isgenerator(result):
                next(result, None)
            if hasattr(result, "stop"):
                result.stop()  # pyright: ignore  # a subscription
        except wc.WaterclockError as error:
            if not str(error):
                found.append(f"{name}: says nothing")
        except Exception as error:  # noqa: BLE001  # an error of any other class should have been ours
            found.append(f"{name}: {type(error).__name__}: {error}")
    return found


@pytest.fixture
def database(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[wc.Database]:
    monkeypatch.chdir(tmp_path)  # where a text is a folder
    with wc.connect(sqlite_url) as database:
        yield database


def test_a_message_tables_methods(database: wc.Database) -> None:
    table = database.create_table("orders", payload="text", columns={"n": "bigint"}, max_attempts=3)
    table.put("tea")
    assert errors_of_others(calls(table)) == []


def test_the_methods_of_its_groups(database: wc.Database) -> None:
    table = database.create_table("orders", payload="text", groups="exclusive")
    table.put("tea", group="a")
    assert errors_of_others(calls(table.groups)) == []


def test_a_topics_methods(database: wc.Database) -> None:
    topic = database.create_topic("telemetry")
    topic.append([wc.Message("a", "b", 1)])
    assert errors_of_others((name, call) for name, call in calls(topic) if not name.startswith("producer")) == []


def test_a_databases_methods(database: wc.Database) -> None:
    database.create_table("orders")
    database.create_topic("telemetry")
    assert errors_of_others(calls(database)) == []


@pytest.mark.parametrize(
    "batcher",
    [
        wc.EventTimeBatcher(window="1s", max_delay="1s"),
        wc.RateAwareBatcher(batch_length="1s"),
        wc.IdBatcher("id", max_delay="1s"),
        wc.AdaptiveBatchLength(),
        wc.BySource(lambda: wc.EventTimeBatcher(window="1s", max_delay="1s")),
    ],
    ids=lambda batcher: type(batcher).__name__,
)
def test_a_batchers_methods(batcher: object) -> None:
    assert errors_of_others(calls(batcher)) == []


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (wc.EventTimeBatcher, {"window": "1s", "max_delay": "1s"}),
        (wc.RateAwareBatcher, {"batch_length": "1s"}),
        (wc.IdBatcher, {"id_of": "id", "max_delay": "1s"}),
        (wc.AdaptiveBatchLength, {}),
        (wc.missing_ids, {"batches": []}),
        (wc.RateAwareColumns, {"streams": ["a"], "batch_length": "1s"}),
        (wc.Message, {"source": "a", "stream": "b", "event_time": 1}),
        (
            wc.assign_batches,
            {
                "table": pa.table({"source": ["a"], "stream": ["b"], "event_time": [1], "receive_time": [1]}),
                "window": "1s",
                "max_delay": "1s",
            },
        ),
        (
            wc.assign_batches_by_id,
            {
                "table": pa.table({"source": ["a"], "stream": ["b"], "id": [1], "receive_time": [1]}),
                "id_column": "id",
                "max_delay": "1s",
            },
        ),
    ],
)
def test_factories_of_batchers_and_messages(make: Callable[..., object], right: dict[str, Any]) -> None:
    def tried() -> Iterator[tuple[str, Callable[[], object]]]:
        for name in inspect.signature(make).parameters:
            for wrong in WRONG:
                if name in ("gated", "id_of") and callable(wrong):
                    continue  # it means what it may do
                yield f"{name}={wrong!r:.40}", lambda given=right | {name: wrong}: make(**given)

    assert errors_of_others(tried()) == []


def test_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def tried() -> Iterator[tuple[str, Callable[[], object]]]:
        for name in ("url", "ledgers", "filesystem", "shards"):
            for wrong in WRONG:
                given: dict[str, Any] = {} if name in ("url", "shards") else {"url": "sqlite:///x.db"}
                given[name] = wrong
                yield f"{name}={wrong!r:.40}", lambda given=given: wc.connect(**given).close()

    assert errors_of_others(tried()) == []


def test_bytes_are_refused_as_ids(database: wc.Database) -> None:
    table = database.create_table("orders", payload="text")
    table.put("tea", id=120)
    for work in (table.ack, table.retry, lambda ids: table.reschedule(ids, 0)):
        with pytest.raises(wc.InvalidArgumentError, match=r"^id must "):
            work(b"x")  # which gives 120 as a list
    assert table.stats().ready == 1


@pytest.mark.parametrize("rows", [None, "abc", b"x", 7, {"payload": "x"}, [None], ["x"], [[1]], [("payload", "x")]])
def test_messages_are_given_as_a_list_of_dicts(database: wc.Database, rows: Any) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"^rows.*(a list of|must be dicts)"):
        database.create_table("orders", payload="text").put_many(rows)


def test_pictures_of_batches(database: wc.Database) -> None:
    batch = wc.Batch("a", 0, 9, 9, "gap", (NEEDED["message"],))
    wrong_lists: list[object] = [*WRONG, [1], ["x"], [NEEDED["message"]], [(1, 2)]]

    def tried() -> Iterator[tuple[str, Callable[[], object]]]:
        for name in ("batches", "rejected", "lanes", "start", "end", "width", "title", "notes"):
            for wrong in wrong_lists:
                given: dict[str, Any] = {"batches": [batch], name: wrong}
                yield f"timeline {name}={wrong!r:.40}", lambda given=given: wc.timeline(**given)
        for name in ("batches", "width", "title"):
            for wrong in wrong_lists:
                given = {"batches": [batch], name: wrong}
                yield f"clock_offsets {name}={wrong!r:.40}", lambda given=given: wc.clock_offsets(**given)

    assert errors_of_others(tried()) == []
