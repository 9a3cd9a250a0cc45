"""Parses times in the notations of other systems, exactly: from their text, never through a float."""

from __future__ import annotations

import re
from decimal import Decimal

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS, MIN_NS, NS_PER, TimeUnit, to_time

LONGEST_NUMBER = 64
"""Maximum characters of a number: a double needs 24, and a number of a million digits takes seconds."""

_SIMPLE = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,9}))?")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
_SECOND = NS_PER["s"]
_POWERS: dict[TimeUnit, int] = {"s": 9, "ms": 6, "us": 3, "ns": 0}


def parse_unix_time(text: str, unit: TimeUnit = "s") -> int:
    """Parse a number of units since 1970 as nanoseconds; fractions of a nanosecond are rounded half to even.

    Raises `InvalidArgumentError` if the text is not a decimal number, or the time does not fit 64-bit nanoseconds.
    """
    simple = _SIMPLE.fullmatch(text)
    if simple is not None and unit == "s":
        return _in_range(int(simple[1]) * _SECOND + int((simple[2] or "").ljust(9, "0")), text, unit)
    return _in_range(parse_offset(text, unit), text, unit)


def parse_offset(text: str, unit: TimeUnit = "s") -> int:
    """Parse a number of units as nanoseconds as `parse_unix_time` does, also beyond the range of points in time."""
    negative, digits, exponent = check_number(text, "time").as_tuple()
    power = int(exponent) + _POWERS[unit]
    number = int("".join(map(str, digits)))
    if power + len(digits) > LONGEST_NUMBER:
        if number:
            raise _out_of_range(text, unit)
        return 0
    ns = number * 10**power if power >= 0 else _rounded(number, -power)
    return -ns if negative else ns


def check_number(text: str, name: str) -> Decimal:
    """Return a decimal number of bounded length and exponent; InvalidArgumentError for any other text."""
    if len(text) > LONGEST_NUMBER or _NUMBER.fullmatch(text) is None:
        raise InvalidArgumentError(
            f"{name} must be a number of at most {LONGEST_NUMBER} characters, got {quoted(text)}"
        )
    return Decimal(text)


def parse_time(value: str, unit: TimeUnit = "s") -> int:
    """Parse a time that is a text: a number of units since 1970, or ISO 8601 with an offset."""
    text = value.strip()
    if _NUMBER.fullmatch(text) is not None:
        return parse_unix_time(text, unit)
    if not text[:4].isdecimal():  # a duration would mean that long ago
        raise InvalidArgumentError(f"time must be a number or ISO 8601 with an offset, got {quoted(value)}")
    return to_time(text, "time", now=0)


def _rounded(number: int, places: int) -> int:
    if places > LONGEST_NUMBER:
        return 0
    quotient, rest = divmod(number, 10**places)
    half = 5 * 10 ** (places - 1)
    return quotient + (rest > half or (rest == half and quotient % 2 == 1))


def _in_range(ns: int, text: str, unit: TimeUnit) -> int:
    if not MIN_NS <= ns <= MAX_NS:
        raise _out_of_range(text, unit)
    return ns


def _out_of_range(text: str, unit: TimeUnit) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"time must be between 1677-09-21 and 2262-04-11, got {quoted(text)} in {unit}. Does the time have another"
        " unit?"
    )
