from __future__ import annotations

import copy
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.any_messages import messages

from waterclock.arrow import MESSAGE_SCHEMA, as_message_columns, from_arrow, from_ipc, to_arrow, to_ipc
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message, Position


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"source": ""}, "source must not be empty"),
        ({"source": 7}, "source must be a string, got 7"),
        ({"stream": ""}, "stream must not be empty"),
        (
            {"event_time": float("nan")},
            "event_time must be an int (ns), an aware datetime or an ISO 8601 string with offset, got nan",
        ),
        (
            {"event_time": 2**63},
            "event_time must fit in 64-bit nanoseconds (1677-09-21 to 2262-04-11), got 9223372036854775808",
        ),
        (
            {"event_time": "2026-07-01T12:00:00"},
            "event_time must be ISO 8601 with an offset, such as 2026-07-01T12:00:00.5Z or …+02:00, got '2026-07-01T12",
        ),
        ({"receive_time": 0.5}, "string with offset, got 0.5"),
        ({"publish_time": True}, "string with offset, got True"),
        ({"payload": "text"}, "payload must be bytes, for example text.encode(), got 'text'"),
        ({"payload": None}, "payload must be bytes, for example text.encode(), got None"),
        ({"headers": {"a": 1}}, "'a': 1"),
        ({"headers": ["a"]}, "headers must be a dict of strings, got ['a']"),
    ],
)
def test_a_field_with_a_wrong_value_is_refused_by_name_and_value(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        Message(**{"source": "press-01", "stream": "load", "event_time": 0, **fields})
    assert says in str(refused.value)


def test_times_may_be_written_in_every_form() -> None:
    assert Message("a", "b", "1970-01-01T00:00:01Z").event_time == 1_000_000_000


def test_a_message_does_not_change() -> None:
    message = Message("a", "b", 1)
    with pytest.raises(AttributeError, match="replace"):
        message.event_time = 2
    with pytest.raises(AttributeError, match="messages are immutable"):
        del message.source
    assert message.replace(event_time=2) == Message("a", "b", 2)
    with pytest.raises(InvalidArgumentError, match="'evnt_time'"):
        message.replace(evnt_time=2)


def test_the_headers_given_are_copied() -> None:
    headers = {"a": "1"}
    message = Message("a", "b", 1, headers=headers)
    headers["a"] = "2"
    assert message.headers == {"a": "1"}


def test_bytes_like_payloads_become_bytes() -> None:
    assert Message("a", "b", 1, bytearray(b"xy")).payload == b"xy"
    assert Message("a", "b", 1, memoryview(b"xy")[1:]).payload == b"y"


@given(messages)
def test_a_message_survives_copying_and_pickling(message: Message) -> None:
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301  # our own bytes
    assert copy.deepcopy(message) == message
    assert hash(copy.copy(message)) == hash(message)


def test_messages_compare_by_their_fields_and_only_with_messages() -> None:
    assert Message("a", "b", 1) != Message("a", "b", 2)
    assert Message("a", "b", 1) != ("a", "b", 1)


def test_the_repr_of_a_message_shows_its_fields() -> None:
    text = repr(Message("press-01", "load", 0, b"xyz", receive_time=1_000_000, position=Position(1, 2, 3)))
    assert (
        text
        == "<Message 'press-01', 'load', 1970-01-01T00:00:00Z, 3 bytes, received 1970-01-01T00:00:00.001Z, at 1:2:3>"
    )


def test_positions_compare_in_reading_order_and_survive_being_written() -> None:
    assert Position(0, 9, 9) < Position(1, 0, 0) < Position(1, 0, 1) < Position(1, 1, 0)
    assert Position.parse(str(Position(1, 2, 3))) == Position(1, 2, 3)
    for text in ("1:2", "a:b:c", "1:2:3:4", "-1:2:3"):
        with pytest.raises(InvalidArgumentError, match=text):
            Position.parse(text)


def test_few_messages_are_written_as_they_are_and_many_compressed() -> None:
    message = Message("press", "load", 1, b"x" * 40)
    few, many = to_arrow([message] * 2), to_arrow([message] * 200)
    assert len(to_ipc(few)) > few.nbytes
    assert len(to_ipc(many)) < many.nbytes / 5
    assert from_arrow(from_ipc(to_ipc(few))) == [message] * 2


@given(st.lists(messages, max_size=5))
def test_messages_survive_being_laid_out_as_columns(given_messages: list[Message]) -> None:
    assert from_arrow(from_ipc(to_ipc(to_arrow(given_messages, positions=True)))) == given_messages
    without = [message.replace(position=None) for message in given_messages]
    assert from_arrow(to_arrow(given_messages)) == without


def test_a_table_with_only_the_needed_columns_is_filled_up() -> None:
    table = pa.table({"event_time": pa.array([1], pa.int32()), "stream": ["load"], "source": ["press-01"], "more": [1]})
    columns = as_message_columns(table)
    assert columns.schema == MESSAGE_SCHEMA
    assert from_arrow(columns) == [Message("press-01", "load", 1)]


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"source": ["a"], "stream": ["b"]}, SchemaError, "'event_time'"),
        ({"source": ["a"], "stream": ["b"], "event_time": ["x"]}, SchemaError, "'event_time'"),
        (
            {"source": ["a"], "stream": [None], "event_time": [1]},
            InvalidArgumentError,
            "'stream' must not hold nulls, got 1 null",
        ),
        (
            {"source": [""], "stream": ["b"], "event_time": [1]},
            InvalidArgumentError,
            "'source' must not hold empty strings",
        ),
        (
            {"source": ["a"], "stream": ["b"], "event_time": [1.5]},
            SchemaError,
            "'event_time' must be int64 .*, got double",
        ),
    ],
)
def test_a_table_that_holds_no_messages_is_refused(columns: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        as_message_columns(pa.table(columns))


def test_bytes_that_are_not_arrow_are_refused() -> None:
    with pytest.raises(SchemaError, match="7 bytes"):
        from_ipc(b"garbage")
