"""Checks the names of topics, producers, subscriptions and lease holders, and integers from callers."""

from __future__ import annotations

import os
import secrets
import socket
import unicodedata

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

LARGEST_INTEGER = (1 << 63) - 1
"""The largest integer of the databases: signed, 64 bits."""

_LONGEST_NAME = 255
_LONGEST_HOST = 200


def check_name(name: str) -> str:
    """Check the name of a topic, producer or subscription: 1 to 255 characters, none of them a control character."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"name must be a string, got {quoted(name)}")
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise InvalidArgumentError(f"name must have 1 to {_LONGEST_NAME} characters, got {len(name)} in {quoted(name)}")
    if name != name.strip():
        # MariaDB treats "a" and "a " as equal, the others do not.
        raise InvalidArgumentError(f"name must not begin or end with a space, got {quoted(name)}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidArgumentError(f"name must not hold control characters, got {quoted(name)}")
    return name


def check_size(size: int, name: str) -> int:
    """Check a number of bytes."""
    return check_integer(size, name, least=1)


def check_integer(value: int, name: str, *, least: int = 0) -> int:
    """Check an integer for a statement or a slice."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"{name} must be an integer ≥ {least}, got {quoted(value)}")
    if value > LARGEST_INTEGER:
        raise InvalidArgumentError(f"{name} must be at most {LARGEST_INTEGER}, got {quoted(value)}")
    return value


def new_holder() -> str:
    """Name the holder of a lease so that people can find its process: host, process id, and a unique part."""
    return f"{socket.gethostname()[:_LONGEST_HOST]}:{os.getpid()}:{secrets.token_hex(4)}"
