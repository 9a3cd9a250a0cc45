"""Reads values from stored JSON, and checks their types. A wrong type is reported as damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from waterclock._support.quoting import quoted
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.time import MAX_NS, MIN_NS

_T = TypeVar("_T")

_MOMENTS = range(MIN_NS - 1, MAX_NS + 2)
"""Points in time, one before all of them and one after."""


@contextmanager
def read_as(name: str) -> Generator[None]:
    """Turn any error from decoding damaged facts into one that names their batch or state.

    Raises `DamagedError` if the facts are invalid.
    """
    try:
        yield
    except InvalidArgumentError as error:
        raise DamagedError(f"{name} is corrupt: {error}") from error
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{name} is corrupt: cannot decode its metadata ({quoted(error)})") from error


def parsed(written: bytes | memoryview) -> Any:
    """Read JSON."""
    return json.loads(bytes(written))


def text(value: object) -> str:
    """Take a text."""
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {quoted(value)}")
    return value


def whole(value: object) -> int:
    """Take a whole number."""
    if type(value) is not int:
        raise TypeError(f"expected an integer, got {quoted(value)}")
    return value


def count(value: object) -> int:
    """Take a whole number that is not negative."""
    if whole(value) < 0:
        raise ValueError(f"expected an integer ≥ 0, got {quoted(value)}")
    return whole(value)


def moment(value: object) -> int:
    """Take a point in time, ns, or a value before or after all times."""
    if whole(value) not in _MOMENTS:
        raise ValueError(f"expected a time, got {quoted(value)}")
    return whole(value)


def flag(value: object) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"expected a boolean, got {quoted(value)}")
    return value


def each(value: object, read: Callable[[Any], _T]) -> list[_T]:
    """Take a list."""
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {quoted(value)}")
    return [read(item) for item in value]


def maybe(value: object, read: Callable[[Any], _T]) -> _T | None:
    """Take a fact that may be missing."""
    return None if value is None else read(value)
