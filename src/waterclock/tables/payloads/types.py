"""Types of payloads: their kinds, fields and values."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from waterclock.database.per_database_cache import built_once

JSON_SCALARS = (str, int, float, bool, type(None))
SCALARS = (*JSON_SCALARS, bytes)
FROM_TEXT: dict[type, Callable[[str], Any]] = {
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
    dt.time: dt.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: decimal.Decimal,
}
LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    Sequence: list,
    Collection: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}
MAPPINGS = (dict, Mapping)
UNIONS = (typing.Union, types.UnionType)


def is_batch(kind: Any) -> bool:
    """Return whether a type is `Batch`, without importing it."""
    return getattr(kind, "__module__", None) == "waterclock.batching.batch" and kind.__name__ == "Batch"


def is_model(kind: Any) -> bool:
    """Return whether a type is a Pydantic model, without importing Pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_fields")


def is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def has_fields(kind: Any) -> bool:
    """Return whether a type is read field by field: a dataclass or a TypedDict."""
    return is_dataclass(kind) or typing.is_typeddict(kind)


@built_once(maxsize=256)
def fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the field types of a dataclass or TypedDict by name, and the names of required fields.

    Fields with enumerated values come first. In a union, they exclude other members before nested objects, which may be
    unions too, are read.
    """
    hints = typing.get_type_hints(kind)
    known = dict(sorted(hints.items(), key=lambda each: named_values(unwrapped(each[1])) is None))
    if not is_dataclass(kind):
        # The class itself knows the required fields only if its annotations are not strings.
        said = {
            name: typing.get_origin(each) for name, each in typing.get_type_hints(kind, include_extras=True).items()
        }
        needed = {name for name in known if said[name] is typing.Required or name in kind.__required_keys__}
        return known, frozenset(name for name in needed if said[name] is not typing.NotRequired)
    given = {each.name: each for each in fields(kind) if each.init}
    needed = {name for name, each in given.items() if each.default is MISSING and each.default_factory is MISSING}
    return {name: each for name, each in known.items() if name in given}, frozenset(needed)


def type_name(kind: Any) -> str:
    """Return how an error names a type."""
    return "None" if kind in (None, type(None)) else getattr(kind, "__name__", None) or str(kind)


def unwrapped(kind: Any) -> Any:
    """Return the type that an annotation or a NewType stands for."""
    while True:
        if typing.get_origin(kind) in (typing.Annotated, typing.Required, typing.NotRequired):
            kind = typing.get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        else:
            return kind


def named_values(kind: Any) -> list[Any] | None:
    """Return the JSON values of a Literal or an enumeration; None for any other type."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    if is_enum(kind):
        return [each.value for each in kind]
    return None
