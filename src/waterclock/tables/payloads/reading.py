"""Reads payloads as the type with which a handler's parameter is annotated."""

from __future__ import annotations

import decimal
import json
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

from waterclock._support.quoting import quoted, said_of
from waterclock.errors import DamagedError, SchemaError
from waterclock.tables.payloads.comparing import is_same
from waterclock.tables.payloads.types import (
    FROM_TEXT,
    JSON_SCALARS,
    LISTS,
    MAPPINGS,
    SCALARS,
    UNIONS,
    fields_of,
    has_fields,
    is_batch,
    is_enum,
    is_model,
    type_name,
)

_OF_VALUES = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError)
"""Errors that a type raises for invalid values; other errors may be transient."""


class MisfitError(Exception):
    """A payload does not have the type that its handler takes."""


def read_payload(kind: Any, payload: Any) -> Any:
    """Return a payload as an object of a type.

    Raises `MisfitError` if it does not fit; the error says where, and why.

    ``kind`` is a dataclass, a TypedDict, a Pydantic model, `Batch`, or one of their parts. ``payload`` is the message's
    payload. Text and bytes are parsed as JSON, unless the type itself is str or bytes.
    """
    try:
        return _read_payload(kind, payload)
    except RecursionError:
        raise MisfitError(f"the payload is nested too deeply for {type_name(kind)}") from None


def _read_payload(kind: Any, payload: Any) -> Any:
    if kind in SCALARS and type(payload) is kind:
        return payload
    if is_batch(kind):
        return _read_batch(kind, payload)
    if not isinstance(payload, bytes | str):
        return _read(kind, payload, "")
    if isinstance(payload, str):  # in a table of JSON, a string is itself a value
        with suppress(MisfitError):
            return _read(kind, payload, "")
    try:
        found = json.loads(payload)
    except ValueError as error:
        raise MisfitError(f"must be {type_name(kind)} or its JSON, got {quoted(payload)}: {error}") from None
    return _read(kind, found, "")


def _read_batch(kind: Any, payload: Any) -> Any:
    if not isinstance(payload, bytes):
        raise MisfitError(f"must be the bytes of a batch, got {quoted(payload)}")
    try:
        return kind.from_bytes(payload)
    except (DamagedError, SchemaError, ValueError) as error:
        raise MisfitError(f"must be the bytes of a batch: {error}") from None


def _read(kind: Any, value: Any, where: str) -> Any:
    """Read one value; each kind of type has its reader."""
    if type(value) is kind and kind in JSON_SCALARS:
        return value
    if kind is Any or kind is object:
        return value
    if hasattr(kind, "__supertype__"):  # a NewType
        return _read(kind.__supertype__, value, where)
    if kind in SCALARS or kind is None:
        reader = _read_plain
    elif kind in FROM_TEXT:
        reader = _read_text
    elif is_model(kind) or is_enum(kind):
        reader = _read_checked
    elif has_fields(kind):
        reader = _read_fields
    else:
        reader = _read_generic
    return reader(kind, value, where)


def _read_checked(kind: Any, value: Any, where: str) -> Any:
    """Read a type that validates its own parts."""
    if not is_model(kind):
        return _made(kind, where, value)
    # From JSON: a strict model takes no string for a date, and no base64 for bytes, from Python objects.
    return _made(kind.model_validate_json, where, json.dumps(value))


def _made(make: Callable[..., Any], where: str, *given: Any, **fields_of_it: Any) -> Any:
    """Build an object of a type that may refuse its values, as a dataclass can in ``__post_init__``."""
    try:
        return make(*given, **fields_of_it)
    except _OF_VALUES as error:
        raise MisfitError(_at(where, said_of(error))) from None


def _read_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is (type(None) if kind is None else kind):
        return value
    raise MisfitError(_at(where, f"must be {type_name(kind)}, got {quoted(value)}"))


def _read_text(kind: Any, value: Any, where: str) -> Any:
    try:
        if isinstance(value, str) or (kind is decimal.Decimal and type(value) is int):
            return FROM_TEXT[kind](str(value))
    except (ValueError, decimal.InvalidOperation):
        pass
    raise MisfitError(_at(where, f"must be {type_name(kind)}, got {quoted(value)}"))


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    """Read an object by its fields; unknown ones are ignored, because newer programs may put more."""
    if not isinstance(value, Mapping):
        raise MisfitError(_at(where, f"must be an object for {type_name(kind)}, got {quoted(value)}"))
    types_of, needed = fields_of(kind)
    missing = sorted(needed - value.keys())
    if missing:
        raise MisfitError(_at(where, f"{missing[0]!r} of {type_name(kind)} is missing"))
    read = {
        name: _read(each, value[name], f"{where}.{name}" if where else name)
        for name, each in types_of.items()
        if name in value
    }
    make: Callable[..., Any] = kind
    return _made(make, where, **read) if is_dataclass(kind) else {**value, **read}


def _read_generic(kind: Any, value: Any, where: str) -> Any:
    origin, of = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is typing.Annotated:
        return _read(of[0], value, where)
    if origin is typing.Literal:
        if any(value == each and type(value) is type(each) for each in of):
            return value
        raise MisfitError(_at(where, f"must be one of {', '.join(map(repr, of))}, got {quoted(value)}"))
    if origin in UNIONS:
        return _read_member(of, value, where)
    if origin in LISTS and isinstance(value, list):
        return _read_list(origin, of, value, where)
    if origin in MAPPINGS and isinstance(value, Mapping):
        one = of[1] if of else Any
        return {name: _read(one, each, f"{where}[{name!r}]") for name, each in value.items()}
    raise MisfitError(_at(where, f"must be {type_name(kind)}, got {quoted(value)}"))


def _read_list(origin: Any, of: tuple[Any, ...], value: list[Any], where: str) -> Any:
    if origin is tuple and of and of[-1] is not Ellipsis:
        if len(of) != len(value):
            raise MisfitError(_at(where, f"must have {len(of)} items, got {quoted(value)}"))
        return tuple(_read(each, one, f"{where}[{at}]") for at, (each, one) in enumerate(zip(of, value, strict=True)))
    one_kind = of[0] if of else Any
    return LISTS[origin]([_read(one_kind, one, f"{where}[{at}]") for at, one in enumerate(value)])


def _read_member(of: tuple[Any, ...], value: Any, where: str) -> Any:
    """Read a value as the matching member of a union."""
    if type(value) in of:
        with suppress(MisfitError):
            return _read(type(value), value, where)
    found: list[tuple[Any, Any]] = []
    reasons: list[str] = []
    for each in of:
        try:
            found.append((each, _read(each, value, where)))
        except MisfitError as error:
            reasons.append(str(error))
    if not found:
        raise MisfitError("; ".join(reasons))
    first, read = found[0]
    for other, again in found[1:]:
        # Other programs may omit the field that distinguishes the members.
        if not is_same(read, again):
            names = f"{type_name(first)} or {type_name(other)}"
            raise MisfitError(_at(where, f"is ambiguous: {quoted(value)} could be {names}"))
    return read


def _at(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text
