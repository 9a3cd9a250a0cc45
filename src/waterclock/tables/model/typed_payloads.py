"""Objects as payloads: dataclasses, Pydantic's models and batches become what a table's payload is."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_PLAIN = (str, int, float, bytes, type(None))


def plain_payload(value: Any, payload: str) -> Any:
    """Give an object as a payload of a table; anything else as it is.

    Parameters
    ----------
    payload
        What the table's payloads are: ``"bytes"``, ``"text"`` or ``"json"``.
    """
    if isinstance(value, _PLAIN):
        return value
    if type(value).__module__ == "waterclock.batching.batch" and hasattr(value, "to_bytes"):
        return value.to_bytes()
    try:
        found = _plain(value) if _is_typed(value) else value
    except RecursionError:
        return value  # what checks the table's payloads says so
    if found is value:
        return value
    if payload == "json":
        return found
    text = json.dumps(found, ensure_ascii=False)
    return text if payload == "text" else text.encode()


def _is_typed(value: Any) -> bool:
    """Say whether a value is an object of a type of the caller's, or a list or mapping that has some in it."""
    if isinstance(value, Mapping):
        return any(map(_is_typed, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_typed, value))
    is_object = is_dataclass(value) and not isinstance(value, type)
    return is_object or hasattr(value, "model_dump") or isinstance(value, enum.Enum)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    return _plain_of_parts(value)


def _plain_of_parts(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value
