"""Brings DataFrames that name things otherwise into the columns that batching reads."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.types import StringType

from waterclock.errors import InvalidArgumentError
from waterclock.spark.reading.column_types import time_problem

Expression = str | Column
"""A column: its name or another expression of SQL, or one of Spark's columns."""

_KAFKAS = ("key", "value", "topic", "partition", "offset", "timestamp")
# A message has each header once; of several the last counts, as in Kafka's own interface.
_HEADERS = """
    map_from_entries(transform(array_distinct(headers.key), name -> struct(
        name,
        coalesce(CAST(element_at(filter(headers, header -> header.key = name), -1).value AS STRING), '')
    )))
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
        Anything with a row for each message.
    source, stream
        Text; another type is written as text. Bytes that are no UTF-8 end the query with an error that shows them:
        write such ones as ``hex(key)``, or leave them out.
    event_time, receive_time
        BIGINT, nanoseconds since the epoch, or TIMESTAMP. Spark's timestamps end at microseconds: what a message had
        below is gone before Waterclock sees it, so that messages which differ by less count as simultaneous.
    others
        Further columns, such as ``payload``, ``headers``, or the position in ``ledger``, ``entry`` (BIGINT) and
        ``index`` (INT).

    Raises
    ------
    InvalidArgumentError
        Where a time has a type that names no moment.
    """
    named = {"source": source, "stream": stream, "event_time": event_time, "receive_time": receive_time, **others}
    columns = {name: F.expr(given) if isinstance(given, str) else given for name, given in named.items()}
    for name in ("source", "stream"):
        columns[name] = columns[name].cast(StringType())
    mapped = df.select(*(column.alias(name) for name, column in columns.items()))
    for field in mapped.schema:
        problem = time_problem(field.dataType) if field.name.endswith("_time") else None
        if problem:
            raise InvalidArgumentError(f"{field.name} is {field.dataType.simpleString()}; {problem}")
    return mapped


def messages_from_kafka(
    df: DataFrame,
    *,
    source: Expression = "key",
    stream: Expression = "topic",
    event_time: Expression = "timestamp",
    receive_time: Expression = "timestamp",
) -> DataFrame:
    """Name the columns of a DataFrame of Spark's Kafka source, batch or streaming, as batching and topics do.

    Parameters
    ----------
    df
        With Kafka's columns key, value, topic, partition, offset, timestamp and, with its option ``includeHeaders``,
        headers.
    source, stream
        Which device or instrument a record is from, and which kind of measurement it is. The records of a source have
        to be in one Kafka partition, as those of a key are in one Kafka topic. Where they are in several, drop ledger,
        entry and index, which are in no common order then: messages are taken in order of receive time.
    event_time
        When it happened, BIGINT ns or TIMESTAMP, out of the value perhaps. Kafka's own timestamp, which ends at
        milliseconds, is the producer's, or the broker's where the Kafka topic has ``LogAppendTime``.
    receive_time
        When it was received.

    Returns
    -------
    DataFrame
        Those four, the value as ``payload``, the headers as a map, and as position the Kafka partition as ``ledger``,
        the offset as ``entry``, and 0 as ``index``: each record arrived by itself.

    Raises
    ------
    InvalidArgumentError
        Where a column of Kafka's is missing, or a time has a type that names no moment.
    """
    if missing := [name for name in _KAFKAS if name not in df.columns]:
        raise InvalidArgumentError(f"df: there is no column {missing[0]!r} of Kafka's; it has {', '.join(df.columns)}")
    headers: dict[str, Expression] = {"headers": _HEADERS} if "headers" in df.columns else {}
    return as_messages(
        df,
        source=source,
        stream=stream,
        event_time=event_time,
        receive_time=receive_time,
        payload="value",
        **headers,
        ledger="CAST(partition AS BIGINT)",
        entry="offset",
        index="0",
    )
