"""The result of mapping one published message, and the limits on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from waterclock.errors import InvalidArgumentError


class Reading(NamedTuple):
    """One measurement from a published message.

    Attributes
    ----------
    source, stream
        Its source and stream.
    event_time
        When it happened, ns; None if its payload has no time.
    payload
        The measurement.
    headers
        Further facts about it, such as its unit.
    """

    source: str
    stream: str
    event_time: int | None
    payload: bytes
    headers: Mapping[str, str] | None = None


class UntimedError(InvalidArgumentError):
    """A retained message has no event time: it may be of any age, so the time of receipt cannot stand for it."""
