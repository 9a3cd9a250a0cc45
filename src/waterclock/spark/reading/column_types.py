"""Which of Spark's types a column of times may have, said before a job runs, as `waterclock.time_columns` says it."""

from __future__ import annotations

from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

_WANTED = "it must be bigint, nanoseconds since the epoch, or timestamp"
_MOMENTS = (LongType, IntegerType, ShortType, ByteType, TimestampType, NullType)


def time_problem(kind: DataType) -> str | None:
    """Say what a column of times must be that has this type; None where it names moments."""
    if isinstance(kind, _MOMENTS):
        return None
    if isinstance(kind, TimestampNTZType):
        return f"{_WANTED}: cast these to TIMESTAMP, which takes them for times of the session's time zone"
    return _WANTED
