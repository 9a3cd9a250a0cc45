"""Writes objects as payloads (dataclasses, Pydantic models, enumerations and batches), and reads them back to check."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from waterclock._support.quoting import quoted, said_of
from waterclock.errors import InvalidArgumentError
from waterclock.tables.payloads.comparing import first_difference
from waterclock.tables.payloads.reading import MisfitError, read_payload
from waterclock.tables.payloads.supported import why_unreadable
from waterclock.tables.payloads.types import JSON_SCALARS, is_batch, is_enum, is_model, type_name

_SCALARS = (str, int, float, bytes, type(None))
_REMEDY = "Convert it to a dict or text first, or use fields that JSON can hold"


def write_payload(value: Any, payload: str) -> Any:
    """Return an object as a payload of a table, and any other value unchanged.

    Each object is read back as its own type and compared, so that a handler gets an equal object. The cost grows with
    the number of objects: 20 to 30 µs for each small one.

    Raises `InvalidArgumentError` if an object would come back different; the error names the part.

    ``payload`` is the table's payload type: ``"bytes"``, ``"text"`` or ``"json"``.
    """
    if is_batch(type(value)):
        return value.to_bytes()
    if isinstance(value, _SCALARS) and not isinstance(value, enum.Enum):
        return value
    try:
        found = _checked(value) if _is_typed(value) else value
    except RecursionError:
        return value  # check_json reports it
    if found is value:
        return value
    if payload == "json":
        return found
    text = json.dumps(found, ensure_ascii=False)
    return text if payload == "text" else text.encode()


def _is_object(value: Any) -> bool:
    kind = type(value)
    return is_enum(kind) or is_model(kind) or is_dataclass(kind)


def _is_typed(value: Any) -> bool:
    """Return whether a value is an object, or a list or mapping that contains one."""
    if isinstance(value, Mapping):
        return any(map(_is_typed, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_typed, value))
    return _is_object(value)


def _checked(value: Any) -> Any:
    """Return the JSON of a value, after reading back the objects in it."""
    if isinstance(value, Mapping):
        return {name: _checked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(each) for each in value]
    if not _is_object(value):
        return _plain(value)
    found, back = _written_and_read(value)
    difference = first_difference(value, back)
    if difference is None:
        return found
    where, put, got = difference
    name = f"{type_name(type(value))}{where}"
    raise InvalidArgumentError(
        f"cannot put {quoted(value)}: {name} is {quoted(put)} and would be read as {quoted(got)}. {_REMEDY}"
    )


def _written_and_read(value: Any) -> tuple[Any, Any]:
    try:
        why = why_unreadable(type(value))
        if why is not None:
            raise MisfitError(why)  # noqa: TRY301  # reported as what cannot be read is
        found = _plain(value)
        return found, read_payload(type(value), json.loads(json.dumps(found, allow_nan=False)))
    except RecursionError:
        raise
    except MisfitError as error:
        raise InvalidArgumentError(
            f"cannot put {quoted(value)}: no handler would be able to read this payload: {error}. {_REMEDY}"
        ) from None
    except Exception as error:  # a model's own code may raise anything
        raise InvalidArgumentError(f"cannot put {quoted(value)}: {said_of(error)}. {_REMEDY}") from error


def _plain(value: Any) -> Any:
    if type(value) in JSON_SCALARS:
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID | decimal.Decimal) else _plain_parts(value)


def _plain_parts(value: Any) -> Any:
    if is_model(type(value)):
        # By alias and without computed fields, as the model itself reads it.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value
