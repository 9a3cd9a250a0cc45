from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from tests.support.any_messages import messages

from waterclock.arrow import to_arrow
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError
from waterclock.ingest import files
from waterclock.ingest.files import CHUNK, CHUNK_BYTES, MessageFile, message_from_json, message_to_json
from waterclock.message import Message


@given(messages)
def test_a_message_survives_json_but_for_the_position_that_its_topic_gave_it(message: Message) -> None:
    assert message_from_json(json.loads(json.dumps(message_to_json(message)))) == message.replace(position=None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "event_time, got []"),
        ({"source": "a", "stream": "b"}, "the message must have the field 'event_time', got"),
        ({"source": "a", "stream": "b", "event_time": 0, "evnt": 1}, "'evnt'"),
        ({"source": "a", "stream": "b", "event_time": "noon"}, "'noon'"),
        ({"source": "a", "stream": "b", "event_time": 0, "payload": 7}, "got 7"),
        (
            {"source": "a", "stream": "b", "event_time": 0, "payload_base64": "?"},
            "payload_base64 must be base64, got '?'",
        ),
    ],
)
def test_json_that_is_not_a_message_is_refused_with_the_value(fields: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        message_from_json(fields)
    assert says in str(refused.value)


def test_a_file_of_json_lines_is_read_in_chunks_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    line = json.dumps(message_to_json(Message("a", "b", 1)))
    file.write_text("\n\n".join([line] * (CHUNK + 1)) + "\n")
    assert [len(chunk) for chunk in MessageFile(str(file)).chunks()] == [CHUNK, 1]


def test_the_line_that_is_not_a_message_is_named(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps(message_to_json(Message("a", "b", 1))) + "\n{\n")
    with pytest.raises(InvalidArgumentError, match=r"messages\.jsonl, line 2"):
        list(MessageFile(str(file)).chunks())


def test_a_parquet_file_of_messages_is_read(tmp_path: Path) -> None:
    file = tmp_path / "messages.parquet"
    written = [Message("a", "b", 1, b"\x00\xff", receive_time=2), Message("a", "c", 3, headers={"k": "v"})]
    pq.write_table(pa.table(to_arrow(written)), file)
    assert [message for chunk in MessageFile(str(file)).chunks() for message in chunk] == written


def test_a_file_that_is_not_there_or_not_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        list(MessageFile(str(tmp_path / "nowhere.jsonl")).chunks())
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(SchemaError, match="as Parquet"):
        list(MessageFile(str(tmp_path / "text.parquet")).chunks())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"\xff\xfe", "invalid start byte"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"event_time": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"source": "a", "stream": "b", "event_time": 1, "payload": "\\ud800"}', "payload_base64"),
        (b'{"source": "a", "stream": "b", "event_time": 1.5}', "event_time must be an int .*, got 1.5"),
        (b'{"source": "a", "stream": "b", "event_time": true}', "event_time must be an int .*, got True"),
        (b'{"source": "a", "stream": "b", "event_time": "2026-07-01"}', "must be ISO 8601 with an offset"),
    ],
)
def test_lines_that_would_break_their_reader_are_named(tmp_path: Path, line: bytes, says: str) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(InvalidArgumentError, match="line 2: .*" + says) as refused:
        list(MessageFile(str(file)).chunks())
    assert len(str(refused.value)) < 1000


def times(unit: str, tz: str | None) -> dict[str, Any]:
    return {"source": ["a"], "stream": ["b"], "event_time": pa.array([7_000_000], pa.timestamp(unit, tz))}


def test_a_parquet_files_timestamps_land_at_their_moment_and_naive_ones_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "messages.parquet"
    pq.write_table(pa.table(times("us", "Europe/Berlin")), file)
    assert [[m.event_time for m in chunk] for chunk in MessageFile(str(file)).chunks()] == [[7_000_000_000]]
    for refused in (times("us", None), {**times("us", "UTC"), "receive_time": [1.5]}):
        pq.write_table(pa.table(refused), file)
        with pytest.raises(
            SchemaError, match=r"messages\.parquet: column '(event|receive)_time' must be int64 .*, got "
        ):
            list(MessageFile(str(file)).chunks())


def test_a_parquet_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "messages.parquet"
    table = pa.table(to_arrow([Message("a", "b", k, bytes([k])) for k in range(200)]))
    pq.write_table(table, file, write_page_checksum=True, compression="none")
    written = file.read_bytes()
    file.write_bytes(written.replace(bytes([7, 1, 0, 0, 0, 8]), bytes([7, 1, 0, 0, 0, 9])))
    assert file.read_bytes() != written
    with pytest.raises(SchemaError, match=r"messages\.parquet as Parquet"):
        list(MessageFile(str(file)).chunks())


def test_texts_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "messages.parquet"
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pa.py_buffer(b"\xff")]
    )
    pq.write_table(pa.table({"source": broken, "stream": ["b"], "event_time": [1]}), file)
    with pytest.raises(InvalidArgumentError, match=r"column 'source' must be valid Arrow data: .*UTF8"):
        list(MessageFile(str(file)).chunks())


def line_of(payload: str) -> str:
    return json.dumps(message_to_json(Message("a", "b", 1, payload.encode()))) + "\n"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_payload_above_the_limit_is_refused_with_its_line_and_the_option(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"messages.{suffix}"
    if suffix == "jsonl":
        file.write_text(line_of("x" * 10) + line_of("x" * 11))
    else:
        pq.write_table(pa.table(to_arrow([Message("a", "b", 1, b"x" * size) for size in (10, 11)])), file)
    assert len(list(MessageFile(str(file), 11).numbered())) == 2
    with pytest.raises(InvalidArgumentError, match=r"line 2: payload must have at most 10 .*--max-payload"):
        list(MessageFile(str(file), 10).numbered())


def test_a_line_without_an_end_is_read_only_as_far_as_a_message_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BESIDE_PAYLOAD", 1000)
    file = tmp_path / "endless.jsonl"
    file.write_bytes(b"x" * 100_000)
    with pytest.raises(InvalidArgumentError, match=r"line 1: payload must have at most 10 bytes, got 1061 or more"):
        list(MessageFile(str(file), 10).chunks())
    file.write_text(line_of("\x1f" * 10))  # the longest that ten bytes become in JSON
    [[message]] = MessageFile(str(file), 10).chunks()
    assert message.payload == b"\x1f" * 10


def test_a_chunk_holds_no_more_bytes_than_a_database_takes_at_once(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(line_of("x" * (CHUNK_BYTES // 4)) * 9 + line_of("x" * (CHUNK_BYTES + 1)) + line_of("x"))
    assert [len(chunk) for chunk in MessageFile(str(file)).chunks()] == [4, 4, 1, 1, 1]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_reading_says_how_far_it_is(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"messages.{suffix}"
    if suffix == "jsonl":
        file.write_text(line_of("x") * 2 * CHUNK)
    else:
        pq.write_table(pa.table(to_arrow([Message("a", "b", 1)] * 2 * CHUNK)), file)
    shown: list[tuple[int, int]] = []
    for _ in MessageFile(str(file)).chunks(lambda done, total: shown.append((done, total))):
        pass
    assert [done / total for done, total in shown] == [0.5, 1.0]
