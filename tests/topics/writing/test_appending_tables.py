"""Tables from other libraries: the meaning of their times, and the columns that are refused by name."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.topics.conftest import MakeTopic

from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message
from waterclock.topics.topic import Topic

TIMES = ("event_time", "publish_time", "receive_time")


def table(**changes: Any) -> pa.Table:
    columns = {"source": ["a", "a"], "stream": ["b", "b"], "event_time": [1, 2]} | changes
    return pa.table(columns)


def timestamps(unit: str, zone: str | None, *values: int) -> pa.Array:
    return pa.array(values, pa.timestamp(unit, zone))


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**9), ("ms", 10**6), ("us", 1000), ("ns", 1)])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "-07:00"])
def test_timestamps_land_at_their_moment(sqlite_topic: Topic, unit: str, factor: int, zone: str) -> None:
    sqlite_topic.append(table(**dict.fromkeys(TIMES, timestamps(unit, zone, 5, -3))))
    for message, wanted in zip(sqlite_topic.read(), (5 * factor, -3 * factor), strict=True):
        assert (message.event_time, message.publish_time, message.receive_time) == (wanted, wanted, wanted)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (timestamps("us", None, 1, 2), r"timestamp\[us\]"),
        (pa.array([1.0, 2.0]), "double"),
        (pa.array([1.0, 2.0], pa.float32()), "float"),
        (pa.array([date(2026, 7, 1)] * 2), r"date32\[day\]"),
        (pa.array([1, 2], pa.time64("ns")), r"time64\[ns\]"),
        (pa.array([1, 2], pa.duration("ns")), r"duration\[ns\]"),
        (pa.array([Decimal(1), Decimal(2)]), r"decimal128\(1, 0\)"),
        (pa.array(["1", "2"]), "string"),
        (pa.array([True, False]), "bool"),
    ],
)
def test_times_without_a_defined_moment_are_refused_by_name(
    sqlite_topic: Topic, name: str, values: pa.Array, kind: str
) -> None:
    with pytest.raises(SchemaError, match=f"column '{name}' must be int64 .* time zone, got {kind}"):
        sqlite_topic.append(table(**{name: values}))
    assert list(sqlite_topic.read()) == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            timestamps("s", "UTC", 1, 10**12),
            "column 'event_time' must fit in 64-bit nanoseconds .*, got 1000000000000 s since the epoch",
        ),
        (
            timestamps("ms", "UTC", -(2**62), 0),
            "column 'event_time' must fit in 64-bit nanoseconds .*, got -4611686018427387904 ms",
        ),
        (
            pa.array([1, 2**64 - 1], pa.uint64()),
            "column 'event_time' must fit in 64-bit nanoseconds .*, got 18446744073709551615",
        ),
    ],
)
def test_a_time_beyond_64_bits_is_refused_with_its_value(sqlite_topic: Topic, values: pa.Array, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        sqlite_topic.append(table(event_time=values))


@pytest.mark.parametrize(
    "values",
    [*(pa.array([7, 9], kind()) for kind in (pa.int8, pa.uint32, pa.uint64)), pa.array([7, 9]).dictionary_encode()],
)
def test_whole_numbers_of_any_width_are_nanoseconds(sqlite_topic: Topic, values: pa.Array) -> None:
    sqlite_topic.append(table(event_time=values))
    assert [message.event_time for message in sqlite_topic.read()] == [7, 9]


def test_texts_and_payloads_may_be_views_large_dictionaries_pieces_and_slices(make_sqlite_topic: MakeTopic) -> None:
    wanted = [Message("a", "b", at, bytes([at])) for at in range(4)]
    for number, (text, payload) in enumerate(
        [
            (pa.large_string(), pa.large_binary()),
            (pa.string_view(), pa.binary_view()),
            (pa.dictionary(pa.int32(), pa.string()), pa.binary(1)),
        ]
    ):
        pieces = [
            pa.table(
                {
                    "source": pa.array(["x", "a", "a"], pa.string()).cast(text),
                    "stream": pa.array(["x", "b", "b"], pa.string()).cast(text),
                    "event_time": [9, first, first + 1],
                    "payload": pa.array([b"x", bytes([first]), bytes([first + 1])], payload),
                }
            ).slice(1)
            for first in (0, 2)
        ]
        topic = make_sqlite_topic(f"topic {number}")
        topic.append(pa.concat_tables(pieces))
        read = [Message(m.source, m.stream, m.event_time, m.payload) for m in topic.read()]
        assert read == wanted


@pytest.mark.parametrize("name", ["source", "stream"])
@pytest.mark.parametrize("values", [[1, 2], [1.0, 2.0], [True, False], [date(2026, 7, 1)] * 2, [Decimal(7)] * 2])
def test_names_that_are_not_text_are_refused_by_name(sqlite_topic: Topic, name: str, values: list[Any]) -> None:
    for column in (pa.array(values), pa.array(values).dictionary_encode()):
        with pytest.raises(SchemaError, match=f"column '{name}' must hold strings .* got "):
            sqlite_topic.append(table(**{name: column}))
    assert list(sqlite_topic.read()) == []


@pytest.mark.parametrize(("kind", "storage"), [(pa.bool8(), pa.int8()), (pa.uuid(), pa.binary(16))])
def test_extension_types_that_are_not_text_are_refused_by_name(
    sqlite_topic: Topic, kind: pa.DataType, storage: pa.DataType
) -> None:
    values = pa.array([0, 1] if storage == pa.int8() else [b"0123456789abcdef"] * 2, storage)
    names = pa.ExtensionArray.from_storage(kind, values)
    with pytest.raises(SchemaError, match=f"column 'source' must hold strings .* got extension<{kind.extension_name}>"):
        sqlite_topic.append(table(source=names))
    headers = pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), names)
    with pytest.raises(SchemaError, match="column 'headers' must have values of type string, got extension"):
        sqlite_topic.append(table(headers=headers))


@pytest.mark.parametrize("value", [7, 7.0, True, datetime(2026, 7, 1), Decimal(7)])  # noqa: DTZ001  # a table may hold it
def test_headers_that_are_not_text_are_refused(sqlite_topic: Topic, value: object) -> None:
    for key, item, what in ("k", value, "values"), (value, "v", "keys"):
        column = pa.array([[(key, item)]] * 2, pa.map_(pa.scalar(key).type, pa.scalar(item).type))
        with pytest.raises(SchemaError, match=f"column 'headers' must have {what} of type string, got "):
            sqlite_topic.append(table(headers=column))
    assert list(sqlite_topic.read()) == []


@pytest.mark.parametrize(
    "text", [pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_headers_of_any_type_of_text_are_taken(sqlite_topic: Topic, text: pa.DataType) -> None:
    values = pa.array(["x", "y"]).cast(text)
    sqlite_topic.append(table(headers=pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), values)))
    assert [message.headers for message in sqlite_topic.read()] == [{"k": "x"}, {"k": "y"}]


def test_columns_of_nulls_alone_are_nulls(sqlite_topic: Topic) -> None:
    sqlite_topic.append(table(publish_time=pa.nulls(2), receive_time=pa.nulls(2), headers=pa.nulls(2)))
    assert [message.headers for message in sqlite_topic.read()] == [None, None]
    with pytest.raises(InvalidArgumentError, match="column 'event_time' must not hold nulls, got 2 nulls"):
        sqlite_topic.append(table(event_time=pa.nulls(2)))


def test_appending_nothing_stays_an_error_for_any_types(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="messages must not be empty"):
        sqlite_topic.append(pa.table({"source": [], "stream": [], "event_time": []}))


def test_columns_that_would_harm_their_readers_are_refused(sqlite_topic: Topic) -> None:
    offsets = pa.py_buffer(b"".join(at.to_bytes(4, "little") for at in (0, 1000, 2)))
    outside = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    for name in ("source", "stream"):
        with pytest.raises(InvalidArgumentError, match=f"column '{name}' must be valid Arrow data"):
            sqlite_topic.append(table(**{name: outside}))
    with pytest.raises(InvalidArgumentError, match="'payload' must be valid Arrow data"):
        sqlite_topic.append(table(payload=pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"ab")])))
    headers = pa.array([[("k", None)], None], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidArgumentError, match="got a null"):
        sqlite_topic.append(table(headers=headers))
    with pytest.raises(SchemaError, match="names must be unique, got 'stream'"):
        sqlite_topic.append(table().append_column("stream", pa.array(["c", "c"])))
    sqlite_topic.append(table(headers=headers).slice(1))


def test_half_of_a_surrogate_pair_is_refused(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        sqlite_topic.append([Message("a", "half \ud800", 1)])
