"""Continues upkeep past damaged ledgers, and then raises one error that lists the work done and the skipped ledgers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from waterclock._support.log_events import event
from waterclock.errors import DamagedError
from waterclock.topics.store.ledger_files import LostFileError

_log = logging.getLogger(__name__)


class PartialFailure(NamedTuple):
    """A ledger that was skipped: its fault, and whether its file is gone. Can be pickled."""

    ledger: int
    why: str
    gone: bool


class Done(NamedTuple):
    """The result of a piece of upkeep: how many ledgers it processed, and which it skipped. Can be pickled."""

    number: int
    undone: tuple[PartialFailure, ...] = ()


def failed(topic: str, verb: str, ledger: int, error: DamagedError | LostFileError) -> PartialFailure:
    """Log that a ledger is skipped, and note it."""
    _log.error(
        "cannot %s ledger %d of topic %r; continuing with the other ledgers: %s",
        verb,
        ledger,
        topic,
        error,
        extra=event("ledger_failed", topic=topic, ledger=ledger, task=verb),
    )
    return PartialFailure(ledger, str(error), isinstance(error, LostFileError))


def total(topic: str, verb: str, parts: Iterable[Done]) -> int:
    """Add up the work done.

    Raises
    ------
    DamagedError
        If a ledger was skipped. LostFileError If every skipped ledger lacks its file.
    """
    every = list(parts)
    count = sum(part.number for part in every)
    undone = sorted({piece for part in every for piece in part.undone})
    if not undone:
        return count
    numbers = list(dict.fromkeys(piece.ledger for piece in undone))
    which = ("ledger " if len(numbers) == 1 else "ledgers ") + ", ".join(map(str, numbers))
    text = (
        f"{which} of topic {topic!r} could not be {verb}; others {verb}: {count}. Run 'waterclock topic verify"
        f" {topic}', then 'waterclock topic repair {topic}'. First fault: {undone[0].why}"
    )
    if all(piece.gone for piece in undone):
        raise LostFileError(text)
    raise DamagedError(text, ledger=numbers[0])
