"""Validates names of keys by which messages are limited or take turns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

GROUP = "group"  # names the group of a message as its key
LONGEST_KEY = 255  # characters of a key; longer ones that begin alike count as one key

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_key_name(value: object, name: str) -> str:
    """Return the name of a key; raise InvalidArgumentError if it cannot be a header or a column."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidArgumentError(
            f"{name} must be 'group' or the name of a column or header, of at most 100 letters, digits, _, . and -,"
            f" got {quoted(value)}"
        )
    return value


@dataclass(frozen=True, slots=True)
class KeySource:
    """The column of a message that has its key."""

    column: str
    header: str | None = None  # the header in it; None: the whole column is the key
