"""Batching by id as its documentation states it, written for reading and not for speed."""

from __future__ import annotations

from collections.abc import Sequence

from waterclock.message import Message

LARGEST = 2**63 - 1

Batches = dict[tuple[str, int], tuple[int, set[Message]]]
"""By source and id, when the batch closes, and its messages."""


def number_of(message: Message) -> int:
    return int((message.headers or {})["train"])


def batches_of(messages: Sequence[Message], max_delay: int, now: int = LARGEST) -> tuple[Batches, dict[Message, str]]:
    """Apply the rules to messages in order of arrival, as at receive-clock time ``now``: batches, and the rejected."""
    batches: Batches = {}
    rejected: dict[Message, str] = {}
    for message in sorted(messages, key=_received):
        if _received(message) > now:
            break
        key = message.source, number_of(message)
        closed_at, there = batches.setdefault(key, (min(_received(message) + max_delay, LARGEST), set()))
        if _received(message) > closed_at:
            rejected[message] = "late"
        elif message.stream in {other.stream for other in there}:
            rejected[message] = "duplicate"
        else:
            there.add(message)
    return {key: batch for key, batch in batches.items() if batch[0] <= now}, rejected


def _received(message: Message) -> int:
    assert message.receive_time is not None
    return message.receive_time
