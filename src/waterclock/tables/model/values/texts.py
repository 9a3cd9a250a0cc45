"""Validates texts, so that every database can store them: without NUL, which PostgreSQL refuses, and valid in UTF-8.

A caller's invalid text is refused. In the reason of a failure, invalid characters are replaced, so that the reason can
always be stored.
"""

from __future__ import annotations

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

KEPT_AT_EACH_END = 1024
"""Characters kept from the beginning and end of a reason. An exception can quote a whole payload, and a statement with
20 MB of text is larger than MariaDB's max_allowed_packet.
"""

_NUL = "\0"
_REPLACEMENT = "\ufffd"


def check_text(name: str, text: str) -> str:
    """Return the text if every database can store it.

    Raises
    ------
    InvalidArgumentError
        Names the argument, and the error in the text.
    """
    problem = _problem(text)
    if problem is not None:
        raise InvalidArgumentError(f"{name}: {quoted(text)} {problem}")
    return text


def storable(text: str) -> str:
    """Return a reason in a form that every database can store, truncated in the middle."""
    left_out = len(text) - 2 * KEPT_AT_EACH_END
    if left_out > 0:
        text = f"{text[:KEPT_AT_EACH_END]}… ({left_out} characters left out) …{text[-KEPT_AT_EACH_END:]}"
    if _problem(text) is None:
        return text
    return text.replace(_NUL, _REPLACEMENT).encode(errors="replace").decode()


def _problem(text: str) -> str | None:
    if _NUL in text:
        return "must not contain NUL, which PostgreSQL cannot store in text. Put bytes, or remove the NUL"
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not contain a lone surrogate, which is not valid text. Decode the source of the text again"
    return None
