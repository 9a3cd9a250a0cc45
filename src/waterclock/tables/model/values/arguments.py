"""What callers give for many: rows, ids, deliveries, names of consumers and groups. What can be none is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.values.texts import check_text, storable

_ONE = (str, bytes, bytearray, memoryview)
_LONGEST_NAME = 255
_EPOCHS = range(2**31)


def many(name: str, given: object, what: str) -> list[Any]:
    """Return what a caller gave in a list, or in anything else that gives one after another.

    Raises
    ------
    InvalidArgumentError
        For one thing alone, a text and a mapping among them: ``what`` says what it takes a list of.
    """
    if not isinstance(given, Iterable) or isinstance(given, (*_ONE, dict)):
        raise InvalidArgumentError(f"{name}: {quoted(given)} is a {type(given).__name__}; give a list of {what}")
    return list(given)


def one_or_many(given: object) -> list[Any]:
    """Return the ids, or what else may be one alone, that a caller gave: text and bytes are one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, _ONE) else [given]


def check_consumer(consumer: object) -> str | None:
    """Return a consumer's name; None and an empty one are none. InvalidArgumentError where it cannot be one."""
    if consumer is None:
        return None
    if not isinstance(consumer, str) or len(consumer) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"consumer: {quoted(consumer)} is no name; give a text of at most {_LONGEST_NAME} characters"
        )
    return check_text("consumer", consumer)


def check_epoch(epoch: object) -> int | None:
    """Return how often a message counts as sent; None: as it is. InvalidArgumentError where it is no count."""
    if epoch is None:
        return None
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch not in _EPOCHS:
        raise InvalidArgumentError(f"epoch: {quoted(epoch)} is no count; give a whole number from 0 to {_EPOCHS[-1]}")
    return epoch


def check_reason(reason: object) -> str:
    """Return why something is done, as a database can keep it; InvalidArgumentError for what is no text."""
    if not isinstance(reason, str):
        raise InvalidArgumentError(f"reason: {quoted(reason)} is a {type(reason).__name__}; give a text")
    return storable(reason)


def check_group(group: object) -> str | None:
    """Return a group's name; None stays None. InvalidArgumentError where it cannot be one."""
    if group is None:
        return None
    if not isinstance(group, str) or len(group) > _LONGEST_NAME:
        raise InvalidArgumentError(f"group: {quoted(group)} is not a text of up to {_LONGEST_NAME} characters")
    return check_text("group", group)
