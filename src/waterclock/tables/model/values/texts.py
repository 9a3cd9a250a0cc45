"""Texts that every database keeps: none with a NUL, which PostgreSQL refuses, and none that UTF-8 cannot write.

Where a text is the caller's, it is refused, on every database alike. Where it only says why something failed, what
cannot be kept of it is replaced: the reason must not become a failure of its own.
"""

from __future__ import annotations

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

KEPT_AT_EACH_END = 1024
"""Characters kept of a reason's beginning and end. An exception can quote a whole payload, and a statement with 20 MB
of text is larger than MariaDB's max_allowed_packet."""

_NUL = "\0"
_REPLACEMENT = "\ufffd"


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
