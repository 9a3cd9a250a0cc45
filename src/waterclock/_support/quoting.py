"""Quotes values in error messages. A long value is shortened to its beginning and its length.

A wrong argument may be the whole content of a file, which would fill logs. It may also be a URL, which is quoted
without its user and password.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

_WHOLE = 160
"""Maximum length of a repr that is quoted whole."""

_BEGINNING = 80

_LOOKED_AT = 500
"""How much of a value is searched for secrets: a password may end after the quoted part."""

_SIGN_IN = re.compile(r"(://)\S+@")
_SIGN_IN_BYTES = re.compile(_SIGN_IN.pattern.encode())
"""The user and password of a URL, up to its last @: a password may contain an unquoted @ or slash."""

_TEXT = 1000
"""Maximum length of an error text, including quoted values."""

_TEXT_END = 300
"""Characters kept from the end of an error, where its remedy is."""


_BULK = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__", "__array__")
"""Attributes of tables, frames and arrays of any library, whose ``repr`` prints their data."""


def quoted(value: object) -> str:
    """Return the repr of a value, truncated; for a table, frame or array, its type and length."""
    if _is_bulk(value):
        return f"<{_type_and_length(value)}>"
    if isinstance(value, list | tuple) and any(map(_is_bulk, value)):
        return f"<{_type_and_length(value)}: data not shown>"
    if isinstance(value, str | bytes | bytearray):
        known = value[:_LOOKED_AT]
        known = _SIGN_IN.sub(r"\1***@", known) if isinstance(known, str) else _SIGN_IN_BYTES.sub(rb"\1***@", known)
        if len(value) <= _WHOLE:
            return repr(known)
        return f"{known[:_BEGINNING]!r}… ({len(value)} {'characters' if isinstance(value, str) else 'bytes'})"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a value without a repr, such as an int of 5,000 digits
        return f"<{type(value).__name__} that cannot be shown>"
    known = _SIGN_IN.sub(r"\1***@", text[:_LOOKED_AT])
    return known if len(text) <= _WHOLE else f"{known[:_BEGINNING]}… ({len(text)} characters)"


def _is_bulk(value: object) -> bool:
    # A numpy scalar has __array__, too, and no dimension.
    return any(hasattr(type(value), name) for name in _BULK) and getattr(value, "ndim", None) != 0


def _type_and_length(value: Any) -> str:
    try:
        return f"{type(value).__name__} of length {len(value)}"
    except TypeError:  # a lazy frame or a reader of batches
        return type(value).__name__


def unknown_name(what: str, name: object, known: Iterable[str], remedy: str, within: str = "") -> str:
    """Return the error for an unknown name: with the nearest known name, or otherwise the remedy."""
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []  # callers check no types
    where = f" in {within}" if within else ""
    return f"no {what} named {quoted(name)}{where}; {f'did you mean {quoted(near[0])}?' if near else remedy}"


def cut(text: str) -> str:
    """Truncate an error's text in the middle: another program's error may quote anything."""
    if len(text) <= _TEXT:
        return text
    left_out = len(text) - _TEXT
    return f"{text[: _TEXT - _TEXT_END]}… ({left_out} characters left out) …{text[-_TEXT_END:]}"


def said_of(error: BaseException) -> str:
    """Return an exception's type and text; only the type if it has no text, or raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the str() of a handler's exception may raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_a_line(text: str | None) -> str:
    """Return a text for one line of a log: truncated, and with control characters escaped."""
    shown = cut(text or "")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)


def counted(count: int, one: str, many: str = "") -> str:
    """Write how many there are: ``1 batch``, ``1,024 batches``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
