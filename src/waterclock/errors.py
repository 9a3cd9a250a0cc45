"""All errors and warnings of Waterclock. Each message names the fault, the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waterclock._support.quoting import cut


class WaterclockError(Exception):
    """Base of every error below: ``except WaterclockError`` catches them all. A text above 1,000 characters is cut."""

    def __init__(self, message: str = "") -> None:
        super().__init__(cut(message))


class NotFoundError(WaterclockError):
    """A topic, subscription, message table, group or id with this name does not exist."""


class AlreadyExistsError(WaterclockError):
    """Something with this name exists already and ``exist_ok`` was not given."""


class InvalidArgumentError(WaterclockError, ValueError):
    """An argument has an invalid value; the text names the argument, the value and the remedy."""


class LeaseLostError(WaterclockError):
    """The lease of a delivery ended before it was acked, so another consumer may have the message by now."""


class OrderError(WaterclockError):
    """An ack would break the order of its group.

    Attributes
    ----------
    blocking_id
        Id of the earlier message of the group that has to be acked first.
    """

    def __init__(self, message: str, blocking_id: object = None) -> None:
        super().__init__(message)
        self.blocking_id = blocking_id


class ProducerFencedError(WaterclockError):
    """A newer instance of the same named producer has taken over; this one must stop."""


class SchemaError(WaterclockError):
    """A table, file or message has other columns or options than it must have."""


class UnavailableError(WaterclockError):
    """A database, file or Java runtime could not be reached or used; trying again later may help."""


class TimedOutError(UnavailableError):
    """The database ended a statement that exceeded one of its limits on run time or on waiting for a lock."""


class RefusedError(WaterclockError):
    """The database refused a statement, and would again; the driver's error is the ``__cause__`` if it may be shown.

    An error that quotes a password is not shown.
    """


class ConstraintError(RefusedError):
    """A write breaks a constraint of the database, such as a unique column."""


class ForbiddenError(RefusedError):
    """The database's user lacks a privilege."""


class DamagedError(WaterclockError):
    """Stored data does not match its checksum, or is missing although the catalogue names it.

    Attributes
    ----------
    ledger, entry
        Its place in a topic; None if it is not part of a ledger, or of no single entry.
    """

    def __init__(self, message: str, *, ledger: int | None = None, entry: int | None = None) -> None:
        super().__init__(message)
        self.ledger = ledger
        self.entry = entry

    def __reduce__(self) -> tuple[Any, ...]:
        return _damaged, (*self.args, self.ledger, self.entry)


def _damaged(message: str, ledger: int | None, entry: int | None) -> DamagedError:
    return DamagedError(message, ledger=ledger, entry=entry)  # exceptions are copied to other processes by position


class PartlyPutError(UnavailableError):
    """Some shards were unavailable during a put, so only the messages of the other shards were written.

    Attributes
    ----------
    ids
        The ids of all messages, in their order, including ids that the call generated.
    missing
        The ids that were not written. If a shard failed during its commit they may have been written after all; putting
        them again then changes nothing.
    """

    def __init__(self, message: str, ids: Sequence[Any], missing: Sequence[Any]) -> None:
        super().__init__(message)
        self.ids = ids
        self.missing = missing


class LongCallWarning(UserWarning):
    """A stream's messages in one call span over 1000 batch lengths, so some get no batch of their own (by rate)."""


class OutsideWindowWarning(UserWarning):
    """Messages of a stream repeatedly lie outside the windows of their batches (by rate)."""
