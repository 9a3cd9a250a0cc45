"""Refuses union types if the same JSON value could be read as two of their members.

A payload does not name its type. If it could be read as two members of a union, it would be read as the first of them,
without the fields that only the other has.
"""

from __future__ import annotations

import decimal
import itertools
import typing
from collections.abc import Callable
from typing import Any

from waterclock.tables.payloads.types import (
    FROM_TEXT,
    LISTS,
    MAPPINGS,
    SCALARS,
    UNIONS,
    fields_of,
    has_fields,
    is_enum,
    is_model,
    named_values,
    unwrapped,
)

_SHAPES: dict[Any, str] = {
    None: "null",
    type(None): "null",
    bool: "bool",
    int: "number",
    float: "number",
    str: "string",
    **dict.fromkeys(FROM_TEXT, "string"),
    **dict.fromkeys(LISTS, "array"),
    **dict.fromkeys(MAPPINGS, "object"),
}
"""The kind of JSON value that each type is read from."""


def members_of(kind: Any) -> list[Any]:
    """Return the members of a union, including those of nested unions; for any other type, the type itself."""
    kind = unwrapped(kind)
    if typing.get_origin(kind) not in UNIONS:
        return [kind]
    return [member for each in typing.get_args(kind) for member in members_of(each)]


def is_ambiguous(one: Any, other: Any) -> bool:
    """Return whether some JSON value could be read as either type, with different results."""
    return any(_are_ambiguous(*pair) for pair in itertools.product(members_of(one), members_of(other)))


def _are_ambiguous(one: Any, other: Any) -> bool:
    shapes = _shapes(one) & _shapes(other)
    if one == other or not shapes or _is_anything_else(one, other) or _is_anything_else(other, one):
        return False
    if named_values(one) is not None or named_values(other) is not None:
        return _are_ambiguous_values(one, other)
    if shapes == {"array"}:
        return _are_ambiguous_lists(one, other)
    if shapes == {"object"}:
        return _are_ambiguous_objects(one, other)
    return {one, other} != {int, float}  # the reader prefers the type that JSON itself has


def _is_anything_else(one: Any, other: Any) -> bool:
    """Return whether one type is Any, and the other is a native JSON type, which the reader prefers."""
    return one in (Any, object) and other in (None, type(None), bool, int, str)


def _are_ambiguous_values(one: Any, other: Any) -> bool:
    """Compare types, at least one of which has only certain values."""
    if named_values(one) is None:
        one, other = other, one
    values, others = named_values(one) or [], named_values(other)
    if others is not None:
        common = any(type(a) is type(b) and a == b for a in values for b in others)
        return common and (is_enum(one) or is_enum(other))
    if other in FROM_TEXT:
        return any(isinstance(each, str) and _parses(FROM_TEXT[other], each) for each in values)
    return is_enum(one) or other not in SCALARS  # a Literal is read as its value's type


def _parses(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except (ValueError, decimal.InvalidOperation):
        return False
    return True


def _shapes(kind: Any) -> set[str]:
    """Return the kinds of JSON value that a type other than a union can be read from."""
    values = named_values(kind)
    if values is not None:
        return set().union(*(_shapes(type(each)) for each in values))
    if _is_root_model(kind):
        return set().union(*map(_shapes, members_of(kind.model_fields["root"].annotation)))
    if has_fields(kind) or is_model(kind):
        return {"object"}
    origin = typing.get_origin(kind) or kind
    return {_SHAPES[origin]} if origin in _SHAPES else set(_SHAPES.values())


def _is_root_model(kind: Any) -> bool:
    return is_model(kind) and "root" in kind.model_fields


def _are_ambiguous_lists(one: Any, other: Any) -> bool:
    if is_model(one) or is_model(other):
        return True
    if LISTS[typing.get_origin(one) or one] is not LISTS[typing.get_origin(other) or other]:
        return True
    items, others = (typing.get_args(each) or (Any,) for each in (one, other))
    fixed = (typing.get_origin(one) or one) is tuple and Ellipsis not in items and Ellipsis not in others
    if fixed and len(items) != len(others):
        return False
    return any(is_ambiguous(*pair) for pair in zip(items, others, strict=False))


def _are_ambiguous_objects(one: Any, other: Any) -> bool:
    if all((typing.get_origin(each) or each) in MAPPINGS for each in (one, other)):
        values = [(typing.get_args(each) or (Any, Any))[1] for each in (one, other)]
        return is_ambiguous(*values)
    if not all(has_fields(each) or (is_model(each) and not _is_root_model(each)) for each in (one, other)):
        return True
    (types_one, needed_one), (types_other, needed_other) = _json_fields(one), _json_fields(other)
    if needed_one - types_other.keys() and needed_other - types_one.keys():
        return False  # each requires a field that the other does not write
    return not any(_are_tags(types_one[name], types_other[name]) for name in types_one.keys() & types_other.keys())


def _are_tags(one: Any, other: Any) -> bool:
    """Return whether two field types have enumerated values without overlap."""
    values, others = named_values(unwrapped(one)), named_values(unwrapped(other))
    if values is None or others is None:
        return False
    return not any(type(a) is type(b) and a == b for a in values for b in others)


def _json_fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of an object's fields by JSON name, and the names of required fields."""
    if not is_model(kind):
        return fields_of(kind)
    named = {each.serialization_alias or name: each for name, each in kind.model_fields.items()}
    return (
        {name: each.annotation for name, each in named.items()},
        frozenset(name for name, each in named.items() if each.is_required()),
    )
