"""``waterclock topic export`` writes files that other programs read, whole or not at all."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Shell

import waterclock as wc

HOSTILE = 'a,"b"\nc\x1b[2J'


@pytest.fixture
def filled(shell: Shell) -> Shell:
    with wc.connect("sqlite:///factory.db") as database:
        database.create_topic("telemetry").append(
            [
                wc.Message("press", "load", 1_767_225_600_123_456_789, b"17", headers={"unit": "kN"}),
                wc.Message(HOSTILE, "heat", 2, b"\xff\x00"),
                wc.Message("press", "heat", 3, b""),
            ]
        )
    return shell


def test_lines_are_what_read_prints_and_append_takes(filled: Shell) -> None:
    filled("topic", "export", "telemetry", "--to", "all.jsonl")
    assert "exported 3 messages of telemetry to all.jsonl" in filled.said
    assert Path("all.jsonl").read_text() == filled("topic", "read", "telemetry", "--json")
    filled("topic", "add", "copy")
    filled("topic", "append", "copy", "all.jsonl")
    with wc.connect("sqlite:///factory.db") as database:
        copy, original = ([m.payload for m in database.topic(name).read()] for name in ("copy", "telemetry"))
    assert copy == original


def test_parquet_has_exact_timestamps_and_only_the_chosen_messages(filled: Shell) -> None:
    filled(
        "topic", "export", "telemetry", "--to", "some.parquet", "--source", "press", "--stream", "load", "--limit", "5"
    )
    table = pq.read_table("some.parquet")
    assert table.column("payload").to_pylist() == [b"17"]
    assert str(table.schema.field("event_time").type) == "timestamp[ns, tz=UTC]"
    assert table.column("event_time").cast("int64").to_pylist() == [1_767_225_600_123_456_789]


def test_csv_holds_hostile_names_as_data(filled: Shell) -> None:
    filled("topic", "export", "telemetry", "--to", "all.csv")
    with Path("all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["source"] for row in rows] == ["press", HOSTILE, "press"]
    assert [row["headers"] for row in rows] == ['{"unit": "kN"}', "", ""]
    assert [(row["payload"], row["payload_base64"]) for row in rows] == [("17", ""), ("", "/wA="), ("", "")]


def test_an_empty_choice_is_a_file_without_messages(filled: Shell) -> None:
    for name in ("none.parquet", "none.csv", "none.jsonl"):
        filled("topic", "export", "telemetry", "--to", name, "--source", "other")
    assert pq.read_table("none.parquet").num_rows == 0
    assert Path("none.jsonl").read_text() == ""


def test_a_file_that_exists_and_an_unknown_ending_are_refused(filled: Shell) -> None:
    Path("there.csv").write_text("mine")
    filled("topic", "export", "telemetry", "--to", "there.csv", expect=1)
    assert "the file exists. Choose another name" in filled.said
    assert Path("there.csv").read_text() == "mine"
    filled("topic", "export", "telemetry", "--to", "all.xlsx", expect=2)
    assert "the file must end in .parquet, .csv, .jsonl, got 'all.xlsx'" in filled.said
    filled("topic", "export", "telemetry", "--to", "no/folder.csv", expect=1)
    assert "cannot write 'no/folder.csv': No such file or directory" in filled.said
    filled("topic", "export", "telemetry", "--to", "there.csv/all.csv", expect=1)
    assert "cannot write 'there.csv/all.csv': Not a directory" in filled.said
    Path("link.csv").symlink_to("missing")
    filled("topic", "export", "telemetry", "--to", "link.csv", expect=1)
    assert Path("link.csv").is_symlink()


def test_an_export_that_fails_leaves_no_file(filled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_message: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("waterclock.ingest.files.message_to_json", fail)
    before = set(Path().iterdir())
    filled("topic", "export", "telemetry", "--to", "all.csv", expect=1)
    assert "cannot write 'all.csv': No space left on device" in filled.said
    assert set(Path().iterdir()) == before
