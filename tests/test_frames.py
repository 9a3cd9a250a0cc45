"""Messages come from data frames, relations, readers and dicts, and go back into data frames unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock import Batch, InvalidArgumentError, Message, SchemaError
from waterclock.arrow import POSITIONED_SCHEMA, as_message_columns, from_arrow, to_arrow
from waterclock.frames import as_messages, as_payload, to_pandas, to_polars
from waterclock.time import MAX_NS, MIN_NS

TIMES = [1_767_225_600_123_456_789, 1_767_225_601_000_000_000]
ROWS = [
    {"device": "a", "stream": "x", "at": TIMES[0], "value": 1.5},
    {"device": "b", "stream": "y", "at": TIMES[1], "value": -2.0},
]
HEADED = {"source": "a", "stream": "x", "event_time": 1}
COLUMNS = {"source": "device", "event_time": "at"}
WANTED = [Message("a", "x", TIMES[0], b"1.5"), Message("b", "y", TIMES[1], b"-2.0")]


def messages(given: object, **names: Any) -> list[Message]:
    made = as_messages(given, **names)
    return made if isinstance(made, list) else from_arrow(as_message_columns(made))


def _pandas() -> pd.DataFrame:
    return pd.DataFrame(ROWS)


def _moments() -> pd.DataFrame:
    frame = pd.DataFrame(ROWS)
    frame["at"] = pd.to_datetime(frame["at"], utc=True)
    return frame


class _Relation:
    """What DuckDB's relations have; docs/how-to/topics/query-with-duckdb.md appends one."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.Table.from_pylist(ROWS).__arrow_c_stream__(requested_schema)


def _reader() -> pa.RecordBatchReader:
    table = pa.Table.from_pylist(ROWS)
    return table.to_reader(max_chunksize=1)


@pytest.mark.parametrize(
    "make",
    [
        _pandas,
        _moments,
        lambda: pl.DataFrame(ROWS),
        _Relation,
        _reader,
        lambda: pa.Table.from_pylist(ROWS),
        lambda: pa.RecordBatch.from_pylist(ROWS),
        lambda: ROWS,
        lambda: iter(ROWS),
    ],
)
def test_rows_of_any_library_become_the_same_messages(make: Callable[[], object]) -> None:
    assert messages(make(), columns=COLUMNS, payload="value") == WANTED


def test_one_message_and_an_iterable_of_messages_stay_as_they_are() -> None:
    assert as_messages(WANTED[0]) == WANTED[:1]
    assert as_messages(iter(WANTED)) == WANTED


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (b"\xff\x00", b"\xff\x00"),
        ("né", b"n\xc3\xa9"),
        (7, b"7"),
        (2**63 - 1, b"9223372036854775807"),
        (0.1, b"0.1"),
        (1e300, b"1e+300"),
        (True, b"true"),
    ],
)
def test_a_payload_of_a_column_and_of_a_dict_are_the_same(value: object, payload: bytes) -> None:
    row = {"source": "a", "stream": "x", "event_time": 1, "v": value}
    assert [each.payload for each in messages([row], payload="v")] == [payload]
    assert [each.payload for each in messages(pa.Table.from_pylist([row]), payload="v")] == [payload]
    assert [each.payload for each in messages(pa.Table.from_pylist([row] * 2), payload="v")] == [payload] * 2


def test_numbers_of_numpy_are_payloads() -> None:
    values = (np.int64(7), np.float64(0.5), np.uint8(1), np.float32(0.5), np.bool_(True), np.str_("x"))
    assert [as_payload(value, "v") for value in values] == [b"7", b"0.5", b"1", b"0.5", b"true", b"x"]


@pytest.mark.parametrize("kind", [pl.Categorical(), pl.Enum(["a", "b"])], ids=str)
def test_categories_of_polars_are_sources(kind: Any) -> None:
    frame = pl.DataFrame(ROWS, schema_overrides={"device": kind})
    assert messages(frame, columns=COLUMNS, payload="value") == WANTED


def test_objects_that_a_library_would_misrepresent_are_refused() -> None:
    pointers = pl.DataFrame([HEADED | {"v": object()}], schema_overrides={"v": pl.Object})
    with pytest.raises(SchemaError, match="column 'v' must have an Arrow type, got Python objects"):
        messages(pointers, payload="v")
    assert len(messages(pointers)) == 1
    whole, exact = pd.Timestamp(1000, tz="UTC"), pd.Timestamp(1, tz="UTC")
    for moments in ([whole, pd.Timestamp(1000)], [whole, exact]):
        frame = pd.DataFrame([HEADED | {"event_time": each} for each in moments], dtype=object)
        with pytest.raises(SchemaError, match=r"Convert the column: pandas.to_datetime\(frame\['event_time'\]"):
            messages(frame)
    late = pd.DataFrame([HEADED | {"receive_time": whole}, HEADED | {"receive_time": pd.NaT}], dtype=object)
    assert [each.receive_time for each in messages(late)] == [1000, None]


@pytest.mark.parametrize(
    ("given", "names", "error", "text"),
    [
        (5, {}, InvalidArgumentError, "messages must be Message objects or dicts, or a table of .* got int"),
        ("text", {}, InvalidArgumentError, "got str"),
        ({"source": "a"}, {}, InvalidArgumentError, "got dict"),
        ([5], {}, InvalidArgumentError, "got int in list"),
        ([WANTED[0], ROWS[0]], {}, InvalidArgumentError, "must be all dicts or all Message objects"),
        (WANTED, {"payload": "v"}, InvalidArgumentError, "columns and payload must be omitted for Message objects"),
        (ROWS, {}, SchemaError, r"message 0 must have the key 'source', got \['device'"),
        (ROWS, {"columns": COLUMNS, "payload": "v"}, SchemaError, "message 0 must have the key 'v'"),
        (
            [ROWS[0] | {"at": "noon"}],
            {"columns": COLUMNS},
            InvalidArgumentError,
            "message 0: event_time must be ISO 8601 with an offset",
        ),
        ([ROWS[0] | {"value": None}], {"columns": COLUMNS, "payload": "value"}, InvalidArgumentError, "got NoneType"),
        ([ROWS[0] | {"value": float("nan")}], {"columns": COLUMNS, "payload": "value"}, InvalidArgumentError, "nan"),
        (pl.DataFrame(ROWS), {}, SchemaError, "'source'"),
        (
            pl.DataFrame(ROWS),
            {"columns": {"source": "no"}},
            SchemaError,
            "column 'no', for the field source, must occur exactly once in messages, got",
        ),
        (pl.DataFrame(ROWS), {"columns": {"sorce": "device"}}, InvalidArgumentError, "got 'sorce': 'device'"),
        (pl.DataFrame(ROWS), {"columns": ["a"]}, InvalidArgumentError, "columns must be a dict"),
        (
            pl.DataFrame(ROWS),
            {"columns": COLUMNS, "payload": "v"},
            SchemaError,
            "column 'v', for the field payload, must occur exactly once",
        ),
        (pl.DataFrame(ROWS), {"payload": ["value"]}, InvalidArgumentError, "payload must be the name of a column"),
        (
            pd.DataFrame({"v": [2**70]}),
            {"payload": "v"},
            SchemaError,
            "cannot read messages from DataFrame: .*too large",
        ),
        (pa.table({"v": [None, 1]}), {"payload": "v"}, InvalidArgumentError, "must not hold nulls"),
        (pa.table({"v": [Decimal("1.5")]}), {"payload": "v"}, SchemaError, "got decimal128"),
        (pa.table({"v": [float("inf")]}), {"payload": "v"}, InvalidArgumentError, "must be a JSON number"),
        (pa.table({"v": [[1]]}), {"payload": "v"}, InvalidArgumentError, "got list"),
        (
            pd.DataFrame([{**HEADED, "headers": {"unit": 7}}]),
            {},
            SchemaError,
            "'headers' must hold strings, got int64 for 'unit'",
        ),
    ],
)
def test_values_that_cannot_become_messages_are_refused_by_name(
    given: object, names: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        messages(given, **names)


def test_timestamps_without_a_zone_are_refused() -> None:
    frame = pd.DataFrame({"source": ["a"], "stream": ["x"], "event_time": [datetime(2026, 1, 1)]})  # noqa: DTZ001
    with pytest.raises(SchemaError, match="a timestamp with a time zone"):
        messages(frame)
    frame["event_time"] = [datetime(2026, 1, 1, tzinfo=UTC)]
    assert [each.event_time for each in messages(frame)] == [1_767_225_600 * 10**9]


times = st.integers(MIN_NS + 1, MAX_NS)  # pandas takes the least int64 for no time


@given(
    st.lists(
        st.builds(
            Message.trusted,
            st.text("aé\0", min_size=1),
            st.just("x"),
            times,
            st.binary(max_size=4),
            times | st.none(),
            times,
            st.dictionaries(st.text("ab"), st.text("cd")) | st.none(),
            st.none(),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_messages_survive_data_frames(given: list[Message]) -> None:
    columns = to_arrow(given)
    assert messages(to_pandas(columns)) == given
    assert messages(to_polars(columns)) == given


def test_a_batch_is_columns_with_its_facts_and_a_data_frame() -> None:
    batch = Batch("a", 1, 2, 3, "timeout", tuple(WANTED))
    columns = batch.to_arrow()
    assert columns.schema.equals(POSITIONED_SCHEMA)
    [facts] = [json.loads(value) for value in columns.schema.metadata.values()]
    assert (facts["source"], facts["start"], facts["end"], facts["reason"]) == ("a", 1, 2, "timeout")
    frame = batch.to_pandas()
    assert str(frame["event_time"].dtype) == "datetime64[ns, UTC]"
    assert messages(frame) == WANTED


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(InvalidArgumentError, match=r"polars is not installed\. Run pip install polars"):
        to_polars(to_arrow(WANTED))
