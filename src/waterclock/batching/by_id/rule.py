"""The options of batching by id, and the function that reads a message's id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock._support.quoting import quoted
from waterclock.batching.declared_streams import declared_streams
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import MAX_NS, Duration, format_duration, to_duration

LARGEST_ID = 2**63 - 1
NO_ID = -LARGEST_ID - 1
"""Stands for a missing id in columns of int64."""

_DIGITS = 19

IdOf = str | Callable[[Message], int | None]


class IdRule(NamedTuple):
    """The checked options of batching by id."""

    id_of: IdOf  # the name of the header that holds the id, or a function of the message
    max_delay: int  # how much later than the first message of an id its other messages may be received, ns
    streams: tuple[str, ...] | None  # all streams of a source, in order of name; None if they are not declared

    @classmethod
    def checked(cls, id_of: IdOf, max_delay: Duration, streams: Iterable[str] | None = None) -> IdRule:
        """Check the user's options.

        Raises
        ------
        InvalidArgumentError
            Naming the option and its value.
        """
        if not callable(id_of) and (not isinstance(id_of, str) or not id_of):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise InvalidArgumentError(f"id_of must be the name of a header or a function, got {quoted(id_of)}")
        declared = None if streams is None else tuple(sorted(set(declared_streams(streams))))
        return cls(id_of, to_duration(max_delay, "max_delay"), declared)

    def undeclared(self, names: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which of some streams are not declared."""
        if self.streams is None:
            return np.zeros(len(names), np.bool_)
        return ~np.isin(names.to_numpy(zero_copy_only=False).astype(object), np.array(self.streams, object))

    @property
    def text(self) -> str:
        """The options as a user reads them; equal texts are equal rules."""
        streams = "" if self.streams is None else f", streams = {list(self.streams)}"
        return f"id_of = {self.id_of!r}, max_delay = {format_duration(self.max_delay)}{streams}"


def closing_time(first: int, max_delay: int) -> int:
    """Return when a batch closes whose first message was received at this time, ns; no later than the end of time."""
    return min(first + max_delay, MAX_NS)


def number_in(message: Message, id_of: IdOf) -> int | None:
    """Return the id of a message; None if its header is missing or not an int64, or if the function returns None.

    Raises `InvalidArgumentError` if the function returns anything else.
    """
    if callable(id_of):
        found = id_of(message)
        if found is None or (type(found) is int and -LARGEST_ID <= found <= LARGEST_ID):
            return found
        raise InvalidArgumentError(
            f"id_of must return an integer from -{LARGEST_ID} to {LARGEST_ID}, or None, got {quoted(found)} for"
            f" {quoted(message)}"
        )
    written = (message.headers or {}).get(id_of, "")
    digits = written.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS):
        return None
    found = int(written)
    return found if -LARGEST_ID <= found <= LARGEST_ID else None
