"""Applies filters that Spark pushes down to a topic: non-matching rows are skipped before they reach Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from waterclock.message import Position
from waterclock.spark.reading.columns import NS_PER_US, TIMESTAMPS
from waterclock.time import MAX_NS, MIN_NS
from waterclock.topics.reading.pruning import ReadFilter

_TIMES = ("event_time", "publish_time", "receive_time")
_NUMBERS = (*_TIMES, "ledger", "entry", "index")
_TEXTS = ("source", "stream")
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_Range = tuple[int, int]
_ANY: _Range = (MIN_NS, MAX_NS)
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Test(NamedTuple):
    """One comparison that a row must pass: a column, one of pyarrow's functions (or ``is_in``), and its operand."""

    column: str
    function: str
    value: Any

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Return for each row whether it passes."""
        column = batch.column(self.column)
        if self.function == "is_in":
            values = pa.array(self.value)
            return pc.call_function("is_in", [column.cast(values.type)], pc.SetLookupOptions(values))
        return pc.call_function(self.function, [column, pa.scalar(self.value)])


def exact_test(given: Filter) -> Test | None:
    """Return the comparison that equals a filter of Spark's; None if Spark has to apply it itself."""
    column = _column(given)
    if column not in (*_NUMBERS, *_TEXTS):
        return None
    values = _values(given)
    if not values or not all(_fits(value, column) for value in values):
        return None
    if isinstance(given, In):
        return Test(column, "is_in", values)
    function = _COMPARISONS.get(type(given))
    return None if function is None else Test(column, function, values[0])


def passing(batch: pa.RecordBatch, tests: Iterable[Test]) -> pa.RecordBatch:
    """Leave out the rows that fail one of the tests."""
    masks = [test.mask(batch) for test in tests]
    return batch.filter(reduce(lambda one, other: pc.call_function("and", [one, other]), masks)) if masks else batch


def wanted_by(filters: Sequence[Filter]) -> ReadFilter:
    """Return the times and sources of rows that may pass all the filters."""
    times = {name: _range(filters, name) for name in _TIMES}
    for timestamp, name in TIMESTAMPS.items():
        times[name] = _both(times[name], _range(filters, timestamp))
    named = [set(_values(given)) for given in filters if isinstance(given, EqualTo | In) and _column(given) == "source"]
    sources = sorted(set[str].intersection(*named)) if named else None
    return ReadFilter({name: limits for name, limits in times.items() if limits != _ANY}, sources)


def positions_by(filters: Sequence[Filter]) -> tuple[Position | None, Position | None]:
    """Return the first position of rows that pass all the filters, and the position before which they end."""
    first, last = _range(filters, "ledger")
    first_entry, last_entry = _range(filters, "entry") if first == last else _ANY
    start = None if first == MIN_NS else Position(max(first, 0), max(first_entry, 0), 0)
    if last == MAX_NS:
        return start, None
    return start, Position(last + 1, 0, 0) if last_entry == MAX_NS else Position(last, last_entry + 1, 0)


def _column(given: Filter) -> str:
    path = getattr(given, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _values(given: Filter) -> list[Any]:
    """Return the values that a filter compares with, without NULL, which nothing equals."""
    values = given.value if isinstance(given, In) else [getattr(given, "value", None)]
    return [value for value in values if value is not None]


def _fits(value: object, column: str) -> bool:
    return isinstance(value, str) if column in _TEXTS else isinstance(value, int) and not isinstance(value, bool)


def _range(filters: Iterable[Filter], column: str) -> _Range:
    """Intersect the ranges of numbers that the filters on one column allow."""
    limits = _ANY
    for given in filters:
        limit = _LIMITS.get(type(given))
        if limit is None or _column(given) != column:
            continue
        values = _values(given)
        if not values:
            continue
        if column in TIMESTAMPS and all(isinstance(value, datetime) for value in values):
            low, high = ((pick(values) - _UNIX_EPOCH) // _MICROSECOND * NS_PER_US for pick in (min, max))
            # A timestamp represents every time within its microsecond. It may lie outside our range of times.
            first, last = limit(low - NS_PER_US, high + NS_PER_US)
            limits = _both(limits, (min(first, MAX_NS), max(last, MIN_NS)))
        elif all(_fits(value, column) for value in values):
            limits = _both(limits, limit(min(values), max(values)))
    return limits


_LIMITS: dict[type[Filter], Callable[[int, int], _Range]] = {
    EqualTo: lambda low, high: (low, high),
    In: lambda low, high: (low, high),
    GreaterThan: lambda low, _: (min(low + 1, MAX_NS), MAX_NS),
    GreaterThanOrEqual: lambda low, _: (low, MAX_NS),
    LessThan: lambda _, high: (MIN_NS, max(high - 1, MIN_NS)),
    LessThanOrEqual: lambda _, high: (MIN_NS, high),
}


def _both(one: _Range, other: _Range) -> _Range:
    return max(one[0], other[0]), min(one[1], other[1])
