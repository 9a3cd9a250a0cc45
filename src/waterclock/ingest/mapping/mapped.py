"""The result of mapping one published message, and the limits on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from waterclock.errors import InvalidArgumentError


class Reading(NamedTuple):
    """One measurement out of a published message.

    Attributes
    ----------
    source, stream
        Its source and stream.
    event_time
        When it happened, ns; None if its payload does not say.
    payload
        The measurement.
    headers
        What else is known of it, such as its unit.
    """

    source: str
    stream: str
    event_time: int | None
    payload: bytes
    headers: Mapping[str, str] | None = None


class UntimedError(InvalidArgumentError):
    """A retained message does not say when it happened: it may be from any time, so it cannot count as of now."""
