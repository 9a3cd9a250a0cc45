"""Topics over HTTP: append, find, read, subscribe, in JSON and Arrow."""

from __future__ import annotations

import io
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from tests.support.moments import PATIENCE, until

import waterclock as wc
from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.errors import LeaseLostError
from waterclock.server.api import topic_messages
from waterclock.server.api.formats.arrow_bodies import MEDIA_TYPE
from waterclock.server.api.readers import Readers
from waterclock.server.limits import MAX_THREADS

ARROW = {"Content-Type": MEDIA_TYPE}
NAME = "a/b %2F?#é"
PATH = "/api/topics/a%2Fb%20%252F%3F%23%C3%A9"


def message(second: int, **fields: Any) -> dict[str, Any]:
    at = f"2026-07-01T12:00:{second:02}.000000001Z"
    return {"source": "press", "stream": "load", "event_time": at, "publish_time": at, "payload": str(second), **fields}


def ipc(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def columns(count: int = 3) -> pa.Table:
    at = 1_800_000_000_000_000_000
    rows = [
        {"source": "p", "stream": "s", "event_time": at + n, "publish_time": at + n, "payload": b"x"}
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, MESSAGE_SCHEMA)


def test_messages_are_appended_found_and_read(client: TestClient) -> None:
    assert client.put(PATH, json={"retention": "7d"}).json()["retention"] == "7d"
    assert client.put(PATH, json={}).status_code == 409
    assert client.put(PATH, params={"exist_ok": True}, json={}).status_code == 200
    appended = client.post(f"{PATH}/messages", json={"messages": [message(n) for n in range(5)]}).json()
    assert appended == {"first": "0:0:0", "count": 5, "duplicate": False, "rejected": []}
    found = client.get(f"{PATH}/find", params={"time": "2026-07-01T12:00:02Z"}).json()
    assert found == {"position": "0:0:2", "found": True}
    by_ns = client.get(f"{PATH}/find", params={"time": "1782907202000000001"}).json()
    assert by_ns == found
    read = client.get(f"{PATH}/messages", params={"start": found["position"], "limit": 2}).json()
    assert [one["payload"] for one in read["messages"]] == ["2", "3"]
    assert read["messages"][0]["event_time"] == "2026-07-01T12:00:02.000000001Z"
    rest = client.get(f"{PATH}/messages", params={"start": read["next"]}).json()
    assert [one["payload"] for one in rest["messages"]] == ["4"]
    assert client.get(f"{PATH}/messages", params={"start": rest["next"]}).json() == {
        "messages": [],
        "next": rest["next"],
    }
    shown = client.get(PATH).json()
    assert (shown["name"], shown["messages"], shown["bounds"]["end"]["event_time"]) == (
        NAME,
        5,
        "2026-07-01T12:00:04.000000001Z",
    )
    assert client.get(f"{PATH}/newest").json()["position"] == "0:0:4"
    assert client.patch(PATH, json={"retention": None}).json()["retention"] is None
    assert client.delete(PATH).json() == {"removed": NAME}
    assert client.get(PATH).status_code == 404


@pytest.mark.one_database
def test_a_repeated_append_of_a_producer_writes_nothing(client: TestClient) -> None:
    client.put("/api/topics/t", json={})
    body = {"messages": [message(1)], "producer": "p", "sequence": 0}
    assert client.post("/api/topics/t/messages", json=body).json()["duplicate"] is False
    assert client.post("/api/topics/t/messages", json=body).json()["duplicate"] is True
    for _ in range(2):
        query = {"producer": "q", "sequence": 0, "epoch": 1}
        appended = client.post("/api/topics/t/arrow", content=ipc(columns()), params=query, headers=ARROW).json()
    assert appended["duplicate"] is True
    older = client.post("/api/topics/t/arrow", content=ipc(columns()), params={**query, "epoch": 0}, headers=ARROW)
    assert (older.status_code, older.json()["error"]) == (409, "producer_fenced")
    assert client.get("/api/topics/t").json()["messages"] == 4


def test_arrow_goes_in_and_comes_out(client: TestClient) -> None:
    client.put("/api/topics/t", json={})
    assert client.post("/api/topics/t/arrow", content=ipc(columns()), headers=ARROW).json()["count"] == 3
    read = client.get("/api/topics/t/messages", params={"limit": 2}, headers={"Accept": MEDIA_TYPE})
    table = pa.ipc.open_stream(read.content).read_all()
    assert table.select(MESSAGE_SCHEMA.names).drop_columns("receive_time") == columns(2).drop_columns("receive_time")
    assert read.headers["waterclock-next"] == "0:0:2"
    rest = client.get("/api/topics/t/messages", params={"start": "0:0:3"}, headers={"Accept": MEDIA_TYPE})
    assert pa.ipc.open_stream(rest.content).read_all().num_rows == 0


def _with_null_type() -> bytes:
    return ipc(columns().set_column(5, "headers", pa.nulls(3)))


def _with_dictionary() -> bytes:
    return ipc(columns().set_column(0, "source", columns().column("source").dictionary_encode()))


def _with_bad_offsets() -> bytes:
    return ipc(columns()).replace(struct.pack("<4i", 0, 1, 2, 3), struct.pack("<4i", 0, 1, 2, 2**30))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not arrow",
        ipc(columns())[:-40],
        ipc(columns())[:300],
        ipc(columns()) + b"more",
        ipc(columns(), compression="zstd"),
        ipc(columns(), compression="lz4"),
        _with_null_type(),
        _with_dictionary(),
        _with_bad_offsets(),
        ipc(columns().append_column("more", pa.array([1, 2, 3]))),
        ipc(columns().drop_columns("event_time")),
        ipc(columns(0)),
        b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 8),
    ],
)
@pytest.mark.one_database
def test_other_bytes_than_sound_messages_are_refused(client: TestClient, body: bytes) -> None:
    client.put("/api/topics/t", json={})
    asked = client.post("/api/topics/t/arrow", content=body, headers=ARROW)
    assert (asked.status_code, asked.json()["error"]) in [(400, "invalid"), (400, "invalid_schema")], asked.text
    assert client.get("/api/topics/t").json()["messages"] == 0


@pytest.mark.one_database
def test_any_changed_byte_of_arrow_is_refused_or_appended(client: TestClient) -> None:
    client.put("/api/topics/t", json={})
    whole = bytearray(ipc(columns()))
    statuses = set()
    for at in range(0, len(whole), 5):
        changed = whole.copy()
        changed[at] ^= 0x81
        statuses.add(client.post("/api/topics/t/arrow", content=bytes(changed), headers=ARROW).status_code)
    assert statuses <= {200, 400}


def test_a_subscription_is_read_committed_and_moved(client: TestClient) -> None:
    client.put("/api/topics/t", json={})
    client.post("/api/topics/t/messages", json={"messages": [message(n) for n in range(6)]})
    place = "/api/topics/t/subscriptions/billing"
    assert client.post(f"{place}/read", json={}).status_code == 404
    assert client.put(place, json={}).json()["unread"] == 6
    first = client.post(f"{place}/read", json={"limit": 2}).json()
    assert [one["payload"] for one in first["messages"]] == ["0", "1"]
    second = client.post(f"{place}/read", json={"limit": 2, "cursor": first["cursor"]}).json()
    assert [one["payload"] for one in second["messages"]] == ["2", "3"]
    other = client.post(f"{place}/read", json={})
    assert other.status_code == 409
    assert "another reader holds the subscription until" in other.json()["message"]
    assert client.post(f"{place}/commit", json={"cursor": second["cursor"]}).json() == {"committed": True}
    assert client.get(place).json()["unread"] == 2
    client.post(f"{place}/release", json={"cursor": second["cursor"]})
    asked = client.post(f"{place}/seek", json={"time": "2026-07-01T12:00:01Z", "dry_run": True}).json()
    assert asked == {"position": "0:0:1", "unread": 5, "unread_now": 2, "moved": False}
    assert client.get(place).json()["unread"] == 2
    moved = client.post(f"{place}/seek", json={"time": "2026-07-01T12:00:01Z"}).json()
    assert (moved["position"], moved["unread"]) == ("0:0:1", 5)
    assert client.delete(place).json() == {"removed": "billing"}


@pytest.mark.one_database
def test_large_reads_leave_threads_for_other_requests(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put("/api/topics/t", json={})
    others_answered = threading.Event()
    begun: list[int] = []

    def wait(*_args: object) -> tuple[list[pa.RecordBatch], None]:
        begun.append(1)
        assert others_answered.wait(PATIENCE / 3)
        return [], None

    monkeypatch.setattr(topic_messages, "_read", wait)

    def read(_number: int) -> int:
        return client.get("/api/topics/t/messages", headers={"Accept": MEDIA_TYPE}).status_code

    with ThreadPoolExecutor(MAX_THREADS + 1) as pool:
        reads = [pool.submit(read, number) for number in range(MAX_THREADS + 1)]
        until(lambda: len(begun) >= 3)
        assert client.get("/api/topics/t").status_code == 200
        others_answered.set()
        assert {one.result() for one in reads} == {200}


@pytest.mark.one_database
def test_a_reader_that_missed_an_answer_loses_no_message(client: TestClient) -> None:
    client.put("/api/topics/t", json={})
    client.post("/api/topics/t/messages", json={"messages": [message(n) for n in range(3)]})
    place = "/api/topics/t/subscriptions/billing"
    client.put(place, json={})
    first = client.post(f"{place}/read", json={"limit": 1}).json()
    client.post(f"{place}/read", json={"limit": 1, "cursor": first["cursor"]})  # this answer is lost
    for verb in ("commit", "read"):
        asked = client.post(f"{place}/{verb}", json={"cursor": first["cursor"]})
        assert (asked.status_code, asked.json()["error"]) == (409, "lease_lost")
    again = client.post(f"{place}/read", json={}).json()
    assert [one["payload"] for one in again["messages"]] == ["0", "1", "2"]
    for cursor in ("", "x", first["cursor"], again["cursor"].partition(".")[0]):
        assert client.post(f"{place}/commit", json={"cursor": cursor}).status_code == 409


@pytest.mark.one_database
def test_ledgers_are_listed_without_places_of_files(client: TestClient, database: wc.Database) -> None:
    topic = database.create_topic("t")
    topic.append([wc.Message("p", "s", 1_800_000_000_000_000_000)])
    client.post("/api/topics/t/roll")
    assert client.post("/api/topics/t/seal").json() == {"ledgers": 1}
    [ledger] = client.get("/api/topics/t/ledgers", params={"limit": 1}).json()
    assert ledger["state"] == "sealed"
    assert "file" not in ledger
    assert client.post("/api/topics/t/compact").status_code == 200
    assert client.post("/api/topics/t/truncate", json={"before_position": "1:0:0", "force": True}).json() == {
        "ledgers": 1
    }
    assert client.post("/api/topics/t/expire", json={"ttl": "1d"}).status_code == 200
    for wrong in ({}, {"before": "never"}, {"before_position": "x"}):
        assert client.post("/api/topics/t/truncate", json=wrong).status_code == 400


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("messages", {"start": "x"}),
        ("messages", {"since": "yesterday"}),
        ("messages", {"since": "9" * 30}),
        ("messages", {"start": "0:0:0", "since": "2h"}),
        ("messages", {"by": "name"}),
        ("messages", {"limit": 1_001}),
        ("find", {"time": ""}),
        ("find", {"time": "0x10"}),
        ("find", {"time": "²"}),
        ("newest", {"by": "x"}),
        ("ledgers", {"start": 10**30}),
    ],
)
@pytest.mark.one_database
def test_wrong_queries_are_refused(client: TestClient, path: str, query: dict[str, Any]) -> None:
    client.put("/api/topics/t", json={})
    asked = client.get(f"/api/topics/t/{path}", params=query)
    assert (asked.status_code, asked.json()["error"]) == (400, "invalid"), asked.text


def test_a_repeat_of_a_read_that_still_runs_skips_nothing(database: wc.Database) -> None:
    topic = database.create_topic("t")
    topic.append([wc.Message("press", "load", "2026-07-01T12:00:00Z", payload=b"%d" % n) for n in range(3)])
    topic.subscribe("s")
    readers = Readers()
    cursor, _ = readers.read(topic, "s", None, 1)
    answered: list[str] = []

    class LockOfTheFirst:
        """Is only free after the first request has its answer, which its client no longer waits for."""

        def __enter__(self) -> None:
            if not answered:
                answered.append("begun")
                answered.append(readers.read(topic, "s", cursor, 1)[0])

        def __exit__(self, *_: object) -> None:
            pass

    [reader] = readers._readers.values()
    reader.lock = LockOfTheFirst()  # type: ignore[assignment]
    with pytest.raises(LeaseLostError, match="got an older cursor"):
        readers.read(topic, "s", cursor, 1)
    assert [one.payload for one in readers.read(topic, "s", None, 3)[1]] == [b"0", b"1", b"2"]
