"""Texts that every database keeps: none with a NUL, which PostgreSQL refuses, and none that UTF-8 cannot write.

Where a text is the caller's, it is refused, on every database alike. Where it only says why something failed, what
cannot be kept of it is replaced: the reason must not become a failure of its own.
"""

from __future__ import annotations

import json
from typing import Any

from waterclock.database.types import BIGINTS
from waterclock.errors import InvalidArgumentError
from waterclock.quoting import quoted

KEPT_AT_EACH_END = 1024
"""Characters kept of a reason's beginning and end. An exception can quote a whole payload, and a statement with 20 MB
of text is larger than MariaDB's max_allowed_packet."""

_NUL = "\0"
_REPLACEMENT = "\ufffd"
_SUSPECTS = ("\\u0000", "\\ud")  # how JSON begins to write a NUL and half of a surrogate pair


def check_text(name: str, text: str) -> str:
    """Return the text where every database keeps it.

    Raises
    ------
    InvalidArgumentError
        Naming the argument, and what is wrong with the text.
    """
    problem = _problem(text)
    if problem is not None:
        raise InvalidArgumentError(f"{name}: {quoted(text)} {problem}")
    return text


def check_json(name: str, value: Any) -> None:
    """Refuse what is no JSON, or none that every database keeps.

    Raises
    ------
    InvalidArgumentError
        Naming the argument, and what is wrong with the value.
    """
    if isinstance(value, int) and value not in BIGINTS:
        raise InvalidArgumentError(
            f"{name}: {quoted(value)} is an int of more than 64 bits; SQLite keeps it only in a list or an object"
        )
    try:
        text = json.dumps(value, allow_nan=False)
        # As JSON has it: a key that is no text becomes one there.
        suspicious = _texts(json.loads(text)) if any(suspect in text for suspect in _SUSPECTS) else []
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{name}: {quoted(value)} cannot be written as JSON: {error}") from None
    for one in suspicious:
        check_text(name, one)


def storable(text: str) -> str:
    """Return a reason as every database keeps it: its first and last `KEPT_AT_EACH_END` characters, if it is longer."""
    left_out = len(text) - 2 * KEPT_AT_EACH_END
    if left_out > 0:
        text = f"{text[:KEPT_AT_EACH_END]}… ({left_out} characters left out) …{text[-KEPT_AT_EACH_END:]}"
    if _problem(text) is None:
        return text
    return text.replace(_NUL, _REPLACEMENT).encode(errors="replace").decode()


def _problem(text: str) -> str | None:
    if _NUL in text:
        return "has a NUL in it, which PostgreSQL keeps in no text; put bytes, or leave it out"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair in it, which is no text; decode what it was made of anew"
    return None


def _texts(value: Any) -> list[str]:
    found: list[str] = []
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, dict):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list):
            left += one
    return found
