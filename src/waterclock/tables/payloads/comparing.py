"""Checks that an object equals the copy read back from its payload: stricter than ``==``, but only for stored state."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from waterclock.tables.payloads.types import JSON_SCALARS, is_model


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, with the same types in all their parts; an int may be read as a float."""
    return first_difference(one, other) is None


def first_difference(one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """Return where two values first differ, with both parts; None if they are the same.

    Private attributes and cached properties of a Pydantic model are not part of its value. Fields of a dataclass that
    its own ``==`` ignores are, and so are other public attributes set on it.
    """
    kind = type(one)
    parts = None if kind is not type(other) or kind in JSON_SCALARS else _parts(one, other)
    if parts is None:
        # An int may stand for a float, but not 2**53 + 1, which would be rounded.
        alike = kind is type(other) or (kind is int and type(other) is float)
        return None if alike and _is_equal(one, other) else ("", one, other)
    for place, part, again in parts:
        found = first_difference(part, again)
        if found is not None:
            return f"{place}{found[0]}", *found[1:]
    return None


def _parts(one: Any, other: Any) -> Iterable[tuple[str, Any, Any]] | None:
    """Return the parts of two values of one type, each with its place; None if they must be compared as a whole."""
    if isinstance(one, Mapping) and one.keys() == other.keys():
        return ((f"[{name!r}]", one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and len(one) == len(other):
        return ((f"[{at}]", *pair) for at, pair in enumerate(zip(one, other, strict=True)))
    names = _names_of(one, other)
    return ((f".{name}", getattr(one, name, None), getattr(other, name, None)) for name in names) if names else None


def _names_of(one: Any, other: Any) -> list[str]:
    if is_model(type(one)):
        return [*type(one).model_fields, *(one.model_extra or ()), *(other.model_extra or ())]
    return [*(each.name for each in fields(one)), *_lost(one, other)] if is_dataclass(one) else []


def _lost(one: Any, other: Any) -> list[str]:
    """Return the public attributes that only the first object has, except cached properties and the like."""
    mine, others = (getattr(each, "__dict__", {}) for each in (one, other))
    return [name for name in mine.keys() - others.keys() if not (name.startswith("_") or hasattr(type(one), name))]


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dt.datetime):
        # Python calls two times in a repeated hour of a zone unequal, unless they have the same zone object.
        return one.replace(tzinfo=None, fold=0) == other.replace(tzinfo=None, fold=0) and (
            one.utcoffset() == other.utcoffset()
        )
    return bool(one == other)
