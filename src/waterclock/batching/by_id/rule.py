"""The options of batching by id, and how a message's id is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import MAX_NS

LARGEST_ID = 2**63 - 1
_DIGITS = 19


class IdRule(NamedTuple):
    """The checked options of batching by id.

    Attributes
    ----------
    id_of
        The name of the header that holds the id, or a function of the message.
    max_delay
        How much later than the first message of an id its other messages may be received, ns.
    """

    id_of: str | Callable[[Message], int]
    max_delay: int


def closing_time(first: int, max_delay: int) -> int:
    """Return when a batch closes whose first message was received at this time, ns; no later than the end of time."""
    return min(first + max_delay, MAX_NS)


def number_in(message: Message, id_of: str | Callable[[Message], int]) -> int:
    """Return the id of a message.

    Raises
    ------
    InvalidArgumentError
        If it has no id that is an int64.
    """
    if callable(id_of):
        found = id_of(message)
    else:
        written = (message.headers or {}).get(id_of, "")
        digits = written.removeprefix("-")
        found = int(written) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else None
    if type(found) is int and -LARGEST_ID <= found <= LARGEST_ID:
        return found
    where = f"header {quoted(id_of)}" if isinstance(id_of, str) else "id_of"
    raise InvalidArgumentError(
        f"{where} must be an integer from -{LARGEST_ID} to {LARGEST_ID} in each message, got"
        f" {quoted(found if callable(id_of) else (message.headers or {}).get(id_of))} in {quoted(message)}"
    )
