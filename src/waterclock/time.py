"""Points in time and durations: the forms that users may write, and the int nanoseconds used internally.

A point in time is an int of nanoseconds since 1970-01-01T00:00:00Z; a duration is an int of nanoseconds. Both fit a
signed 64-bit integer, so points in time reach from 1677-09-21 to 2262-04-11.
"""

from __future__ import annotations

import operator
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, SupportsIndex

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

Clock = Callable[[], int]
"""Returns now as int nanoseconds since the epoch, UTC."""

Time = SupportsIndex | datetime | str
"""The types of a *time* in the public interface."""

Duration = SupportsIndex | timedelta | str
"""The types of a *duration* in the public interface."""

TimeUnit = Literal["s", "ms", "us", "ns"]
"""The units of an int in a file."""

NS_PER: dict[TimeUnit, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

MIN_NS = -(2**63)
MAX_NS = 2**63 - 1

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ISO_8601 = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s?(Z|z|[+-]\d\d(?::?\d\d)?)")
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_YEAR_1980_S = 315_532_800
_YEAR_2100_S = 4_102_444_800
_YEAR_1980_NS = _YEAR_1980_S * 1_000_000_000
_OTHER_UNITS: dict[TimeUnit, str] = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
"""Units in which an int of nanoseconds before 1980 may lie between 1980 and 2100. No int does so in two of them."""

_DURATION_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|min|s|m|h|d|w)\s*")


class UnitWarning(UserWarning):
    """An int taken as nanoseconds would be a present-day time in another unit.

    Attributes
    ----------
    unit
        That unit.
    """

    unit: TimeUnit = "ns"


def system_clock() -> int:
    """Read the machine's clock. For the outermost callers only: rules take ``now`` as an argument."""
    return time.time_ns()


def to_time(value: Time, name: str = "time", *, now: int | None = None) -> int:
    """Convert a user's point in time to int nanoseconds since the epoch, UTC.

    Parameters
    ----------
    value
        An int (ns), an aware ``datetime``, or an ISO 8601 text with an offset and up to nine decimals.
    name
        The argument's name, for the error.
    now
        Set if a past time is expected: then a duration such as ``"2h"`` means that long before ``now``.

    Raises
    ------
    InvalidArgumentError
        For a naive datetime, a text without offset, another type, or a time that int64 nanoseconds cannot hold.

    Warns
    -----
    UserWarning
        For an int that as nanoseconds is before 1980, and as seconds, milliseconds or microseconds is between 1980
        and 2100.
    """
    if type(value) is int:  # nearly every message has an int; the general checks below cost five times as much
        if value < _YEAR_1980_NS:
            warn_of_unit(value, name)
        return _in_range(value, value, name)
    if isinstance(value, str):
        if now is not None and is_duration(value):
            return _in_range(now - to_duration(value, name), value, name)
        return _in_range(_parse_iso(value, name), value, name)
    is_numpy = type(value).__name__ == "datetime64"
    if (is_numpy or isinstance(value, datetime)) and value != value:  # noqa: PLR0124  # NaT, which pandas makes a datetime
        raise InvalidArgumentError(f"{name} must be a time, got NaT. Omit the time, or drop the row")
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidArgumentError(
                f"{name} must be a datetime with a time zone, got {quoted(value)}. Add a time zone, for example"
                " datetime(…, tzinfo=timezone.utc)"
            )
        ns = (value - _UNIX_EPOCH) // _MICROSECOND * 1000 + getattr(
            value, "nanosecond", 0
        )  # pandas' datetimes have nanoseconds
        return _in_range(ns, value, name)
    if is_numpy:
        raise InvalidArgumentError(
            f"{name} must be a time with a time zone, got {quoted(value)}. For UTC, pass f'{{value}}Z'"
        )
    number = _whole(value, name, "an int (ns), an aware datetime or an ISO 8601 string with offset")
    warn_of_unit(number, name)
    return _in_range(number, value, name)


def warn_of_unit(value: int, name: str) -> None:
    """Warn if an int can hardly be nanoseconds. The text is the same for each value, so that Python shows it once."""
    if value >= _YEAR_1980_NS or value < _YEAR_1980_S:
        return
    for unit, words in _OTHER_UNITS.items():
        if _YEAR_1980_S <= value * NS_PER[unit] // NS_PER["s"] < _YEAR_2100_S:
            warning = UnitWarning(
                f"{name} looks like {words} since 1970, but an int counts nanoseconds. Multiply the int by"
                f" {NS_PER[unit]:,}"
            )
            warning.unit = unit
            warnings.warn(warning, stacklevel=4)


def in_nanoseconds(fields: Mapping[str, Any], names: Sequence[str], unit: TimeUnit) -> dict[str, Any]:
    """Return fields in which the named ones, if they are ints of a unit, are nanoseconds."""
    times = {name: fields[name] * NS_PER[unit] for name in names if type(fields.get(name)) is int}
    return {**fields, **times}


def is_duration(text: str) -> bool:
    """Return whether a text is written as a length of time, such as ``"2h"``, rather than as a point in time."""
    return _DURATION_PART.match(text) is not None


def to_duration(value: Duration, name: str = "duration", *, minimum: int = 0, maximum: int = MAX_NS) -> int:
    """Convert a user's length of time to int nanoseconds.

    Parameters
    ----------
    value
        An int (ns), a ``timedelta``, or a text such as ``"500ms"``, ``"1.5s"``, ``"1h30m"``, ``"7d"``
        (units ns, us or µs, ms, s, m or min, h, d, w).
    name
        The argument's name, for the error.
    minimum, maximum
        Smallest and greatest length allowed, in nanoseconds.

    Raises
    ------
    InvalidArgumentError
        For a negative length, one below ``minimum`` or above ``maximum``, a float, NaN, or a text that is not a
        duration.
    """
    if isinstance(value, str):
        ns = _parse_duration(value, name)
    elif isinstance(value, timedelta):
        ns = value // _MICROSECOND * 1000 + getattr(value, "nanoseconds", 0)  # pandas' timedeltas have nanoseconds
    else:
        ns = _whole(value, name, "a string such as '500ms', a timedelta, or an int (ns)")
    if ns < 0:
        raise InvalidArgumentError(f"{name} must be a duration of 0 or more, got {quoted(value)}")
    if ns < minimum:
        raise InvalidArgumentError(f"{name} must be at least {format_duration(minimum)}, got {quoted(value)}")
    _in_range(ns, value, name)
    if ns > maximum:
        raise InvalidArgumentError(f"{name} must be at most {format_duration(maximum)}, got {quoted(value)}")
    return ns


def format_time(ns: int) -> str:
    """Write a point in time as ISO 8601 in UTC with as many decimals as it needs: 0, 3, 6 or 9."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    text = (_UNIX_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}{_decimals(fraction)}Z"


def format_duration(ns: int) -> str:
    """Write a length of time in the largest unit that needs no decimals: ``"500ms"``, ``"90s"``, ``"1d"``."""
    if ns == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms", "us"):
        if ns % _UNITS[unit] == 0:
            return f"{ns // _UNITS[unit]}{unit}"
    return f"{ns}ns"


def _decimals(fraction: int) -> str:
    digits = f"{fraction:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""


def _whole(value: object, name: str, wanted: str) -> int:
    # In Python a bool is an int; here it is a mistake.
    if not isinstance(value, bool) and isinstance(value, SupportsIndex):
        with suppress(TypeError):  # int classes of other libraries, such as numpy's, convert themselves
            return operator.index(value)
    raise InvalidArgumentError(f"{name} must be {wanted}, got {quoted(value)}")


def _in_range(ns: int, value: object, name: str) -> int:
    if not MIN_NS <= ns <= MAX_NS:
        raise InvalidArgumentError(
            f"{name} must fit in 64-bit nanoseconds (1677-09-21 to 2262-04-11), got {quoted(value)}. Is its unit"
            " nanoseconds?"
        )
    return ns


def _parse_iso(value: str, name: str) -> int:
    match = _ISO_8601.fullmatch(value.strip())
    if match is None:
        raise InvalidArgumentError(
            f"{name} must be ISO 8601 with an offset, such as 2026-07-01T12:00:00.5Z or …+02:00, got {quoted(value)}"
        )
    date, minute, second, fraction, offset = match.groups()
    if offset in "Zz":
        offset = "+00:00"
    elif len(offset) == len("+02"):
        offset += ":00"
    try:
        moment = datetime.fromisoformat(f"{date}T{minute}:{second or '00'}{offset}")
    except ValueError as error:
        raise InvalidArgumentError(f"{name} must be a date and time, got {quoted(value)}: {error}") from None
    return (moment - _UNIX_EPOCH) // _MICROSECOND * 1000 + int((fraction or "0").ljust(9, "0"))


def _parse_duration(value: str, name: str) -> int:
    total = Decimal(0)
    at = 0
    while match := _DURATION_PART.match(value, at):
        total += Decimal(match[1]) * _UNITS[match[2]]
        at = match.end()
    if at == 0 and value.startswith("-") and _DURATION_PART.match(value, 1):
        raise InvalidArgumentError(f"{name} must be a duration of 0 or more, got {quoted(value)}")
    if at == 0 or at < len(value):
        raise InvalidArgumentError(
            f"{name} must be a duration such as '500ms', '1.5s', '1h30m' or '7d', got {quoted(value)}"
        )
    if total != int(total):
        raise InvalidArgumentError(f"{name} must be a whole number of nanoseconds, got {quoted(value)}")
    return int(total)
