"""Converts messages from and to tables of other libraries: pandas, Polars, DuckDB, pyarrow, and lists of dicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa

from waterclock._support.quoting import counted, quoted
from waterclock.arrow import MESSAGE_SCHEMA, MESSAGE_TIMES
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class ArrowStream(Protocol):
    """Anything with Arrow's stream interface: data frames of pandas and Polars, DuckDB relations, pyarrow readers."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


MOMENT = pa.timestamp("ns", tz="UTC")
"""The type of times in data frames. It holds every time that a message can have, to the nanosecond."""

_FORMS = "Message objects or dicts, or a table of pyarrow, pandas, Polars or DuckDB"
_NAMES = MESSAGE_SCHEMA.names
_NEEDED = [field.name for field in MESSAGE_SCHEMA if not field.nullable and field.name != "payload"]


def as_messages(
    given: object, columns: Mapping[str, str] | None = None, payload: str | None = None
) -> list[Message] | pa.Table:
    """Convert everything that `Topic.append` takes to messages, or to a table with their columns.

    Parameters
    ----------
    given
        One Message, an iterable of Message objects or of dicts, or an object with the Arrow stream interface
        (``__arrow_c_stream__``): pandas and Polars data frames, DuckDB relations, pyarrow tables and readers.
    columns
        Names in ``given`` of a message's columns, for example ``{"source": "device"}``.
    payload
        Name of the column of payloads. Unlike ``columns``, it takes texts, numbers and booleans, as `as_payload` does.

    Raises
    ------
    InvalidArgumentError
        If ``given`` is something else, a value is invalid, or ``columns`` is not a mapping of names to names.
    SchemaError
        If a column or key is missing.
    """
    names = _checked_names(columns, payload)
    if isinstance(given, pa.RecordBatch) or hasattr(given, "__arrow_c_stream__"):
        _check_objects(given, {*names.values(), payload})
        table = _imported(given)
        return table if columns is None and payload is None else _renamed(table, names, payload)
    if isinstance(given, Message):
        given = [given]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise InvalidArgumentError(f"messages must be {_FORMS}, got {_kind(given)}")
    listed = list(cast("Iterable[object]", given))
    if all(isinstance(each, Message) for each in listed):
        if columns is not None or payload is not None:
            raise InvalidArgumentError("columns and payload must be omitted for Message objects, which have no columns")
        return cast("list[Message]", listed)
    return [_message_of(each, number, names, payload, given) for number, each in enumerate(listed)]


def as_payload(value: object, name: str) -> bytes:
    """Convert a value to a payload: bytes unchanged, texts as UTF-8, numbers and booleans as in JSON.

    Raises `InvalidArgumentError` if it is something else, a number that JSON does not have, or a text that UTF-8 cannot
    encode.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bool | int | float):
            return json.dumps(value, allow_nan=False).encode()
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be a JSON number or a string, got {quoted(value)}") from error
    raise InvalidArgumentError(f"{name} must be bytes, a string, a number or a boolean, got {_kind(value)}")


def with_moments(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Convert the times of messages from int64 nanoseconds to datetimes in UTC."""
    table = _imported(table)
    for place, name in enumerate(table.schema.names):
        if name in MESSAGE_TIMES:
            table = table.set_column(place, pa.field(name, MOMENT), table.column(place).cast(MOMENT))
    return table


def to_pandas(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    """Convert messages to a pandas data frame; times are datetimes in UTC, headers dicts.

    Raises
    ------
    InvalidArgumentError
        If pandas is not installed.
    """
    _import("pandas")
    return with_moments(table).to_pandas(maps_as_pydicts="strict")


def to_polars(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Convert messages to a Polars data frame; times are datetimes in UTC, headers maps.

    Raises `InvalidArgumentError` if Polars is not installed.
    """
    return _import("polars").from_arrow(with_moments(table))


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidArgumentError(
            f"cannot create a data frame: {name} is not installed. Run pip install {name}"
        ) from error


def _checked_names(columns: Mapping[str, str] | None, payload: str | None) -> dict[str, str]:
    """Return the name in the given table of each column of a message."""
    names = {name: name for name in _NAMES}
    if payload is not None and not isinstance(payload, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"payload must be the name of a column, got {quoted(payload)}")
    if columns is None:
        return names
    if not isinstance(columns, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
        raise InvalidArgumentError(f'columns must be a dict such as {{"source": "device"}}, got {quoted(columns)}')
    for name, theirs in columns.items():
        if name not in names or not isinstance(theirs, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            raise InvalidArgumentError(
                f"columns must map fields to column names, got {quoted(name)}: {quoted(theirs)}. The fields are"
                f" {', '.join(_NAMES)}"
            )
    if payload is not None and "payload" in columns:
        raise InvalidArgumentError("columns must not contain 'payload' if payload= names the column of payloads")
    return names | dict(columns)


def _renamed(table: pa.Table, names: Mapping[str, str], payload: str | None) -> pa.Table:
    """Return the columns of messages under our names."""
    given = table.schema.names
    found: dict[str, pa.ChunkedArray] = {}
    for name, theirs in names.items():
        if name == "payload" and payload is not None:
            found[name] = _payloads(_column(table, payload, name), payload)
        elif theirs in given or theirs != name:
            found[name] = _column(table, theirs, name)
    return pa.table(found)


def _column(table: pa.Table, theirs: str, name: str) -> pa.ChunkedArray:
    given = table.schema.names
    if given.count(theirs) != 1:
        raise SchemaError(
            f"column {theirs!r}, for the field {name}, must occur exactly once in messages, got columns {given}"
        )
    return table.column(theirs)


def _payloads(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    if column.null_count:
        raise InvalidArgumentError(
            f"payload column {name!r} must not hold nulls, got {counted(column.null_count, 'null')}"
        )
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):  # Arrow writes these as JSON does
        return column.cast(kind).cast(pa.string()).cast(pa.binary())
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return column.cast(kind).cast(pa.binary())
    if pa.types.is_decimal(kind):
        raise SchemaError(f"column {name!r} must hold bytes, strings, numbers or booleans, got {kind}")
    return pa.chunked_array(
        [pa.array([as_payload(value, f"column {name!r}") for value in column.to_pylist()], pa.binary())]
    )


def _check_objects(given: Any, used: set[str | None]) -> None:
    """Refuse columns of Python objects that a library hands over as something else.

    Polars hands over where an object lies in memory. Of datetimes, pandas drops the nanoseconds, and takes those
    without a zone for UTC if others have one.
    """
    for name, kind in zip(getattr(given, "columns", ()), getattr(given, "dtypes", ()), strict=False):
        if name not in used:
            continue
        if str(kind) == "Object":
            raise SchemaError(f"column {name!r} must have an Arrow type, got Python objects. Cast the column")
        if str(kind) == "object":
            moments = [each for each in given[name] if isinstance(each, datetime) and each == each]  # noqa: PLR0124  # NaT
            if len({each.tzinfo is None for each in moments}) > 1 or any(
                getattr(each, "nanosecond", 0) for each in moments
            ):
                raise SchemaError(
                    f"column {name!r} must have a datetime type, got Python objects. Convert the column:"
                    f" pandas.to_datetime(frame[{name!r}], utc=True)"
                )


def _imported(given: object) -> pa.Table:
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    try:
        return given if isinstance(given, pa.Table) else pa.table(cast("Any", given))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"cannot read messages from {_kind(given)}: {error}") from error


def _message_of(row: object, number: int, names: Mapping[str, str], payload: str | None, given: object) -> Message:
    if isinstance(row, Message):
        raise InvalidArgumentError(f"messages must be all dicts or all Message objects, got both in {_kind(given)}")
    if not isinstance(row, Mapping):
        raise InvalidArgumentError(f"messages must be {_FORMS}, got {_kind(row)} in {_kind(given)}")
    fields = cast("Mapping[str, Any]", row)
    missing = [names[name] for name in _NEEDED if names[name] not in fields]
    if payload is not None and payload not in fields:
        missing.append(payload)
    if missing:
        raise SchemaError(f"message {number} must have the key {missing[0]!r}, got {quoted(list(fields))}")
    values = {name: fields[theirs] for name, theirs in names.items() if theirs in fields}
    try:
        if payload is not None:
            values["payload"] = as_payload(fields[payload], repr(payload))
        return Message(**values)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"message {number}: {error}") from error


def _kind(given: object) -> str:
    return type(given).__name__
