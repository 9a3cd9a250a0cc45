"""Handles messages that a reader finds damaged, lost or missing: stops with an error, or skips with a warning."""

from __future__ import annotations

import logging
from typing import Literal

from waterclock._support.log_events import event
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.topics.store.ledger_files import LostFileError

OnDamage = Literal["raise", "skip"]
"""``raise``: stop with the error. ``skip``: skip unreadable messages, with a warning that says how many."""

_CHOICES = ("raise", "skip")

_log = logging.getLogger(__name__)


def check_on_damage(on_damage: str, name: str = "on_damage") -> OnDamage:
    """Check the choice of a damage policy."""
    if on_damage == "raise" or on_damage == "skip":  # noqa: PLR1714  # pyright narrows this
        return on_damage
    raise InvalidArgumentError(f"{name} must be one of {', '.join(_CHOICES)}, got {on_damage!r}")


class Damage:
    """Applies a damage policy to each unreadable piece of a topic, and counts the skipped messages.

    Parameters
    ----------
    topic
        Name of the topic, for texts.
    on_damage
        The policy; see `OnDamage`.
    quiet
        Log no warnings: for queries that may be repeated often.
    """

    def __init__(self, topic: str, on_damage: OnDamage = "raise", *, quiet: bool = False) -> None:
        self.skipped = 0  # how many messages were skipped so far
        self._topic = topic
        self._on_damage = on_damage
        self._quiet = quiet

    def meet(self, error: DamagedError | LostFileError, messages: int) -> None:
        """Raise the error, or skip a piece of so many messages.

        Raises
        ------
        DamagedError, LostFileError
            The error, unless it is skipped.
        """
        if self._on_damage == "raise":
            raise error
        self.skipped += messages
        if not self._quiet:
            _log.warning(
                "reading topic %r skips %d messages: %s",
                self._topic,
                messages,
                error,
                extra=event("messages_skipped", topic=self._topic, count=messages),
            )


def located(error: DamagedError, topic: str, *, ledger: int, entry: int | None = None) -> DamagedError:
    """Return the error with the topic, the place of the damage, and the remedy."""
    return DamagedError(
        f"topic {topic!r}: {error}. Run 'waterclock topic verify {topic}' to list all damage",
        ledger=ledger,
        entry=error.entry if entry is None else entry,
    )
