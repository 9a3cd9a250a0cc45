from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock import Message
from waterclock.arrow import as_message_columns
from waterclock.columnar.packing import columns_of
from waterclock.columnar.records import PLAIN
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.time import MAX_NS, MIN_NS, UnitWarning, format_duration, format_time, to_duration, to_time
from waterclock.time_columns import as_nanoseconds

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        (0, 0),
        (-5, -5),
        (MAX_NS, MAX_NS),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01 00:00:00.123456789+00:00", 123_456_789),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-01T01:00:00+01", 0),
        ("1969-12-31T23:59:59,999999999Z", -1),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
    ],
)
def test_a_time_in_any_of_its_forms_becomes_exact_nanoseconds(written: int | str | datetime, ns: int) -> None:
    assert to_time(written) == ns


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (datetime(2026, 7, 1), "with a time zone"),  # noqa: DTZ001  # the mistake under test
        ("2026-07-01T12:00:00", "offset"),
        ("yesterday", "yesterday"),
        ("2026-13-01T00:00:00Z", "2026-13-01"),
        ("2026-07-01T12:00:00.1234567891Z", "1234567891"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        (True, "True"),
        (None, "None"),
        (MAX_NS + 1, "64-bit"),
        (MIN_NS - 1, "64-bit"),
        ("2263-01-01T00:00:00Z", "2262"),
        (datetime(1600, 1, 1, tzinfo=UTC), "1677"),
        ("2h", "2h"),
    ],
)
def test_an_invalid_time_is_refused_with_the_value_in_the_error(written: object, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match="event_time must ") as refused:
        to_time(written, "event_time")  # type: ignore[arg-type]  # the mistake under test
    assert says in str(refused.value)


def test_a_duration_means_that_long_ago_where_now_is_given() -> None:
    assert to_time("2h", now=10_000 * SECOND) == 2_800 * SECOND


def test_the_errors_are_one_family_and_an_invalid_argument_is_a_value_error() -> None:
    assert issubclass(InvalidArgumentError, WaterclockError)
    assert issubclass(InvalidArgumentError, ValueError)


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        (0, 0),
        (7, 7),
        ("500ms", 500_000_000),
        ("1.5s", 1_500_000_000),
        ("1h30m", 5400 * SECOND),
        ("2 d", 2 * 86400 * SECOND),
        ("1w", 7 * 86400 * SECOND),
        ("3us", 3000),
        ("3µs", 3000),
        ("90min", 5400 * SECOND),
        (timedelta(microseconds=1), 1000),
        (timedelta(days=1), 86400 * SECOND),
    ],
)
def test_a_duration_in_any_of_its_forms_becomes_exact_nanoseconds(written: int | str | timedelta, ns: int) -> None:
    assert to_duration(written) == ns


@pytest.mark.parametrize(
    "written",
    [
        -1,
        "-5s",
        timedelta(seconds=-1),
        0.5,
        float("nan"),
        float("inf"),
        True,
        None,
        "",
        "5",
        "5 parsecs",
        "1.5ns",
        "9999999d",
    ],
)
def test_an_invalid_duration_is_refused_with_the_value_in_the_error(written: object) -> None:
    with pytest.raises(InvalidArgumentError, match="window must ") as refused:
        to_duration(written, "window")  # type: ignore[arg-type]  # the mistake under test
    assert repr(written) in str(refused.value)


def test_a_negative_duration_in_words_is_called_negative() -> None:
    with pytest.raises(InvalidArgumentError, match=r"wait must be a duration of 0 or more, got '-1m30s'"):
        to_duration("-1m30s", "wait")


def test_a_duration_below_the_least_allowed_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1s"):
        to_duration("999ms", minimum=SECOND)


@given(st.integers(MIN_NS, MAX_NS))
def test_a_time_survives_being_written_and_read(ns: int) -> None:
    assert to_time(format_time(ns)) == ns


@given(st.integers(0, MAX_NS))
def test_a_duration_survives_being_written_and_read(ns: int) -> None:
    assert to_duration(format_duration(ns)) == ns


def test_times_are_written_with_as_many_decimals_as_they_need() -> None:
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(500_000_000) == "1970-01-01T00:00:00.500Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999999999Z"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (pd.NaT, "event_time must be a time, got NaT"),
        (np.datetime64("NaT", "ns"), "event_time must be a time, got NaT"),
        (np.datetime64("2026-07-01T12:00:00.5", "ns"), "pass f'{value}Z'"),
    ],
)
def test_times_of_numpy_and_missing_times_are_refused_by_name(value: object, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Message("press", "load", value)  # pyright: ignore[reportArgumentType]  # the mistake under test
    assert says in str(caught.value)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_integer_in_another_unit_than_nanoseconds_is_warned_of(unit: str) -> None:
    moment = 1_782_907_200 * {"s": 1, "ms": 1_000, "us": 1_000_000}[unit]
    name = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[unit]
    with pytest.warns(UserWarning, match=f"event_time looks like {name} since 1970"):
        assert Message("press", "load", moment).event_time == moment
    with pytest.warns(UserWarning, match=f"looks like {name}"):
        to_time(np.int64(moment))
    with pytest.warns(UserWarning, match=f"event_time looks like {name}"):
        as_message_columns(pa.table({"source": ["press"], "stream": ["load"], "event_time": [moment]}))


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.dictionary(pa.int32(), pa.int64())])
def test_column_of_integers_in_another_unit_is_warned_of_and_taken_if_the_unit_is_stated(kind: pa.DataType) -> None:
    column = pa.chunked_array([pa.array([5, None, 1_782_907_200_000], kind)])
    with pytest.warns(UserWarning, match="^event_time looks like milliseconds since 1970"):
        assert as_nanoseconds(column, "event_time").to_pylist() == [5, None, 1_782_907_200_000]
    with warnings.catch_warnings(action="error"):
        found = as_nanoseconds(column, "event_time", "ms").to_pylist()
    assert found == [5_000_000, None, 1_782_907_200_000_000_000]
    with pytest.raises(
        InvalidArgumentError, match=r"must fit in 64-bit nanoseconds .*, got 1782907200000 s since the epoch"
    ):
        as_nanoseconds(column, "event_time", "s")


def test_rows_that_spark_hands_over_in_another_unit_are_warned_of() -> None:
    times = {name: [1_782_907_200_000] for name in ("event_time", "receive_time")}
    rows = pa.table({"source": ["press"], "stream": ["load"], **times})
    with pytest.warns(UnitWarning) as warned:
        columns_of(rows, PLAIN)
    assert [str(each.message).partition(" since")[0] for each in warned] == [
        f"{name} looks like milliseconds" for name in times
    ]


@pytest.mark.filterwarnings("error")
def test_times_that_nanoseconds_may_mean_are_not_warned_of() -> None:
    for moment in (-1, 0, 5, 1_000_000, 315_532_800_000_000_000, 1_782_907_200_000_000_000, MAX_NS, MIN_NS):
        to_time(moment)
    as_message_columns(pa.table({"source": ["press"], "stream": ["load"], "event_time": [5]}))
    as_message_columns(
        pa.table({"source": [], "stream": [], "event_time": []}, schema=None).cast(
            pa.schema([("source", pa.string()), ("stream", pa.string()), ("event_time", pa.int64())])
        )
    )
