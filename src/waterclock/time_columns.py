"""Converts times in Arrow columns to int nanoseconds, and checks that a column's type represents points in time."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.time import MAX_NS, MIN_NS, NS_PER, TimeUnit, warn_of_unit

Column = TypeVar("Column", pa.Array, pa.ChunkedArray)


def as_nanoseconds(column: Column, name: str, unit: TimeUnit = "ns") -> Column:
    """Turn a column of times into int64 nanoseconds since the epoch, UTC.

    Parameters
    ----------
    column
        Whole numbers, or timestamps of any unit with a time zone; or a dictionary of these, or only nulls.
    name
        The column's name, for the error.
    unit
        What whole numbers count since the epoch.

    Raises
    ------
    SchemaError
        For a type that names no moment: timestamps without a time zone, floats, dates, times of day, durations,
        decimals, texts, booleans.
    InvalidArgumentError
        For a time that int64 nanoseconds cannot hold, naming it.

    Warns
    -----
    UserWarning
        If the newest of whole numbers in nanoseconds can hardly be that; see `waterclock.time.to_time`.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_nanoseconds(column.cast(kind.value_type), name, unit)
    if pa.types.is_run_end_encoded(kind):
        return as_nanoseconds(pc.call_function("run_end_decode", [column]), name, unit)
    if pa.types.is_integer(kind) and unit != "ns":
        return _in_range(column, name, column, NS_PER[unit], f" {unit} since the epoch")
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        whole = column if kind == pa.int64() else _in_range(column, name, column, 1, "")
        newest = pc.call_function("max", [whole]).as_py()
        if newest is not None:
            warn_of_unit(newest, name)
        return whole
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _in_range(column.cast(pa.int64()), name, column, NS_PER[kind.unit], f" {kind.unit} since the epoch")
    hint = ""
    if pa.types.is_timestamp(kind):
        hint = ". If they are in UTC: pyarrow.compute.assume_timezone(column, 'UTC')"
    raise SchemaError(
        f"column {name!r} must be int64 (ns since the epoch) or a timestamp with a time zone, got {kind}{hint}"
    )


def _in_range(numbers: Column, name: str, column: Column, factor: int, unit: str) -> Column:
    """Multiply whole numbers, and refuse the first that gets too large."""
    try:
        whole = numbers.cast(pa.int64())
        if factor == 1:
            return whole
        return pc.call_function("multiply_checked", [whole, pa.scalar(factor, pa.int64())])
    except pa.ArrowInvalid:
        # The limits are parsed as decimals, since the column's integer type may be too small for them.
        least, most = (str(bound // factor + (bound < 0 and factor > 1)) for bound in (MIN_NS, MAX_NS))
        wide = numbers.cast(pa.decimal128(38))
        beyond = pc.call_function(
            "or",
            [
                pc.call_function("less", [wide, pa.scalar(least).cast(pa.decimal128(38))]),
                pc.call_function("greater", [wide, pa.scalar(most).cast(pa.decimal128(38))]),
            ],
        )
        first = wide.filter(beyond)[0].as_py()
        raise InvalidArgumentError(
            f"column {name!r} must fit in 64-bit nanoseconds (1677-09-21 to 2262-04-11), got {first}{unit}. Is"
            f" {column.type} the unit of its values?"
        ) from None
