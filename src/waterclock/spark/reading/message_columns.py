"""Selects the columns of a DataFrame that batching needs, and converts them.

A column of a wrong type is refused before Spark starts a task. A null, an empty source or stream, a text that is not
UTF-8, or a time outside the range of nanoseconds ends the query with an error that names the column and the row.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.types import IntegralType, StringType, StructField, TimestampType

from waterclock.batching.by_id.rule import NO_ID
from waterclock.errors import InvalidArgumentError
from waterclock.spark.reading.column_types import is_text, time_problem
from waterclock.time import MAX_NS, MIN_NS

TEXTS = ("source", "stream")
TIMES = ("event_time", "receive_time")
POSITION = {"ledger": "BIGINT", "entry": "BIGINT", "index": "INT"}

_LARGEST = {"BIGINT": 2**63 - 1, "INT": 2**31 - 1}
_NS_PER_US = 1_000
_WRITTEN_ID = r"\A-?[0-9]{1,19}\z"


def message_columns(df: DataFrame, *further: Column) -> DataFrame:
    """Take the columns that batching needs: source, stream, event_time, receive_time, and the position if it is whole.

    Parameters
    ----------
    df
        The messages.
    further
        Columns to take with these.

    Raises
    ------
    InvalidArgumentError
        For a column that is missing, of another type, or there twice in different cases.
    """
    fields = {name: _field(df, name) for name in (*TEXTS, *TIMES, *POSITION)}
    for name in (*TEXTS, *TIMES):
        if fields[name] is None:
            raise InvalidArgumentError(f"df must have a column {name!r}, got columns {', '.join(df.columns)}")
    found = {name: field for name, field in fields.items() if field is not None}
    for name in (*TEXTS, *TIMES):
        kind = found[name].dataType
        problem = (
            time_problem(kind)
            if name in TIMES
            else None
            if is_text(kind)
            else f"must be string, got {kind.simpleString()}"
        )
        if problem:
            raise InvalidArgumentError(f"df: column {name!r} {problem}")
    positioned = all(name in found for name in POSITION)
    for name in POSITION if positioned else ():
        kind = found[name].dataType
        if not isinstance(kind, IntegralType):
            raise InvalidArgumentError(
                f"df: column {name!r} must be {POSITION[name].lower()} as part of the position, got"
                f" {kind.simpleString()}. If the column means something else, rename the column"
            )
    names = (*TEXTS, *TIMES, *POSITION) if positioned else (*TEXTS, *TIMES)
    place = _place(found, positioned=positioned)
    return df.select(*(_column(found[name], name, place).alias(name) for name in names), *further)


def missing_position(df: DataFrame) -> list[str]:
    """Name the columns of the position that a DataFrame lacks."""
    return [name for name in POSITION if _field(df, name) is None]


def number_column(df: DataFrame, id_of: str | Column) -> Column:
    """Return the expression for the id of each message; `waterclock.batching.by_id.rule.NO_ID` if it has none.

    Raises `InvalidArgumentError` if ``id_of`` names a header but the DataFrame lacks a column of headers, or if it is a
    column of another type than integers.
    """
    if isinstance(id_of, Column):
        kind = df.select(id_of.alias("number")).schema["number"].dataType
        if not isinstance(kind, IntegralType):
            raise InvalidArgumentError(
                f"id_of must be the name of a header, or an integer column, got {kind.simpleString()}"
            )
        return F.coalesce(id_of.cast("bigint"), F.lit(NO_ID))
    field = _field(df, "headers")
    if field is None or field.dataType.simpleString() != "map<string,string>":
        raise InvalidArgumentError(
            "df must have a column 'headers' of type map<string,string> with the ids, got columns"
            f" {', '.join(df.columns)}"
        )
    written = F.element_at(_named(field), F.lit(id_of))
    return F.coalesce(F.when(written.rlike(_WRITTEN_ID), written.try_cast("bigint")), F.lit(NO_ID))


def _field(df: DataFrame, name: str) -> StructField | None:
    """Find a column by its name in any case."""
    alike = [field for field in df.schema if field.name.lower() == name]
    if len(alike) > 1:
        named = ", ".join(repr(field.name) for field in alike)
        raise InvalidArgumentError(f"df must have one column {name!r}, got {named}. Drop or rename the other columns")
    return alike[0] if alike else None


def _column(field: StructField, name: str, place: Column) -> Column:
    column = _named(field)
    if name in TEXTS and field.dataType != StringType():
        column = column.cast(StringType())
    if name in TEXTS:
        failure = _failure(f"column {name!r} must be UTF-8, got bytes ", F.hex(column), place)
        empty = _failure(f"column {name!r} must be non-empty text, got ", F.lit("''"), place)
        checked = F.when(column == "", empty).otherwise(column)
        column = F.when(column.isNull() | F.is_valid_utf8(column), checked).otherwise(failure)
    if isinstance(field.dataType, TimestampType):
        fits = F.unix_micros(column).between(-(-MIN_NS // _NS_PER_US), MAX_NS // _NS_PER_US)
        failure = _failure(f"column {name!r} must be from 1677-09-21 to 2262-04-11, got ", column, place)
        column = F.when(column.isNull() | fits, column).otherwise(failure)
    if name in POSITION:
        largest = _LARGEST[POSITION[name]]
        failure = _failure(f"column {name!r} must be from 0 to {largest}, got ", column, place)
        fits = column.between(0, largest)
        column = F.when(column.isNull() | fits, column).otherwise(failure).cast(POSITION[name])
    if not field.nullable:
        return column
    return F.coalesce(column, _failure(f"column {name!r} must not be null, got null", F.lit(""), place))


def _failure(problem: str, value: Column, place: Column) -> Column:
    return F.raise_error(F.concat(F.lit(problem), value.cast("string"), F.lit(" in the message "), place))


def _place(found: dict[str, StructField], *, positioned: bool) -> Column:
    """Name a row by its position, or by every column that batching reads."""
    columns = {name: F.coalesce(_named(field).cast("string"), F.lit("null")) for name, field in found.items()}
    if positioned:
        return F.concat(F.lit("at "), F.concat_ws(":", *(columns[name] for name in POSITION)))
    described = [F.concat(F.lit(f"{name} "), columns[name]) for name in (*TEXTS, *TIMES)]
    return F.concat(F.lit("with "), F.concat_ws(", ", *described))


def _named(field: StructField) -> Column:
    return F.col("`" + field.name.replace("`", "``") + "`")
