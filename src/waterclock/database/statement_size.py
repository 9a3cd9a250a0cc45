"""Measures the values in a statement, for errors about values that are too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def largest_value(parameters: Any) -> int:
    """Return the bytes of the largest text or bytes among a statement's parameters."""
    return max(map(_size, _values(parameters)), default=0)


def largest_set(parameters: Any) -> int:
    """Return the bytes of all texts and bytes among the parameters; of the largest set if the statement ran for many.

    A driver sends one message to the server for each set.
    """
    sets = parameters if isinstance(parameters, list) else [parameters]
    return max((sum(map(_size, _values(one))) for one in sets), default=0)


def _values(given: Any) -> Iterable[Any]:
    if isinstance(given, Mapping):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        yield given
        return
    for one in given:
        yield from _values(one)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    return len(value) if isinstance(value, (bytes, bytearray, memoryview)) else 0
