"""Parses JSON without changing the text of numbers, and finds values by their paths."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError


class JsonNumber(NamedTuple):
    """A number of a JSON text, as it was written."""

    text: str


class JsonPath(NamedTuple):
    """A path to a value: ``a.b.0``, or a JSON Pointer (RFC 6901) such as ``/a/b/0`` for keys that hold dots."""

    text: str  # the path as it was written
    keys: tuple[str, ...]  # its keys, from the outermost one

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path; InvalidArgumentError if one of its keys is empty."""
        if text.startswith("/"):
            return cls(text, tuple(key.replace("~1", "/").replace("~0", "~") for key in text[1:].split("/")))
        keys = tuple(text.split("."))
        if not all(keys):
            raise InvalidArgumentError(
                f"path must be keys such as a.b, or a JSON pointer such as /a/b, got {quoted(text)}"
            )
        return cls(text, keys)

    def find(self, value: object) -> object:
        """Return the value at the path.

        Raises `InvalidArgumentError` if it is missing.
        """
        for key in self.keys:
            if isinstance(value, dict) and key in value:
                value = cast("dict[str, object]", value)[key]
            elif isinstance(value, list) and key.isdecimal() and int(key[:9]) < len(cast("list[object]", value)):
                value = cast("list[object]", value)[int(key[:9])]
            else:
                raise InvalidArgumentError(f"payload must have a value at {quoted(self.text)}")
        return value


def read_json(payload: bytes) -> object:
    """Parse a JSON payload, in which numbers become `JsonNumber`.

    Raises `InvalidArgumentError` if it is not JSON in UTF-8.
    """
    try:
        # Text with half of a surrogate pair cannot be written as UTF-8, so it is refused when used.
        return json.loads(
            payload.decode("utf-8"), parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"payload must be UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise InvalidArgumentError("cannot read the payload: its JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidArgumentError(f"payload must be JSON: {error}") from None


def write_json(value: object) -> bytes:
    """Encode a value as a payload: a text unchanged, anything else as JSON, with numbers as they were written."""
    try:
        return (value if isinstance(value, str) else _written(value)).encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("payload must be valid Unicode, got a lone surrogate") from None
    except RecursionError:
        raise InvalidArgumentError("cannot read the payload: its JSON is nested too deeply") from None


def to_text(value: object, name: str) -> str:
    """Return a text or number as the text that names a source or stream.

    Raises `InvalidArgumentError` if it is neither, is empty, or is not text that UTF-8 can write.
    """
    text = value.text if isinstance(value, JsonNumber) else value
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(f"{name} must be a string or a number, got {quoted(value)}")
    return check_text(text, name)


def check_text(text: str, name: str) -> str:
    """Return a text that UTF-8 can write; InvalidArgumentError for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name} must be valid Unicode, got a lone surrogate in {quoted(text)}") from None
    return text


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _written(value: object) -> str:
    match value:
        case JsonNumber():
            return value.text
        case dict():
            items = cast("dict[str, object]", value).items()
            return (
                "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_written(each)}" for key, each in items) + "}"
            )
        case list():
            return f"[{','.join(map(_written, cast('list[Any]', value)))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)
