"""Typed payloads: reads what a message holds as the type that a handler's parameter is annotated with.

`waterclock.tables.model.typed_payloads` is the way there: what `put` makes of such objects.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import types
import typing
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from waterclock.database.kept import built_once
from waterclock.errors import DamagedError, SchemaError
from waterclock.quoting import quoted, said_of

_PLAIN = (str, int, float, bool, bytes, type(None))
_BY_TEXT: dict[type, Callable[[str], Any]] = {
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
    dt.time: dt.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: decimal.Decimal,
}
_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    Sequence: list,
    Collection: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}
_MAPPINGS = (dict, Mapping)
_ANYTHING = (Any, object, None)
_OF_VALUES = (ValueError, TypeError, LookupError, ArithmeticError, AssertionError)
"""What a type raises of itself for values that it does not take; other errors may not come again."""


class MisfitError(Exception):
    """A payload is not of the type that its handler takes."""


def read_payload(kind: Any, payload: Any) -> Any:
    """Give a payload as an object of a type.

    Parameters
    ----------
    kind
        A dataclass, a TypedDict, a Pydantic model, `Batch`, or what such are made of.
    payload
        As the message has it. Text and bytes are JSON, unless they themselves are what is wanted.

    Raises
    ------
    MisfitError
        Where it does not fit; says where, and why.
    """
    try:
        return _read_payload(kind, payload)
    except RecursionError:
        raise MisfitError(f"the payload is nested too deeply for {_name(kind)}") from None


def _read_payload(kind: Any, payload: Any) -> Any:
    if kind in _PLAIN and type(payload) is kind:
        return payload
    if _is_batch(kind):
        return _read_batch(kind, payload)
    if not isinstance(payload, bytes | str):
        return _read(kind, payload, "")
    if isinstance(payload, str):  # in a table of JSON, a text is itself a value
        with suppress(MisfitError):
            return _read(kind, payload, "")
    try:
        found = json.loads(payload)
    except ValueError as error:
        raise MisfitError(f"{quoted(payload)} is no {_name(kind)}, and no JSON: {error}") from None
    return _read(kind, found, "")


def can_be_read(kind: Any) -> bool:
    """Say whether payloads can be read as this type, with all that it is made of."""
    return _can_be_read(kind, set())


def _can_be_read(kind: Any, seen: set[Any]) -> bool:
    if kind in seen or _is_read_whole(kind):
        return True  # the former is made of itself
    seen.add(kind)
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) or typing.is_typeddict(kind):
        parts = _fields_of(kind)[0].values()
    elif origin is typing.Annotated:
        parts = of[:1]
    elif origin in (typing.Union, types.UnionType) or origin in _LISTS or (origin in _MAPPINGS and of[0] is str):
        parts = [each for each in of if each is not Ellipsis]  # JSON has no mappings from anything but texts
    elif hasattr(kind, "__supertype__"):  # a NewType
        parts = [kind.__supertype__]
    else:
        return False
    return all(_can_be_read(each, seen) for each in parts)


def _is_read_whole(kind: Any) -> bool:
    """Say whether a type is read without a look at what it is made of."""
    return (
        any(kind in known for known in (_ANYTHING, _PLAIN, _BY_TEXT, _LISTS, _MAPPINGS))
        or typing.get_origin(kind) is typing.Literal
        or _is_batch(kind)
        or _is_model(kind)
        or (isinstance(kind, type) and issubclass(kind, enum.Enum))
    )


def _is_batch(kind: Any) -> bool:
    return getattr(kind, "__module__", None) == "waterclock.batching.batch" and kind.__name__ == "Batch"


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_fields")


def _read_batch(kind: Any, payload: Any) -> Any:
    if not isinstance(payload, bytes):
        raise MisfitError(f"the payload is no batch: {quoted(payload)}")
    try:
        return kind.from_bytes(payload)
    except (DamagedError, SchemaError, ValueError) as error:
        raise MisfitError(f"the payload is no batch: {error}") from None


def _read(kind: Any, value: Any, where: str) -> Any:
    """Read one value; each kind of type has its reader."""
    if kind is Any or kind is object:
        return value
    if hasattr(kind, "__supertype__"):  # a NewType
        return _read(kind.__supertype__, value, where)
    if kind in _PLAIN or kind is None:
        reader = _read_plain
    elif kind in _BY_TEXT:
        reader = _read_text
    elif _is_model(kind) or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        reader = _read_checked
    elif is_dataclass(kind) or typing.is_typeddict(kind):
        reader = _read_fields
    else:
        reader = _read_generic
    return reader(kind, value, where)


def _read_checked(kind: Any, value: Any, where: str) -> Any:
    """Read what checks by itself what it is made of."""
    return _made(kind.model_validate if _is_model(kind) else kind, where, value)


def _made(make: Callable[..., Any], where: str, *given: Any, **fields_of_it: Any) -> Any:
    """Make an object of a type that may refuse what it is given, as a dataclass can in ``__post_init__``."""
    try:
        return make(*given, **fields_of_it)
    except _OF_VALUES as error:
        raise MisfitError(_at(where, said_of(error))) from None


def _read_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is (type(None) if kind is None else kind):
        return value
    raise MisfitError(_at(where, f"{quoted(value)} is no {_name(kind)}"))


def _read_text(kind: Any, value: Any, where: str) -> Any:
    try:
        if isinstance(value, str) or (kind is decimal.Decimal and type(value) is int):
            return _BY_TEXT[kind](str(value))
    except (ValueError, decimal.InvalidOperation):
        pass
    raise MisfitError(_at(where, f"{quoted(value)} is no {_name(kind)}"))


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    """Read an object by its fields; what it does not know is left out, since newer programs may put more."""
    if not isinstance(value, Mapping):
        raise MisfitError(_at(where, f"{quoted(value)} is no object, as {_name(kind)} is"))
    types_of, needed = _fields_of(kind)
    missing = sorted(needed - value.keys())
    if missing:
        raise MisfitError(_at(where, f"{missing[0]!r} of {_name(kind)} is missing"))
    read = {
        name: _read(each, value[name], f"{where}.{name}" if where else name)
        for name, each in types_of.items()
        if name in value
    }
    make: Callable[..., Any] = kind
    return _made(make, where, **read) if is_dataclass(kind) else {**value, **read}


@built_once(maxsize=256)
def _fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    known = typing.get_type_hints(kind)
    if not is_dataclass(kind):
        # A class knows by itself which are needed only where its annotations are no texts.
        said = {
            name: typing.get_origin(each) for name, each in typing.get_type_hints(kind, include_extras=True).items()
        }
        needed = {name for name in known if said[name] is typing.Required or name in kind.__required_keys__}
        return known, frozenset(name for name in needed if said[name] is not typing.NotRequired)
    given = [each for each in fields(kind) if each.init]
    needed = {each.name for each in given if each.default is MISSING and each.default_factory is MISSING}
    return {each.name: known[each.name] for each in given}, frozenset(needed)


def _read_generic(kind: Any, value: Any, where: str) -> Any:
    origin, of = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is typing.Annotated:
        return _read(of[0], value, where)
    if origin is typing.Literal:
        if any(value == each and type(value) is type(each) for each in of):
            return value
        raise MisfitError(_at(where, f"{quoted(value)} is none of {', '.join(map(repr, of))}"))
    if origin in (typing.Union, types.UnionType):
        return _read_any(of, value, where)
    if origin in _LISTS and isinstance(value, list):
        return _read_list(origin, of, value, where)
    if origin in _MAPPINGS and isinstance(value, Mapping):
        one = of[1] if of else Any
        return {name: _read(one, each, f"{where}[{name!r}]") for name, each in value.items()}
    raise MisfitError(_at(where, f"{quoted(value)} is no {_name(kind)}"))


def _read_list(origin: Any, of: tuple[Any, ...], value: list[Any], where: str) -> Any:
    if origin is tuple and of and of[-1] is not Ellipsis:
        if len(of) != len(value):
            raise MisfitError(_at(where, f"{quoted(value)} has not {len(of)} items"))
        return tuple(_read(each, one, f"{where}[{at}]") for at, (each, one) in enumerate(zip(of, value, strict=True)))
    one_kind = of[0] if of else Any
    return _LISTS[origin]([_read(one_kind, one, f"{where}[{at}]") for at, one in enumerate(value)])


def _read_any(of: tuple[Any, ...], value: Any, where: str) -> Any:
    reasons: list[str] = []
    for each in of:
        try:
            return _read(each, value, where)
        except MisfitError as error:
            reasons.append(str(error))
    raise MisfitError("; ".join(reasons))


def _name(kind: Any) -> str:
    return "None" if kind is type(None) else getattr(kind, "__name__", None) or str(kind)


def _at(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text
