from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Shell

from waterclock import connect
from waterclock.cli.app import FAILED, WRONG_USAGE
from waterclock.cli.tables import payloads

COLUMNS = {"n": "bigint", "x": "double", "on": "boolean", "word": "text", "raw": "bytes", "doc": "json"}


def fill(shell: Shell) -> None:
    columns = [word for name, kind in COLUMNS.items() for word in ("--column", f"{name}={kind}")]
    shell("table", "add", "jobs", "--payload", "json", *columns)


@pytest.fixture
def jobs(shell: Shell, kept: Path) -> Shell:
    return shell.filled_by(fill, kept)


def stdin_of(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("value", [{"order": 1}, [1, None], "text", 17, 1.5, True, None])
def test_json_payload_is_stored_as_the_value_it_spells(jobs: Shell, value: object) -> None:
    jobs("table", "put", "jobs", json.dumps(value))
    assert [row["payload"] for row in jobs.json("table", "receive", "jobs", "--ack")] == [value]
    jobs("schedule", "add", "jobs", "nightly", json.dumps(value), "--cron", "@daily")
    jobs("schedule", "run", "jobs", "nightly")
    assert [row["payload"] for row in jobs.json("table", "receive", "jobs")] == [value]


def test_payload_that_is_not_json_is_refused(jobs: Shell) -> None:
    jobs("table", "put", "jobs", '{"order": 1', expect=WRONG_USAGE)
    assert "payload must be JSON, got '{\"order\": 1'" in jobs.said
    jobs("table", "put", "jobs", "NaN", expect=WRONG_USAGE)
    jobs("table", "put", "jobs", expect=WRONG_USAGE)
    jobs("schedule", "add", "jobs", "nightly", "text", "--cron", "@daily", expect=WRONG_USAGE)
    jobs("table", "peek", "jobs", expect=FAILED)


def test_json_keeps_its_numbers_and_the_order_of_keys(jobs: Shell) -> None:
    text = '{"b": 1e+23, "a": [-0.0, 1.0, 1, 18446744073709551616]}'
    jobs("table", "put", "jobs", text, "--column", f"doc={text}")
    (jobs.folder / "jobs.jsonl").write_text(f'{{"payload": {text}, "doc": {text}}}\n')
    jobs("table", "put", "jobs", "--jsonl", "jobs.jsonl")
    assert [json.dumps(row["payload"]) for row in jobs.json("table", "peek", "jobs")] == [text] * 2
    with connect("sqlite:///factory.db") as database:
        found = database.table("jobs").receive()
    assert [json.dumps(one.columns["doc"]) for one in found] == [text] * 2


def test_a_key_that_occurs_twice_is_refused(jobs: Shell) -> None:
    twice = '{"a": 1, "b": {"c": 1, "c": 2}}'
    jobs("table", "put", "jobs", twice, expect=WRONG_USAGE)
    assert "the key 'c' occurs twice" in jobs.said
    jobs("table", "put", "jobs", "1", "--column", f"doc={twice}", expect=WRONG_USAGE)
    (jobs.folder / "jobs.jsonl").write_text('{"payload": 1, "payload": 2}\n')
    jobs("table", "put", "jobs", "--jsonl", "jobs.jsonl", expect=WRONG_USAGE)
    assert "line 1 must be a JSON object" in jobs.said
    assert "the key 'payload' occurs twice" in jobs.said


def test_columns_are_read_in_their_types(jobs: Shell) -> None:
    given = ("n=5", "x=1.5", "on=true", "word=a=b", "raw=\u00e9", 'doc={"a": [1]}')
    jobs("table", "put", "jobs", "1", *(word for text in given for word in ("--column", text)))
    with connect("sqlite:///factory.db") as database:
        (delivery,) = database.table("jobs").receive()
    found = {name: delivery.columns[name] for name in COLUMNS}
    assert found == {"n": 5, "x": 1.5, "on": True, "word": "a=b", "raw": "\u00e9".encode(), "doc": {"a": [1]}}
    for wrong in ("n=1.5", "x=much", "on=yes", "doc={", "other=1", "n"):
        jobs("table", "put", "jobs", "1", "--column", wrong, expect=WRONG_USAGE)


def test_many_messages_are_put_from_json_lines(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "LINES_TOGETHER", 2)
    lines = [
        {"payload": {"order": 1}, "headers": {"of": "a cow"}},
        {"payload": "text", "priority": 3, "n": 7},
        {"payload": None, "id": 90},
    ]
    (jobs.folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    printed = jobs.json("table", "put", "jobs", "--jsonl", "jobs.jsonl", "--priority", "1")
    assert [row["id"] for row in printed] == ["1", "2", "90"]
    stdin_of(b'{"payload": 4}', monkeypatch)
    jobs("table", "put", "jobs", "--jsonl", "-")
    found = {row["id"]: row for row in jobs.json("table", "peek", "jobs")}
    assert [found[each]["payload"] for each in (1, 2, 90, 91)] == [{"order": 1}, "text", None, 4]
    assert [found[each]["priority"] for each in (1, 2, 90, 91)] == [1, 3, 1, 0]
    assert found[1]["headers"] == {"of": "a cow"}


def test_lines_may_have_integer_times_of_another_unit(jobs: Shell) -> None:
    line = {"payload": 1, "n": 5, "at": 4_000_000_000, "expires_at": "2100-01-01T00:00:00Z"}
    (jobs.folder / "jobs.jsonl").write_text(json.dumps(line))
    jobs("table", "put", "jobs", "--jsonl", "jobs.jsonl", "--time-unit", "s")
    assert "warning" not in jobs.said
    with connect("sqlite:///factory.db") as database:
        [message] = database.table("jobs").peek()
    assert message.time_scheduled == 4_000_000_000_000_000_000


def test_integer_times_that_look_like_seconds_are_warned_of_once(jobs: Shell) -> None:
    lines = [{"payload": 1, "n": 5, "at": 4_000_000_000}, {"payload": 1, "n": 5, "at": 4_000_000_001}]
    (jobs.folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    jobs("table", "put", "jobs", "--jsonl", "jobs.jsonl")
    assert jobs.said.count("warning: at looks like seconds since 1970") == 1


def test_wrong_line_is_named_with_what_was_put_before(jobs: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "LINES_TOGETHER", 2)
    for wrong in ("[1]", '{"id": 1}', "{", '{"payload": 1, "at": "soon"}', '{"payload_base64": "!"}', "\udcff"):
        content = f'{{"payload": 1, "id": 1}}\n{{"payload": 2, "id": 2}}\n{wrong}\n'.encode(errors="surrogateescape")
        (jobs.folder / "jobs.jsonl").write_bytes(content)
        jobs("table", "put", "jobs", "--jsonl", "jobs.jsonl", expect=WRONG_USAGE)
        assert "2 messages were put; lines 3 to 3 of 'jobs.jsonl' were not" in jobs.said
    jobs("table", "put", "jobs", "--jsonl", "missing", expect=WRONG_USAGE)
    assert "cannot read 'missing': No such file" in jobs.said
    jobs("table", "put", "jobs", "1", "--jsonl", "jobs.jsonl", expect=WRONG_USAGE)
    assert len(jobs.json("table", "peek", "jobs")) == 2


def test_json_lines_of_bytes_hold_text_or_base64(shell: Shell) -> None:
    shell("table", "add", "raw")
    (shell.folder / "raw.jsonl").write_text('{"payload": "tea"}\n{"payload_base64": "/w=="}\n')
    shell("table", "put", "raw", "--jsonl", "raw.jsonl")
    with connect("sqlite:///factory.db") as database:
        assert [message.payload for message in database.table("raw").peek()] == [b"tea", b"\xff"]
