"""The result of mapping one published message, and the limits on that result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waterclock.errors import InvalidArgumentError
from waterclock.message import Message


class Reading(NamedTuple):
    """One measurement from a published message."""

    source: str
    stream: str
    event_time: int | None  # when it happened, ns; None if its payload has no time
    payload: bytes  # the measurement
    headers: Mapping[str, str] | None = None  # further facts about it, such as its unit


class UntimedError(InvalidArgumentError):
    """A retained message has no event time. It may be of any age, so the receive time cannot be used instead."""


@dataclass(frozen=True)
class SampledMessage:
    """One published message, raw and mapped."""

    facts: Mapping[str, object]  # its place, and how it was published
    payload: bytes  # its content
    messages: Sequence[Message] = ()  # the messages of its mapping
    reason: str | None = None  # why it would be a dead letter; None if it would not


def check_mapping(
    facts: Mapping[str, object], payload: bytes, most_payload: int, map_payload: Callable[[], Sequence[Message]]
) -> SampledMessage:
    """Map a published message, and append nothing."""
    if len(payload) > most_payload:
        return SampledMessage(facts, payload, (), f"payload must have at most {most_payload} bytes, got {len(payload)}")
    try:
        return SampledMessage(facts, payload, map_payload())
    except InvalidArgumentError as error:
        return SampledMessage(facts, payload, (), str(error))
