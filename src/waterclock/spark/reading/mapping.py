"""Renames and converts the columns of a DataFrame to the columns that batching reads."""

from __future__ import annotations

from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.types import BinaryType, StringType

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.spark.reading.column_types import time_problem

Expression = str | Column
"""A column: its name or another expression of SQL, or one of Spark's columns."""

_KAFKAS = ("key", "value", "topic", "partition", "offset", "timestamp")

OnBinary = Literal["raise", "hex"]
"""Whether text of a Kafka record that is not UTF-8 ends the query, or is written in hexadecimal."""

TOMBSTONE_HEADER = "waterclock.tombstone"
"""Header of a message whose Kafka record has no value, to distinguish it from a record with an empty value."""

_RECORD = "'record ', offset, ' in partition ', partition, ' of Kafka topic ', topic"
_REMEDY = 'Pass on_binary="hex" to keep such bytes in hexadecimal'
_NO_HEADERS = "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
# A message has each header once; of several the last counts, as in Kafka's own interface.
_HEADERS = """
    transform(array(CASE
        WHEN value IS NULL THEN concat(
            coalesce({headers}, array()), array(struct('{tombstone}' AS key, CAST('true' AS BINARY) AS value))
        )
        ELSE {headers}
    END), headers -> map_from_entries(transform(array_distinct(headers.key), name -> struct(
        name,
        transform(array(coalesce(element_at(filter(headers, header -> header.key = name), -1).value, X'')), value ->
            CASE WHEN is_valid_utf8(CAST(value AS STRING)) THEN CAST(value AS STRING) ELSE {otherwise} END
        )[0]
    ))))[0]
"""


def as_messages(
    df: DataFrame,
    *,
    source: Expression,
    stream: Expression,
    event_time: Expression,
    receive_time: Expression,
    **others: Expression,
) -> DataFrame:
    """Name the columns of a DataFrame, batch or streaming, as batching and topics do.

    Parameters
    ----------
    df
        A row for each message, from any source.
    source, stream
        Text; another type is written as text. Bytes that are not UTF-8 end the query with an error that shows them:
        convert such bytes with ``hex(key)``, or filter them out.
    event_time, receive_time
        BIGINT, nanoseconds since the epoch, or TIMESTAMP. Spark's timestamps end at microseconds: further digits are
        lost before Waterclock sees them, so messages that differ by less count as simultaneous.
    others
        Further columns, such as ``payload``, ``headers``, or the position in ``ledger``, ``entry`` (BIGINT) and
        ``index`` (INT).

    Raises
    ------
    InvalidArgumentError
        If a time has a type that names no moment.
    """
    named = {"source": source, "stream": stream, "event_time": event_time, "receive_time": receive_time, **others}
    columns = {name: F.expr(given) if isinstance(given, str) else given for name, given in named.items()}
    for name in ("source", "stream"):
        columns[name] = columns[name].cast(StringType())
    mapped = df.select(*(column.alias(name) for name, column in columns.items()))
    for field in mapped.schema:
        problem = time_problem(field.dataType) if field.name.endswith("_time") else None
        if problem:
            raise InvalidArgumentError(f"{field.name} {problem}")
    return mapped


def messages_from_kafka(
    df: DataFrame,
    *,
    source: Expression = "key",
    stream: Expression = "topic",
    event_time: Expression = "timestamp",
    receive_time: Expression = "timestamp",
    on_binary: OnBinary = "raise",
) -> DataFrame:
    """Name the columns of a DataFrame of Spark's Kafka source, batch or streaming, as batching and topics do.

    Parameters
    ----------
    df
        With Kafka's columns key, value, topic, partition, offset, timestamp and, with its option ``includeHeaders``,
        headers.
    source, stream
        Which device or instrument a record is from, and which kind of measurement it is. The records of a source have
        to be in one Kafka partition, as those of a key are in one Kafka topic. If they are in several, drop ledger,
        entry and index, which then have no common order; messages are then taken in order of receive time.
    event_time
        When it happened, BIGINT ns or TIMESTAMP, perhaps taken from the value. Kafka's own timestamp, which ends at
        milliseconds, is the producer's, or the broker's if the Kafka topic has ``LogAppendTime``.
    receive_time
        When it was received.
    on_binary
        Treatment of a source, stream or header whose bytes are not UTF-8. ``"raise"``: the query fails and names the
        record. ``"hex"``: it is written in hexadecimal.

    Returns
    -------
    DataFrame
        Those four, the value as ``payload``, the headers as a map, and as position the Kafka partition as ``ledger``,
        the offset as ``entry``, and 0 as ``index``: each record arrived by itself. The payload of a tombstone, a
        record without a value, is empty, and its header ``waterclock.tombstone`` is ``"true"``. A record whose source,
        stream or time is null ends the query with an error that names it.

    Raises
    ------
    InvalidArgumentError
        If a column of Kafka's is missing, or a time has a type that names no moment.
    """
    if missing := [name for name in _KAFKAS if name not in df.columns]:
        raise InvalidArgumentError(f"df must have Kafka's column {missing[0]!r}, got columns {', '.join(df.columns)}")
    if on_binary not in get_args(OnBinary):
        raise InvalidArgumentError(f"on_binary must be one of {', '.join(get_args(OnBinary))}, got {quoted(on_binary)}")
    headers = _HEADERS.format(
        headers="headers" if "headers" in df.columns else _NO_HEADERS,
        tombstone=TOMBSTONE_HEADER,
        otherwise="hex(value)"
        if on_binary == "hex"
        else _failure("has a header ', name, ' that is not UTF-8", _REMEDY),
    )
    return as_messages(
        df,
        source=_text(source, "source", on_binary),
        stream=_text(stream, "stream", on_binary),
        event_time=_present(event_time, "event_time"),
        receive_time=_present(receive_time, "receive_time"),
        payload="coalesce(CAST(value AS BINARY), X'')",
        headers=headers,
        ledger="CAST(partition AS BIGINT)",
        entry="offset",
        index="0",
    )


def _text(given: Expression, name: str, on_binary: OnBinary) -> Column:
    text = _present(given, name).cast(StringType())
    failure = F.expr(_failure(f"has a {name} that is not UTF-8", _REMEDY))
    binary = F.hex(text.cast(BinaryType())) if on_binary == "hex" else failure
    return F.when(F.is_valid_utf8(text), text).otherwise(binary)


def _present(given: Expression, name: str) -> Column:
    column = F.expr(given) if isinstance(given, str) else given
    remedy = f"Filter such records out, or choose another {name}"
    return F.coalesce(column, F.expr(_failure(f"has no {name}", remedy)))


def _failure(problem: str, remedy: str) -> str:
    """Build the expression that ends a query and names the record."""
    return f"raise_error(concat({_RECORD}, ' {problem}. {remedy}'))"
