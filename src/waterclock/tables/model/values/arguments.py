"""Validates arguments: lists of rows, ids, deliveries, and names of consumers and groups."""

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
    """Return the items of a list or another iterable.

    Raises `InvalidArgumentError` for a single item, such as a string or a mapping; ``what`` names the items for the
    error.
    """
    if not isinstance(given, Iterable) or isinstance(given, (*_ONE, dict)):
        raise InvalidArgumentError(f"{name} must be a list of {what}, got {quoted(given)}")
    return list(given)


def one_or_many(given: object) -> list[Any]:
    """Return one or several ids or other items as a list: a string or bytes is one item."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, _ONE) else [given]


def check_consumer(consumer: object) -> str | None:
    """Return a consumer's name; None for None and "". InvalidArgumentError if invalid."""
    if consumer is None:
        return None
    if not isinstance(consumer, str) or len(consumer) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"consumer must be a string of 1 to {_LONGEST_NAME} characters, got {quoted(consumer)}"
        )
    return check_text("consumer", consumer)


def check_epoch(epoch: object) -> int | None:
    """Return how often a message counts as sent; None: unchanged. InvalidArgumentError if invalid."""
    if epoch is None:
        return None
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch not in _EPOCHS:
        raise InvalidArgumentError(f"epoch must be an integer from 0 to {_EPOCHS[-1]}, got {quoted(epoch)}")
    return epoch


def check_reason(reason: object) -> str:
    """Return a reason in a form that a database can store; InvalidArgumentError if it is not a string."""
    if not isinstance(reason, str):
        raise InvalidArgumentError(f"reason must be a string, got {quoted(reason)}")
    return storable(reason)


def check_group(group: object) -> str | None:
    """Return a group's name; None stays None. InvalidArgumentError if invalid."""
    if group is None:
        return None
    if not isinstance(group, str) or len(group) > _LONGEST_NAME:
        raise InvalidArgumentError(f"group must be a string of at most {_LONGEST_NAME} characters, got {quoted(group)}")
    return check_text("group", group)
