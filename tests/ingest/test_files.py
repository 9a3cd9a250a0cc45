from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from tests.test_message import messages

from waterclock.arrow import to_arrow
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError
from waterclock.ingest.files import CHUNK, message_from_json, message_to_json, read_messages
from waterclock.message import Message


@given(messages)
def test_a_message_survives_json_but_for_the_position_that_its_topic_gave_it(message: Message) -> None:
    assert message_from_json(json.loads(json.dumps(message_to_json(message)))) == message.replace(position=None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "[] is no message"),
        ({"source": "a", "stream": "b"}, "no 'event_time'"),
        ({"source": "a", "stream": "b", "event_time": 0, "evnt": 1}, "'evnt'"),
        ({"source": "a", "stream": "b", "event_time": "noon"}, "'noon'"),
        ({"source": "a", "stream": "b", "event_time": 0, "payload": 7}, "payload: 7"),
        ({"source": "a", "stream": "b", "event_time": 0, "payload_base64": "?"}, "payload_base64: '?'"),
    ],
)
def test_json_that_is_no_message_is_refused_with_the_value(fields: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        message_from_json(fields)
    assert says in str(refused.value)


def test_a_file_of_json_lines_is_read_in_chunks_and_blank_lines_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    line = json.dumps(message_to_json(Message("a", "b", 1)))
    file.write_text("\n\n".join([line] * (CHUNK + 1)) + "\n")
    assert [len(chunk) for chunk in read_messages(file)] == [CHUNK, 1]


def test_the_line_that_is_no_message_is_named(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(json.dumps(message_to_json(Message("a", "b", 1))) + "\n{\n")
    with pytest.raises(InvalidArgumentError, match=r"messages\.jsonl, line 2"):
        list(read_messages(file))


def test_a_parquet_file_of_messages_is_read(tmp_path: Path) -> None:
    file = tmp_path / "messages.parquet"
    written = [Message("a", "b", 1, b"\x00\xff", receive_time=2), Message("a", "c", 3, headers={"k": "v"})]
    pq.write_table(pa.table(to_arrow(written)), file)
    assert [message for chunk in read_messages(file) for message in chunk] == written


def test_a_file_that_is_not_there_or_not_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        list(read_messages(tmp_path / "nowhere.jsonl"))
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(SchemaError, match="is not Parquet"):
        list(read_messages(tmp_path / "text.parquet"))
