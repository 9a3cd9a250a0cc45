"""Checks whether a Spark column can hold times, before a job runs, by the same rules as `waterclock.time_columns`."""

from __future__ import annotations

from pyspark.sql.types import (
    ByteType,
    CharType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

_WANTED = "must be timestamp, or bigint in nanoseconds since the epoch"
_MOMENTS = (LongType, IntegerType, ShortType, ByteType, TimestampType)


def time_problem(kind: DataType) -> str | None:
    """Return the error of a column of times that has this type; None if it names moments."""
    if isinstance(kind, _MOMENTS):
        return None
    refused = f"{_WANTED}, got {kind.simpleString()}"
    if isinstance(kind, TimestampNTZType):
        return f"{refused}. Cast it to TIMESTAMP, which reads its times in the session's time zone"
    if isinstance(kind, DecimalType):
        return f"{refused}. Cast it to BIGINT if it holds nanoseconds"
    return refused


def is_text(kind: DataType) -> bool:
    """Return whether a type is text, of any length and collation."""
    return isinstance(kind, StringType | VarcharType | CharType)
