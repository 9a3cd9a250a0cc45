"""Validates JSON: accepts only values that every database returns unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.database.schema.types import BIGINTS
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.values.texts import check_text

MAX_DEPTH = 31
"""Maximum nesting of lists and objects. MariaDB calls deeper JSON invalid."""

_SUSPECTS = ("\\u0000", "\\ud")  # JSON escapes of a NUL and of a lone surrogate
_LEAST_WITH_EXPONENT = 1e16  # from here on Python writes a float with an exponent, and JSONB as an int


def check_json(name: str, value: Any) -> None:
    """Check that a value is JSON that every database returns equal. Tuples are allowed and come back as lists.

    Raises `InvalidArgumentError` for NaN and infinities, keys that are not strings, text that `check_text` refuses,
    JSON nested deeper than `MAX_DEPTH`, and other values that are not JSON.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        is_shallow = text.count("[") + text.count("{") <= MAX_DEPTH
        is_good = is_shallow and not any(suspect in text for suspect in _SUSPECTS) and json.loads(text) == value
    except RecursionError:
        raise _too_deep(name, value) from None
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} must be JSON, got {quoted(value)}: {error}") from None
    if is_good:
        return
    for part, depth in _parts(value):
        if depth > MAX_DEPTH:
            raise _too_deep(name, value)
        if isinstance(part, str):
            check_text(name, part)
        elif isinstance(part, dict):
            _check_keys(name, part)


def check_jsonb(name: str, value: Any) -> None:
    """Check as `check_json`, and that JSONB returns an equal value, except for the order of keys.

    Raises `InvalidArgumentError` also for floats that JSONB changes: -0.0 loses its sign, and those of 1e16 and more
    become ints.
    """
    check_json(name, value)
    for part, _ in _parts(value):
        if isinstance(part, float) and (abs(part) >= _LEAST_WITH_EXPONENT or str(part) == "-0.0"):
            raise InvalidArgumentError(
                f"{name} must not contain the float {part!r}, which a JSONB column would change. Put the number as a"
                " string, or change the column's type to JSON"
            )


def check_numeric_json(name: str, value: Any) -> None:
    """Check as `check_json`, and that a column of SQLite declared JSON returns an equal value.

    Raises `InvalidArgumentError` also for numbers that such a column changes, because it converts numeric text to a
    number.
    """
    check_json(name, value)
    if isinstance(value, float) or (isinstance(value, int) and value not in BIGINTS):
        raise InvalidArgumentError(
            f"{name} must be JSON that SQLite stores unchanged in a JSON column, got the number {quoted(value)}."
            " Wrap the number in a list or an object, or change the column's type to TEXT"
        )


def _check_keys(name: str, found: dict[Any, Any]) -> None:
    for key in found:
        if not isinstance(key, str):
            raise InvalidArgumentError(f"{name} must have strings as keys, as in JSON, got the key {quoted(key)}")


def _too_deep(name: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} must be JSON of at most {MAX_DEPTH} nested levels, got {quoted(value)}")


def _parts(value: Any) -> Iterator[tuple[Any, int]]:
    """Yield a value, its keys, and the values in it, each with its nesting depth."""
    left = [(value, 0)]
    while left:
        one, outside = left.pop()
        depth = outside + isinstance(one, dict | list | tuple)
        yield one, depth
        if isinstance(one, dict):
            left += ((each, depth) for pair in one.items() for each in pair)
        elif isinstance(one, list | tuple):
            left += ((each, depth) for each in one)
