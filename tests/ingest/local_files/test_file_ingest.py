"""Files are appended once each, whatever happens to them and to the process that reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.killed import killed_after_each_change

import waterclock as wc
from waterclock.arrow import to_arrow
from waterclock.ingest.local_files import file_ingest, opened_file
from waterclock.ingest.local_files.file_ingest import FileIngest, FilePlan
from waterclock.ingest.local_files.fingerprint import FileKey
from waterclock.ingest.local_files.line_format import LineFormat
from waterclock.ingest.mapping.csv_columns import CsvOptions
from waterclock.ingest.progress import Event

MakeIngest = Callable[..., FileIngest]
SECOND = 10**9


@pytest.fixture
def topic(database: wc.Database) -> wc.Topic:
    return database.create_topic("telemetry")


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def ingest(database: wc.Database, topic: wc.Topic, tmp_path: Path, events: list[Event]) -> MakeIngest:
    def make(pattern: str = "*.jsonl", line_format: LineFormat | None = None, **options: bool) -> FileIngest:
        plan = FilePlan([str(tmp_path / pattern)], "telemetry", line_format or LineFormat(), "dead", 1 << 16, **options)
        return FileIngest(database, plan, events.append)

    return make


def lines(first: int, stop: int) -> str:
    return "".join(
        json.dumps({"source": "s", "stream": "m", "event_time": number, "payload": str(number)}) + "\n"
        for number in range(first, stop)
    )


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def numbers(topic: wc.Topic) -> list[int]:
    return [message.event_time for message in topic.read()]


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def test_a_rerun_continues_and_new_lines_are_appended_once(topic: wc.Topic, ingest: MakeIngest, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 5))
    ingest().run(follow=False)
    append(path, lines(5, 8))
    for _ in range(2):
        ingest().run(follow=False)
    assert numbers(topic) == list(range(8))


@pytest.mark.one_database
def test_half_a_last_line_is_left_until_it_is_whole(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, events: list[Event]
) -> None:
    path = tmp_path / "a.jsonl"
    text = lines(0, 3)
    append(path, text[:-10])
    ingest().run(follow=False)
    assert numbers(topic) == [0, 1]
    assert names(events) == ["half_line", "stopped"]
    append(path, text[-10:-1])
    ingest(complete=True).run(follow=False)
    assert numbers(topic) == [0, 1, 2]


def test_a_renamed_file_is_read_to_its_end_and_its_successor_from_its_beginning(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 3))
    own = ingest()
    own._step(follow=True)
    path.rename(tmp_path / "a.jsonl.1")  # no pattern matches it any more
    append(tmp_path / "a.jsonl.1", lines(3, 5))  # its writer still has it
    append(path, lines(5, 7))
    own._step(follow=True)
    assert sorted(numbers(topic)) == list(range(7))
    ingest("*.jsonl*").run(follow=False)
    assert len(numbers(topic)) == 7


def test_half_a_last_line_of_a_deleted_file_is_taken_after_a_while(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 2)[:-1])
    own = ingest()
    own._step(follow=True)
    path.unlink()
    own._step(follow=True)
    assert numbers(topic) == [0]
    monkeypatch.setattr(file_ingest, "_GONE_AFTER", -1.0)
    own._step(follow=True)
    own._step(follow=True)
    assert numbers(topic) == [0, 1]
    assert own.progress.files == 0


def test_a_truncated_file_is_read_from_its_beginning(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, events: list[Event]
) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 3))
    own = ingest()
    own._step(follow=True)
    path.write_text(lines(10, 12))  # the same inode, shorter
    own._step(follow=True)
    path.write_text(lines(20, 29))  # longer than before
    own._step(follow=True)
    assert numbers(topic) == [0, 1, 2, 10, 11, *range(20, 29)]
    assert names(events) == ["truncated", "truncated"]


def test_a_file_written_again_with_the_same_beginning_is_another_one(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 100))
    ingest().run(follow=False)
    path.write_text(lines(0, 50) + lines(200, 250))
    ingest().run(follow=False)
    assert numbers(topic)[100:] == [*range(50), *range(200, 250)]


def test_a_file_whose_device_has_another_number_continues(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 3))
    ingest().run(follow=False)
    append(path, lines(3, 5))
    monkeypatch.setattr(FileKey, "of", lambda status: FileKey(status.st_dev + 1, status.st_ino))
    for _ in range(2):
        ingest().run(follow=False)
    assert numbers(topic) == list(range(5))
    path.write_text(lines(10, 20))  # the inode and the path of another file
    monkeypatch.setattr(FileKey, "of", lambda status: FileKey(status.st_dev + 2, status.st_ino))
    ingest().run(follow=False)
    assert numbers(topic) == [*range(5), *range(10, 20)]


def test_files_with_equal_contents_are_different_files(topic: wc.Topic, ingest: MakeIngest, tmp_path: Path) -> None:
    for name in "ab":
        append(tmp_path / f"{name}.jsonl", lines(0, 2))
    ingest().run(follow=False)
    append(tmp_path / "b.jsonl", lines(2, 3))
    ingest().run(follow=False)
    assert numbers(topic) == [0, 1, 0, 1, 2]


@pytest.mark.both_servers
def test_each_message_is_appended_once_however_often_it_is_killed(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: wc.Database
) -> None:
    monkeypatch.setattr(opened_file, "MOST_LINES", 3)
    append(tmp_path / "a.jsonl", lines(0, 5) + "bad\n" + lines(5, 8))
    append(tmp_path / "b.jsonl", lines(10, 12))
    _, deaths = killed_after_each_change(lambda: ingest().run(follow=False))
    assert deaths > 1
    assert sorted(numbers(topic)) == [*range(8), 10, 11]
    assert [letter.payload for letter in database.topic("dead").read()] == [b"bad"]


def test_a_second_ingest_of_a_file_stops_the_first(topic: wc.Topic, ingest: MakeIngest, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 1))
    first, second = ingest(), ingest()
    first._step(follow=True)
    second._step(follow=True)
    append(path, lines(1, 2))
    with pytest.raises(wc.LeaseLostError, match="another process is ingesting this file"):
        first._step(follow=True)
    second._step(follow=True)
    assert numbers(topic) == [0, 1]


@pytest.mark.both_servers
def test_a_database_that_is_away_loses_and_duplicates_nothing(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "a.jsonl", lines(0, 4))
    own = ingest()
    monkeypatch.setattr(file_ingest, "_FIRST_PAUSE", 0.0)
    commit = file_ingest.JointAppend.commit
    answers = [True, False]

    def lose_the_answer(*arguments: object) -> object:
        if not answers:
            return commit(*arguments)  # pyright: ignore
        if answers.pop():
            commit(*arguments)  # pyright: ignore  # committed, and no answer comes
        raise wc.UnavailableError("away")

    monkeypatch.setattr(file_ingest.JointAppend, "commit", lose_the_answer)
    own._step(follow=True)
    assert numbers(topic) == [0, 1, 2, 3]
    assert names(events) == ["database_away", "database_back"]


@pytest.mark.one_database
@pytest.mark.parametrize("size", [70_000 * 6 + (1 << 20), 3 << 20])
def test_a_line_that_is_too_long_becomes_a_dead_letter_and_the_next_is_read(
    database: wc.Database, topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, size: int
) -> None:
    append(tmp_path / "a.jsonl", lines(0, 1) + "x" * size + "\n" + lines(1, 2))
    ingest().run(follow=False)
    assert numbers(topic) == [0, 1]
    [letter] = database.topic("dead").read()
    assert letter.payload == b"x" * opened_file.KEPT_OF_LONG
    assert letter.headers is not None
    assert letter.headers["file.line"] == "2"
    assert "must have at most" in letter.headers["reason"]


@pytest.mark.one_database
def test_csv_with_other_column_names_keeps_the_rest_as_payload(
    database: wc.Database, topic: wc.Topic, ingest: MakeIngest, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text('ts,device,load,note\r\n1760120317.152,press,98.5,"a, b"\r\n1,press\r\n')
    columns = CsvOptions({"event_time": "ts", "source": "device"}, stream="load")
    ingest("*.csv", LineFormat(csv=columns, time_unit="s")).run(follow=False)
    [message] = topic.read()
    assert (message.source, message.stream, message.event_time) == ("press", "load", 1_760_120_317_152_000_000)
    assert json.loads(message.payload) == {"load": "98.5", "note": "a, b"}
    append(path, "1760120318,press,1,\n")
    ingest("*.csv", LineFormat(csv=columns, time_unit="s")).run(follow=False)
    assert [message.event_time for message in topic.read()][1:] == [1_760_120_318 * SECOND]
    [letter] = database.topic("dead").read()
    assert (letter.payload, (letter.headers or {})["reason"]) == (b"1,press", "the row must have 4 columns, got 2")


@pytest.mark.one_database
def test_a_folder_of_collectd_becomes_hosts_and_streams(topic: wc.Topic, ingest: MakeIngest, tmp_path: Path) -> None:
    for host in ("lab", "gate"):
        folder = tmp_path / "csv" / host / "interface-eth0"
        folder.mkdir(parents=True)
        (folder / "if_octets-2026-07-01").write_text("epoch,rx,tx\n1760120317.152,1,2\n1760120318.152,3,nan\n")
    ingest("csv", LineFormat("collectd")).run(follow=False)
    found = {(message.source, message.stream, message.event_time % SECOND, message.payload) for message in topic.read()}
    assert found == {
        (host, "interface-eth0/if_octets", 152_000_000, payload)
        for host in ("lab", "gate")
        for payload in (b"1760120317.152:1:2", b"1760120318.152:3:nan")
    }


def test_parquet_is_read_row_by_row_once(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_file, "MOST_LINES", 2)
    messages = [wc.Message("s", "m", number, publish_time=number, receive_time=number) for number in range(5)]
    pq.write_table(pa.Table.from_batches([to_arrow(messages)]), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_batches([to_arrow(messages[:0])]), tmp_path / "empty.parquet")
    killed_after_each_change(lambda: ingest("*.parquet").run(follow=False))
    ingest("*.parquet").run(follow=False)
    assert numbers(topic) == list(range(5))


@pytest.mark.one_database
def test_a_parquet_file_that_is_being_written_is_read_when_it_is_whole(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, events: list[Event]
) -> None:
    path = tmp_path / "a.parquet"
    messages = [wc.Message("s", "m", number, publish_time=number, receive_time=number) for number in range(5)]
    pq.write_table(pa.Table.from_batches([to_arrow(messages)]), path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    own = ingest("*.parquet")
    own._step(follow=True)
    assert names(events) == ["unreadable"]
    path.write_bytes(data)
    own._step(follow=True)
    assert numbers(topic) == list(range(5))


def test_a_file_whose_name_is_not_utf_8_is_read_like_others(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path
) -> None:
    append(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")), lines(0, 2))
    append(tmp_path / "a.jsonl", lines(2, 4))
    for _ in range(2):
        ingest().run(follow=False)
    assert sorted(numbers(topic)) == [0, 1, 2, 3]


@pytest.mark.one_database
def test_a_file_truncated_and_written_again_just_before_it_is_read_is_read_from_its_beginning(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    append(path, lines(0, 3))
    own = ingest()
    own._step(follow=True)
    append(path, lines(3, 4))
    read = opened_file.TextFile.read

    def rewrite_and_read(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(opened_file.TextFile, "read", read)
        path.write_text(lines(10, 19))
        return read(*arguments, **options)

    monkeypatch.setattr(opened_file.TextFile, "read", rewrite_and_read)
    own._step(follow=True)
    assert numbers(topic) == [0, 1, 2, *range(10, 19)]


@pytest.mark.one_database
def test_unreadable_files_are_named_and_the_others_are_read(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, events: list[Event]
) -> None:
    append(tmp_path / "a.jsonl", lines(0, 2))
    os.mkfifo(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").mkdir()
    (tmp_path / "d.jsonl").symlink_to("nowhere")
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(wc.UnavailableError, match=r"cannot read .* 2 other files could not be read"):
        ingest("*.jsonl*").run(follow=False)
    assert numbers(topic) == [0, 1]
    assert names(events) == ["unreadable"] * 2  # the error names the third
    with pytest.raises(wc.NotFoundError, match=r"no file found for '.*x\*'"):
        ingest("x*").run(follow=False)


@pytest.mark.one_database
def test_a_csv_without_its_columns_is_an_error_of_the_file(
    topic: wc.Topic, ingest: MakeIngest, tmp_path: Path, events: list[Event]
) -> None:
    (tmp_path / "a.csv").write_text("time,value\n1,2\n")
    with pytest.raises(wc.UnavailableError, match="no column named 'source' for source in the first line"):
        ingest("*.csv").run(follow=False)
    assert numbers(topic) == []
    assert events == []  # said once


def test_removing_the_topic_forgets_its_files(
    database: wc.Database, topic: wc.Topic, ingest: MakeIngest, tmp_path: Path
) -> None:
    append(tmp_path / "a.jsonl", lines(0, 2))
    ingest().run(follow=False)
    topic.remove()
    database.create_topic("telemetry")
    ingest().run(follow=False)
    assert numbers(database.topic("telemetry")) == [0, 1]
