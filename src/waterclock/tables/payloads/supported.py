"""Decides for ``put`` and for handlers which types a payload can be read as, and explains why others are rejected."""

from __future__ import annotations

import itertools
import typing
from typing import Any

from waterclock.database.per_database_cache import built_once
from waterclock.tables.payloads.types import (
    FROM_TEXT,
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
    unwrapped,
)
from waterclock.tables.payloads.unions import is_ambiguous, members_of

_ANYTHING = (Any, object)
_SUPPORTED = "use a dataclass, a TypedDict, a Pydantic model, a Batch, a combination of these, or waterclock.Delivery"
_IN_FIELDS = "use a dataclass, a TypedDict, a Pydantic model, or a combination of these"
_TAG = "Give each a field of its own, such as kind: Literal['refund']"


@built_once(maxsize=256)
def why_unreadable(kind: Any) -> str | None:
    """Return why payloads cannot be read as a type, or as a field of one; None if they can.

    Raises `NameError` if the name of a field's type is not known at run time.
    """
    if kind is bytes or is_batch(kind):
        return None
    return _why(kind, set(), "")


def _why(kind: Any, seen: set[Any], where: str) -> str | None:
    kind = unwrapped(kind)
    if kind in seen:
        return None  # a type that contains itself
    seen.add(kind)
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    parts: list[tuple[str, Any]] = []
    if kind is bytes or is_batch(kind):
        named = f"{_at(where)}{type_name(kind)}"
        return f"{named} can be a whole payload, but not part of one in JSON; put text instead"
    if has_fields(kind):
        name = type_name(kind)
        parts = [(f"{name}.{field}", each) for field, each in fields_of(kind)[0].items()]
    elif origin in UNIONS or origin in LISTS or (origin in MAPPINGS and of[0] is str):
        parts = [(where, each) for each in of if each is not Ellipsis]
    elif not (kind in _ANYTHING or _is_scalar(kind) or _reads_itself(kind, origin)):
        return _unsupported(kind, where)
    for place, part in parts:
        why = _why(part, seen, place)
        if why is not None:
            return why
    return _why_ambiguous(kind, where) if origin in UNIONS else None


def _unsupported(kind: Any, where: str) -> str:
    if not where:
        return _SUPPORTED
    if typing.get_origin(kind) in MAPPINGS:
        return f"{where}: the keys of an object in JSON are text, got {kind}; use str"
    return f"{where}: no payload can be read as {type_name(kind)}; {_IN_FIELDS}"


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _why_ambiguous(union: Any, where: str) -> str | None:
    for one, other in itertools.combinations(members_of(union), 2):
        if is_ambiguous(one, other):
            return f"{_at(where)}the same payload could be {type_name(one)} or {type_name(other)}. {_TAG}"
    return None


def _is_scalar(kind: Any) -> bool:
    return kind is None or kind in SCALARS or kind in FROM_TEXT


def _reads_itself(kind: Any, origin: Any) -> bool:
    return origin is typing.Literal or is_model(kind) or is_enum(kind) or kind in LISTS or kind in MAPPINGS
