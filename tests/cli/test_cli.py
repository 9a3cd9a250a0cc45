from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from waterclock.batching.kernels import KERNELS, Kernel
from waterclock.cli.app import FAILED, WRONG_USAGE
from waterclock.cli.operations import doctor
from waterclock.cli.terminal.extras import install_command
from waterclock.errors import UnavailableError

from .conftest import Shell

MESSAGE = {
    "source": "press-01",
    "stream": "load",
    "event_time": "2026-07-01T12:00:00Z",
    "publish_time": "2026-07-01T12:00:00Z",
    "receive_time": "2026-07-01T12:00:00.100Z",
    "payload": "17",
}


def write_messages(folder: Path, *changes: dict[str, Any]) -> str:
    file = folder / "messages.jsonl"
    file.write_text("".join(json.dumps({**MESSAGE, **change}) + "\n" for change in changes))
    return str(file)


def test_a_topic_is_made_filled_read_and_searched(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    assert "telemetry exists" in shell.said
    file = write_messages(shell.folder, {}, {"publish_time": "2026-07-01T12:00:01Z", "payload": "18"})
    shell("topic", "append", "telemetry", file)
    assert "appended 2" in shell.said
    assert [row["payload"] for row in shell.json("topic", "read", "telemetry")] == ["17", "18"]
    assert "press-01\tload\t17" in shell("topic", "read", "telemetry", "--limit", "1")
    (found,) = shell.json("topic", "find", "telemetry", "2026-07-01T12:00:00.500Z")
    assert (found["position"], found["found"], found["by"]) == ("0:0:1", True, "publish_time")
    (info,) = shell.json("topic", "info", "telemetry")
    assert info["messages"] == 2
    assert info["publish_time"] == {"begin": "2026-07-01T12:00:00Z", "end": "2026-07-01T12:00:01Z"}
    (row,) = shell.json("topic", "ls")
    assert (row["name"], row["messages"]) == ("telemetry", 2)


def test_adding_an_existing_topic_with_other_options_prints_a_warning(shell: Shell) -> None:
    shell("topic", "add", "telemetry", "--retention", "1d")
    shell("topic", "add", "telemetry", "--retention", "2d", "--exist-ok")
    assert "waterclock: warning: topic 'telemetry' already exists and keeps its options" in shell.said
    assert "retention is '1d', not '2d'" in shell.said


def test_topic_alter_changes_and_unsets_options(shell: Shell) -> None:
    shell("topic", "add", "telemetry", "--retention", "1d", "--max-ahead", "5m")
    shell("topic", "alter", "telemetry", "--max-ahead", "10m", "--unset", "retention")
    assert "changed max_ahead, retention of telemetry" in shell.said
    (info,) = shell.json("topic", "info", "telemetry")
    assert (info["max_ahead"], info["retention"], info["roll_after"]) == (600, None, 3600)
    shell("topic", "alter", "telemetry", expect=WRONG_USAGE)


def test_topic_info_shows_the_streams_that_lag_most(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    assert shell.json("topic", "info", "telemetry")[0]["lag"] == []
    times = {"event_time": "2026-07-01T12:00:00Z", "publish_time": "2026-07-01T12:00:02.5Z"}
    times["receive_time"] = times["publish_time"]
    file = write_messages(shell.folder, times, {**times, "stream": "late", "event_time": "2026-07-01T11:59:00Z"})
    shell("topic", "append", "telemetry", file)
    (info,) = shell.json("topic", "info", "telemetry")
    assert (info["lag"][0]["stream"], info["lag"][0]["smallest"], info["lag"][0]["largest"]) == ("late", 62.5, 62.5)
    assert "late 62.500 s, " in shell("topic", "info", "telemetry")


def test_topic_rename(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "rename", "telemetry", "measurements")
    assert "renamed topic telemetry to measurements" in shell.said
    (info,) = shell.json("topic", "ls")
    assert info["name"] == "measurements"
    shell("topic", "rename", "telemetry", "other", expect=FAILED)


def test_a_message_too_far_ahead_is_rejected_with_its_reason(shell: Shell) -> None:
    shell("topic", "add", "telemetry", "--max-ahead", "5m")
    file = write_messages(shell.folder, {}, {"publish_time": "2199-01-01T00:00:00Z"}, {})
    shell("topic", "append", "telemetry", file, expect=FAILED)
    assert "appended 2" in shell.said
    assert "rejected 1 of 3 messages" in shell.said
    assert "message 2: publish_time 2199-01-01T00:00:00Z is" in shell.said
    assert "at most 5m" in shell.said
    (info,) = shell.json("topic", "info", "telemetry")
    assert (info["messages"], info["max_ahead"], info["on_ahead"]) == (2, 300, "reject")
    shell("topic", "add", "tolerant", "--max-ahead", "5m", "--on-ahead", "keep")
    shell("topic", "append", "tolerant", file)


def test_a_wild_clock_is_passed_by_with_another_time(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    wild = {"publish_time": "2199-01-01T00:00:00Z", "payload": "wild"}
    shell("topic", "append", "telemetry", write_messages(shell.folder, wild, {"payload": "good"}))
    by = ("--by", "effective_time")
    since = ("--since", "2026-07-01T12:00:00Z")
    until = ("--until", "2026-07-01T12:00:00.050Z")
    assert shell.json("topic", "read", "telemetry", *since, *until) == []
    read = shell.json("topic", "read", "telemetry", "--since", "2026-07-01T11:00:00Z", *until, *by)
    assert [row["payload"] for row in read] == []
    (found,) = shell.json("topic", "find", "telemetry", "2026-07-01T12:00:00.050Z", *by)
    assert (found["position"], found["found"]) == ("0:0:0", True)
    shell("subscription", "add", "telemetry", "billing", "--start", "2026-07-01T12:00:01Z", *by)
    assert "is at 0:1:0" in shell.said
    seek = ("subscription", "seek", "telemetry", "billing", "--to", "2026-07-01T12:00:01Z")
    (planned,) = shell.json(*seek, "--dry-run")
    assert planned["to"] == "0:0:0"
    (planned,) = shell.json(*seek, "--dry-run", *by)
    assert planned["to"] == "0:1:0"
    assert shell.json(*seek, *by)[0]["to"] == "0:1:0"


def test_read_filters_by_time_where_that_is_asked_for(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    moments = ["12:00:00Z", "12:00:05Z", "12:00:01Z", "12:00:09Z", "12:00:02Z"]
    changes = [{"payload": str(at), "event_time": f"2026-07-01T{time}"} for at, time in enumerate(moments)]
    shell("topic", "append", "telemetry", write_messages(shell.folder, *changes[:2]))
    shell("topic", "roll", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, *changes[2:]), "--producer", "second")
    read = ("topic", "read", "telemetry", "--by", "event_time")
    between = ("--since", "2026-07-01T12:00:01Z", "--until", "2026-07-01T12:00:06Z")
    assert [row["payload"] for row in shell.json(*read, *between)] == ["1", "2"]
    assert shell.said == ""
    assert [row["payload"] for row in shell.json(*read, *between, "--where-time")] == ["1", "2", "4"]
    assert [row["payload"] for row in shell.json(*read, *between, "--where-time", "--limit", "1")] == ["1"]
    until = ("--until", "2026-07-01T12:00:09Z", "--since", "2026-07-01T12:00:03Z")
    assert [row["payload"] for row in shell.json(*read, *until)] == ["1", "2"]
    assert (
        "1 of 2 messages have an event_time outside the range. To filter by this time, use --where-time" in shell.said
    )
    assert [row["payload"] for row in shell.json(*read, *until, "--where-time")] == ["1"]
    effective = ("--by", "effective_time", "--since", "2026-07-01T12:00:00Z", "--where-time")
    assert len(shell.json("topic", "read", "telemetry", *effective)) == 5
    assert shell.json("topic", "read", "telemetry", "--until", "2026-07-01T12:00:00Z", "--where-time") == []
    shell(*read, "--where-time", "--follow", expect=WRONG_USAGE)
    assert "cannot be combined with --start, --stop or --follow" in shell.said


def test_find_says_which_time_matched_and_what_the_others_are(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, {"publish_time": "2026-07-02T00:00:00Z"}))
    (found,) = shell.json("topic", "find", "telemetry", "2026-07-01T18:00:00Z")
    assert found == {
        "position": "0:0:0",
        "found": True,
        "by": "publish_time",
        "event_time": "2026-07-01T12:00:00Z",
        "publish_time": "2026-07-02T00:00:00Z",
        "receive_time": "2026-07-01T12:00:00.100Z",
    }
    (found,) = shell.json("topic", "find", "telemetry", "2026-07-01T18:00:00Z", "--by", "event_time", expect=FAILED)
    assert (found["found"], found["by"], found["event_time"]) == (False, "event_time", None)


def test_long_listings_are_paged(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waterclock.cli.topics.topic._PAGE", 2)
    file = write_messages(shell.folder, {})
    for name in ("telemetry", "alarms"):
        shell("topic", "add", name)
    for number in range(4):
        shell("topic", "append", "telemetry", file, "--producer", str(number))
        shell("topic", "roll", "telemetry")
    listed = ("topic", "ledgers", "telemetry")
    assert [row["ledger"] for row in shell.json(*listed)] == [0, 1, 2, 3, 4]
    assert [row["ledger"] for row in shell.json(*listed, "--limit", "3")] == [0, 1, 2]
    assert [row["ledger"] for row in shell.json(*listed, "--start", "3", "--limit", "9")] == [3, 4]
    assert [row["name"] for row in shell.json("topic", "ls", "--limit", "1")] == ["alarms"]
    assert len(shell.json("topic", "ls")) == 2


def test_finding_a_moment_that_has_not_come_exits_with_one(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    (found,) = shell.json("topic", "find", "telemetry", "2026-07-01T12:00:00Z", expect=FAILED)
    assert (found["position"], found["found"], found["publish_time"]) == ("0:0:0", False, None)


def sealed_topic(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, {}))
    shell("topic", "roll", "telemetry")
    shell("topic", "seal", "telemetry")


def test_the_files_of_a_topic_are_listed_and_its_store_is_relocated(shell: Shell) -> None:
    sealed_topic(shell)
    root = shell.folder / "factory.db-ledgers"
    (listed,) = shell.json("topic", "files", "telemetry")
    assert listed["file"].startswith(f"{root}/telemetry-1/0000000000-")
    root.rename(shell.folder / "renamed")
    shell("topic", "read", "telemetry", expect=FAILED)
    assert f"the ledger store {root}: waterclock-store.json is missing" in shell.said
    shell("topic", "relocate", "telemetry", "renamed")
    assert f"found 1 file; topic telemetry is now at {shell.folder}/renamed" in shell.said
    assert len(shell.json("topic", "read", "telemetry")) == 1
    shell("topic", "relocate", "telemetry", str(shell.folder / "copied"))
    assert "copied 1 file" in shell.said
    assert shell("topic", "files", "telemetry").splitlines()[1].startswith(f"{shell.folder}/copied/")


def test_topics_of_other_stores_are_found_where_the_catalogue_says(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATERCLOCK_LEDGERS", "first")
    shell("topic", "add", "telemetry")
    shell("topic", "add", "quality", "--ledgers", "second")
    shell("topic", "append", "quality", write_messages(shell.folder, {"payload": "x"}))
    shell("topic", "roll", "quality")
    shell("topic", "seal", "quality")
    [listed] = shell.json("topic", "files", "quality")
    assert listed["file"].startswith(f"{shell.folder}/second/")
    assert len(shell.json("topic", "read", "quality")) == 1
    shell("topic", "relocate", "telemetry", "third")
    assert "warning" not in shell.said
    shell("topic", "info", "telemetry")


def test_relocate_warns_of_a_given_place_that_then_hides_the_topic(shell: Shell) -> None:
    shell("topic", "add", "telemetry", "--ledgers", "first")
    (shell.folder / "first").rename(shell.folder / "second")
    shell("topic", "relocate", "telemetry", "second", "--ledgers", "first")
    assert "warning: topic telemetry cannot be opened while --ledgers or WATERCLOCK_LEDGERS names" in shell.said
    shell("topic", "info", "telemetry", "--ledgers", "first", expect=FAILED)
    shell("topic", "info", "telemetry")


def test_a_misspelled_folder_of_ledgers_is_named_and_deletes_nothing(shell: Shell) -> None:
    sealed_topic(shell)
    for command in (("seal",), ("expire", "1s", "--yes"), ("truncate", "1s", "--yes"), ("ledgers",)):
        name, *rest = command
        shell("topic", name, "telemetry", *rest, "--ledgers", "wrong", expect=FAILED)
        assert f"{shell.folder}/wrong: waterclock-store.json is missing" in shell.said
        assert f"{shell.folder}/factory.db-ledgers" in shell.said
    assert not (shell.folder / "wrong").exists()
    assert [row["state"] for row in shell.json("topic", "ledgers", "telemetry")] == ["sealed", "open"]


def test_the_files_of_a_topic_are_compacted(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    for payload in "ab":
        shell("topic", "append", "telemetry", write_messages(shell.folder, {"payload": payload}))
        shell("topic", "roll", "telemetry")
    shell("topic", "seal", "telemetry")
    shell("topic", "compact", "telemetry")
    assert "saved 1 file" in shell.said
    assert len(shell.json("topic", "read", "telemetry")) == 2


def test_a_topic_is_rolled_and_sealed(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, {}))
    shell("topic", "roll", "telemetry")
    shell("topic", "seal", "telemetry")
    assert "sealed 1" in shell.said
    first, second = shell.json("topic", "ledgers", "telemetry")
    assert (first["state"], first["messages"], first["begin_event_time"]) == ("sealed", 1, "2026-07-01T12:00:00Z")
    assert second["state"] == "open"
    assert [row["payload"] for row in shell.json("topic", "read", "telemetry")] == ["17"]


def test_the_output_of_reading_can_be_appended_again(shell: Shell) -> None:
    for topic in ("first", "second"):
        shell("topic", "add", topic)
    shell("topic", "append", "first", write_messages(shell.folder, {"headers": {"a": "b"}}, {"payload_base64": "/w=="}))
    printed = shell("topic", "read", "first", "--json")
    (shell.folder / "copy.jsonl").write_text(printed)
    shell("topic", "append", "second", "copy.jsonl")
    assert shell("topic", "read", "second", "--json") == printed


def test_a_single_hyphen_is_standard_input(shell: Shell) -> None:
    line = Path(write_messages(shell.folder, {})).read_bytes()
    shell("topic", "add", "telemetry")
    for words in (["topic", "append", "telemetry", "-"], ["batch", "-", "--window", "500ms", "--max-delay", "400ms"]):
        command = [sys.executable, "-m", "waterclock", *words]
        done = subprocess.run(command, input=line, capture_output=True, check=True)
        assert b"1 message" in done.stderr


def test_invalid_arguments_are_refused_before_the_caller_is_asked(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "expire", "telemetry", "old", expect=WRONG_USAGE)
    assert "'500ms', '1.5s', '1h30m' or '7d', got 'old'" in shell.said


def test_a_message_is_put_received_and_acked(shell: Shell) -> None:
    shell("table", "add", "orders", "--payload", "text")
    (put,) = shell.json("table", "put", "orders", "hello", "--header", "colour=red")
    (received,) = shell.json("table", "receive", "orders")
    assert received["payload"] == "hello"
    assert received["headers"] == {"colour": "red"}
    assert "is with" in shell("table", "explain", "orders", put["id"])
    shell("table", "ack", "orders", put["id"])
    assert "acked 1 of 1" in shell.said
    (row,) = shell.json("table", "ls")
    assert (row["name"], row["acked"], row["ready"]) == ("orders", 1, 0)
    shell("table", "purge", "orders")
    assert "purged 0" in shell.said


def test_receiving_where_nothing_is_due_exits_with_one(shell: Shell) -> None:
    shell("table", "add", "orders")
    assert shell.json("table", "receive", "orders", expect=FAILED) == []


def test_a_message_that_was_received_can_be_retried_at_once(shell: Shell) -> None:
    shell("table", "add", "orders", "--id-type", "text")
    shell("table", "put", "orders", "x", "--id", "a", "--at", "2020-01-01T00:00:00Z")
    assert len(shell.json("table", "receive", "orders")) == 1
    assert shell.json("table", "receive", "orders", expect=FAILED) == []
    shell("table", "retry", "orders", "a")
    (again,) = shell.json("table", "receive", "orders", "--ack")
    assert again["id"] == "a"
    (info,) = shell.json("table", "info", "orders")
    assert (info["acked"], info["id_type"]) == (1, "text")


def test_a_file_of_messages_is_cut_into_batches_and_drawn(shell: Shell) -> None:
    file = write_messages(
        shell.folder,
        {},
        {"stream": "heat", "event_time": "2026-07-01T12:00:00.050Z"},
        {"event_time": "2026-07-01T12:00:00.070Z"},
        {"event_time": "2026-07-01T11:59:00Z"},
    )
    rows = shell.json("batch", file, "--window", "500ms", "--max-delay", "400ms", "--svg", "out.svg")
    assert [(row["messages"], row["reason"]) for row in rows] == [(2, "conflict"), (1, "timeout")]
    assert "3 messages in 2 batches; rejected: 1 late" in shell.said
    assert "<svg" in (shell.folder / "out.svg").read_text()


def test_by_id_a_file_is_batched_and_needs_the_header_of_the_id(shell: Shell) -> None:
    file = write_messages(
        shell.folder,
        *({"stream": s, "headers": {"train": str(n)}} for s, n in [("a", 1), ("b", 1), ("a", 2), ("a", 5)]),
    )
    command = ["batch", file, "--by", "id", "--id-of", "train", "--max-delay", "1s", "--stream", "a", "--stream", "b"]
    rows = shell.json(*command)
    assert [(row["id"], row["messages"], row["reason"]) for row in rows] == [
        ("press-01@1", 2, "complete"),
        ("press-01@2", 1, "timeout"),
        ("press-01@5", 1, "timeout"),
    ]
    assert "missing: 2 ids; 2 batches without all streams" in shell.said
    shell("batch", file, "--by", "id", "--max-delay", "1s", expect=WRONG_USAGE)
    assert "--id-of is missing. Batching by id needs a value such as pulse_id" in shell.said


@pytest.mark.parametrize("place", [".", "nowhere/out.svg"])
def test_a_place_where_nothing_can_be_drawn_is_named(shell: Shell, place: str) -> None:
    file = write_messages(shell.folder, {})
    shell("batch", file, "--window", "500ms", "--max-delay", "400ms", "--svg", place, expect=FAILED)
    assert f"cannot use '{place}': " in shell.said


def test_a_topic_is_cut_into_batches(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, {}))
    (row,) = shell.json("batch", "telemetry", "--window", "500ms", "--max-delay", "400ms")
    assert row["start"] == "2026-07-01T12:00:00Z"


def test_the_doctor_names_what_is_found(shell: Shell) -> None:
    shell("table", "add", "orders")
    found = {row["what"]: row for row in shell.json("doctor")}
    assert {row["status"] for what, row in found.items() if what != "Compiled kernels"} == {"ok"}
    assert found["Database"]["found"] == "sqlite:///factory.db: 0 topics, 1 message tables"
    assert found["Server"]["found"].startswith("fastapi ")
    assert "uvicorn" in found["Server"]["found"]
    assert "17" in found["Java"]["found"] or "2" in found["Java"]["found"]


def test_the_doctor_shows_how_to_install_each_missing_extra(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"waterclock", "sqlalchemy", "pyarrow", "numpy", "numba"}

    def bare(package: str) -> str:
        if package in needed:
            return "1"
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", bare)
    extras = metadata("waterclock").get_all("Provides-Extra") or ()
    absent = [row for row in shell.json("doctor") if row["found"].startswith("no ")]
    assert {row["remedy"] for row in absent} == {install_command(extra) for extra in extras}
    assert {row["status"] for row in absent} == {"absent"}


def test_the_doctor_says_whether_numba_must_compile_kernels(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> tuple[str, str]:
        (row,) = (row for row in shell.json("doctor") if row["what"] == "Compiled kernels")
        assert (row["status"] == "ok") is (row["remedy"] == "")
        return row["status"], row["found"]

    monkeypatch.setattr(Kernel, "load_shipped", lambda _: None)
    assert kernels() == ("ok", str(len(KERNELS)))
    monkeypatch.setattr(Kernel, "load_shipped", Mock(side_effect=FileNotFoundError))
    assert kernels() == ("absent", f"0 of {len(KERNELS)}")
    monkeypatch.setattr(Kernel, "load_shipped", Mock(side_effect=UnavailableError("it is of another source")))
    assert kernels() == ("warning", f"{KERNELS[0]}: it is of another source")


def test_the_doctor_fails_where_the_database_cannot_be_opened(shell: Shell) -> None:
    (shell.folder / "factory.db").write_text(
        "this is no database, but long enough to have a header of SQLite's size" * 9
    )
    found = {row["what"]: row for row in shell.json("doctor", expect=FAILED)}
    assert found["Database"]["status"] == "broken"
    assert "not a database" in found["Database"]["remedy"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["topic", "lss"], WRONG_USAGE, "lss"),
        (["topic", "ls", "--jsn"], WRONG_USAGE, "--jsn"),
        (["topic", "ls"], FAILED, "no database file 'factory.db' found"),
        (["topic", "ls", "--url", "oracle://x"], WRONG_USAGE, "oracle"),
        (["batch", "nowhere.jsonl", "--window", "5", "--max-delay", "1s"], WRONG_USAGE, "must be a duration"),
        (["table", "add", "no-hyphens"], WRONG_USAGE, "no-hyphens"),
        (["topic", "ls", "--url", f"sqlite:///{'x' * 300}"], FAILED, "File name too long"),
    ],
)
def test_wrong_usage_exits_with_two_and_failure_with_one(shell: Shell, words: list[str], code: int, says: str) -> None:
    assert shell(*words, expect=code) == ""
    assert says in shell.said


def test_bench_measures_each_operation_and_removes_what_it_created(shell: Shell) -> None:
    shell("init")
    rows = shell.json("bench", "--seconds", "0.001")
    assert [row["what"] for row in rows] == [
        *("put 1", "put 100", "claim and ack 1", "claim and ack 100", "append 1", "append 1,000"),
        *("find a time", "batch 20,000 by event time"),
    ]
    assert all(row["per_second"] > 0 and 0 < row["p50"] <= row["p99"] for row in rows)
    assert shell.json("table", "ls") == shell.json("topic", "ls") == []
    shell("bench", "--seconds", "0", expect=WRONG_USAGE)
    assert "seconds must be greater than 0 and at most 60, got 0" in shell.said


def test_bench_without_a_database_measures_in_a_temporary_folder(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATERCLOCK_URL")
    assert len(shell.json("bench", "--seconds", "0.001")) == 8
    assert list(shell.folder.iterdir()) == []


def test_a_topic_or_table_that_is_not_there_is_named(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "read", "other", expect=FAILED)
    assert "'other'" in shell.said
    shell("table", "receive", "other", expect=FAILED)
    assert "'other'" in shell.said


def test_without_a_url_the_remedy_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATERCLOCK_URL")
    shell("topic", "ls", expect=WRONG_USAGE)
    assert "--url" in shell.said


def test_a_reader_that_stops_early_is_not_an_error(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, *[{"payload": "x" * 1000}] * 1000))
    piped = subprocess.run(  # noqa: S602  # the shell's pipe is what is tested
        f"{sys.executable} -m waterclock topic read telemetry | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert piped.stderr == ""
    assert "press-01" in piped.stdout


def test_a_subscription_is_made_read_moved_and_removed(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    changes = [{"payload": str(i), "publish_time": f"2026-07-01T12:00:0{i}Z"} for i in range(4)]
    shell("topic", "append", "telemetry", write_messages(shell.folder, *changes))
    shell("subscription", "add", "telemetry", "billing")
    read = ["subscription", "read", "telemetry", "billing", "--limit", "2"]
    assert [row["payload"] for row in shell.json(*read, "--no-commit")] == ["0", "1"]
    assert [row["payload"] for row in shell.json(*read)] == ["0", "1"]
    assert [row["payload"] for row in shell.json(*read)] == ["2", "3"]
    assert shell.json(*read, expect=FAILED) == []
    seek = ["subscription", "seek", "telemetry", "billing"]
    (planned,) = shell.json(*seek, "--to", "2026-07-01T12:00:01Z", "--dry-run")
    assert planned == {"name": "billing", "from": "0:1:0", "to": "0:0:1"}
    (row,) = shell.json("subscription", "ls", "telemetry")
    assert (row["position"], row["unread"]) == ("0:1:0", 0)
    (moved,) = shell.json(*seek, "--to", "2026-07-01T12:00:01Z")
    assert moved["to"] == "0:0:1"
    (info,) = shell.json("subscription", "info", "telemetry", "billing")
    assert info["backlog"] == 3
    for where, position in (("--start", "0:0:0"), ("--end", "0:1:0")):
        assert shell.json(*seek, where)[0]["to"] == position
    shell("subscription", "rm", "telemetry", "billing", "--yes")
    shell(*read, expect=FAILED)
    assert "no subscription named 'billing'" in shell.said


def test_seeking_to_nowhere_or_to_two_places_is_wrong_usage(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("subscription", "add", "telemetry", "billing", "--start", "latest")
    for words in ([], ["--start", "--end"]):
        shell("subscription", "seek", "telemetry", "billing", *words, expect=WRONG_USAGE)
        assert "must be exactly one of" in shell.said


def test_numbers_out_of_range_are_refused_before_anything_is_printed(shell: Shell) -> None:
    shell("topic", "add", "t")
    beyond = str(2**63)
    for command, said in (
        (("read", "t", "--limit", beyond), f"limit must be at most {2**63 - 1}, got {beyond}"),
        (("ledgers", "t", "--start", "-1"), "start must be an integer ≥ 0, got -1"),
        (("ledgers", "t", "--start", beyond), f"start must be at most {2**63 - 1}, got {beyond}"),
        (("truncate", "t", f"{beyond}:0:0", "--yes"), f"the numbers in before must be from 0 to {2**63 - 1}, got "),
        (("truncate", "t", "0:0:-1", "--yes"), "position must be ledger:entry:index, for example 3:17:0, got '0:0:-1'"),
    ):
        assert shell("topic", *command, expect=WRONG_USAGE) == ""
        assert said in shell.said


def test_old_ledgers_are_truncated_and_expired_and_a_topic_is_removed_only_with_consent(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    for second in (0, 5):
        change = {"publish_time": f"2026-07-01T12:00:0{second}Z", "payload": str(second)}
        shell("topic", "append", "telemetry", write_messages(shell.folder, change))
        shell("topic", "roll", "telemetry")
    shell("topic", "truncate", "telemetry", "2026-07-01T12:00:03Z", expect=WRONG_USAGE)
    assert "--yes" in shell.said
    shell("topic", "truncate", "telemetry", "2026-07-01T12:00:03Z", "--yes")
    assert "deleted 1 ledger" in shell.said
    assert [row["payload"] for row in shell.json("topic", "read", "telemetry")] == ["5"]
    (expired,) = shell.json("topic", "expire", "telemetry", "1s", "--yes")
    assert expired["ledgers"] == 1
    shell("topic", "rm", "telemetry", expect=WRONG_USAGE)
    shell("topic", "rm", "telemetry", "--yes")
    assert shell.json("topic", "ls") == []


def test_following_a_topic_prints_what_is_appended_later(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, {"payload": "first"}))
    command = [sys.executable, "-m", "waterclock", "topic", "read", "telemetry", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["payload"] == "first"
        shell("topic", "append", "telemetry", write_messages(shell.folder, {"payload": "second"}))
        assert json.loads(follower.stdout.readline())["payload"] == "second"
        follower.terminate()


def test_lengths_of_time_are_seconds_in_json_and_have_units_for_people(shell: Shell) -> None:
    shell("table", "add", "orders", "--groups", "sequenced", "--ack-wait", "1500ms", "--purge-after", "1d")
    shell("table", "put", "orders", "x", "--group", "a")
    (info,) = shell.json("table", "info", "orders")
    assert (info["ack_wait"], info["purge_after"], info["min_backoff"]) == (1.5, 86_400, None)
    assert isinstance(info["oldest_age"], int | float)
    assert re.search(r"ack wait +1500ms\n", shell("table", "info", "orders"))
    shell("table", "receive", "orders")
    (group,) = shell.json("group", "ls", "orders")
    assert isinstance(group["head_age"], int | float)
    (explained,) = shell.json("table", "explain", "orders", "1")
    assert explained["due_at"].endswith("Z")
    shell("topic", "add", "telemetry")
    shell("topic", "append", "telemetry", write_messages(shell.folder, {}))
    shell("subscription", "add", "telemetry", "billing")
    (subscription,) = shell.json("subscription", "info", "telemetry", "billing")
    assert isinstance(subscription["backlog_age"], int | float)


def test_groups_are_listed_paused_moved_and_purged_only_with_consent(shell: Shell) -> None:
    for name in ("orders", "other"):
        shell("table", "add", name, "--groups", "sequenced", "--payload", "text")
    for payload in ("1", "2", "3"):
        shell("table", "put", "orders", payload, "--group", "a")
    shell("group", "pause", "orders", "a")
    [row] = shell.json("group", "ls", "orders")
    assert (row["group"], row["waiting"], row["blocked_by"]) == ("a", 3, "it is paused")
    assert shell.json("group", "info", "orders", "a")[0]["paused_until"] == "no end"
    shell("group", "pause", "orders", "a", "--until", "2099-01-01T00:00:00Z")
    assert shell.json("group", "info", "orders", "a")[0]["paused_until"] == "2099-01-01T00:00:00Z"
    shell("group", "resume", "orders", "a")
    shell("table", "receive", "orders", "--limit", "1")
    assert shell.json("group", "move", "orders", "a", "other", "--dry-run") == [{"done": 2, "skipped": 1}]
    shell("group", "move", "orders", "a", "other", "--count", "1")
    assert "moved 1 message, skipped 1 in flight" in shell.said
    shell("group", "purge", "orders", "a", expect=WRONG_USAGE)
    shell("group", "purge", "orders", "a", "--yes")
    assert "deleted 1 message" in shell.said
    shell("group", "release", "orders", "a", "--force")
    shell("group", "skip-head", "orders", "a")
    assert shell.json("group", "ls", "orders") == []
    shell("group", "info", "orders", "a", expect=FAILED)
