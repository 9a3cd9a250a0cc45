"""Upkeep that goes on where a ledger is damaged: what was done, what was not, and the one error that says so."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from waterclock.errors import DamagedError
from waterclock.topics.store.ledger_files import LostFileError

_log = logging.getLogger(__name__)


class Undone(NamedTuple):
    """A ledger that was left as it is: what is wrong with it, and whether its file is gone. Can be pickled."""

    ledger: int
    why: str
    gone: bool


class Done(NamedTuple):
    """What a piece of upkeep did: how many it dealt with, and what it left undone. Can be pickled."""

    number: int
    undone: tuple[Undone, ...] = ()


def failed(topic: str, verb: str, ledger: int, error: DamagedError | LostFileError) -> Undone:
    """Log that a ledger is left as it is, and note it."""
    _log.error("cannot %s ledger %d of topic %r; continuing with the others: %s", verb, ledger, topic, error)
    return Undone(ledger, str(error), isinstance(error, LostFileError))


def total(topic: str, verb: str, parts: Iterable[Done]) -> int:
    """Add up what was done.

    Raises
    ------
    DamagedError
        If something was left undone.
    LostFileError
        If all that was left undone lacks its file.
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
