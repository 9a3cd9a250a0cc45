"""Warns if one call passes messages that are too far apart in time to become separate batches."""

from __future__ import annotations

import warnings

from waterclock._support.quoting import quoted
from waterclock.batching.rate.rule import ERA
from waterclock.errors import LongCallWarning
from waterclock.message import Message
from waterclock.time import format_duration


def warn_of_long_call(messages: list[Message], batch_length: int) -> None:
    """Warn if one stream's messages, which arrived together, are more than 1000 batch lengths (ns) apart.

    Streams far from each other are not a backlog: the clock of one is wrong.
    """
    farthest = ERA * batch_length
    last = {message.stream: message.event_time for message in messages}
    if not any(2 * abs(message.event_time - last[message.stream]) > farthest for message in messages):
        return
    bounds: dict[str, tuple[int, int]] = {}
    for message in messages:
        time = message.event_time
        oldest, newest = bounds.get(message.stream, (time, time))
        bounds[message.stream] = min(oldest, time), max(newest, time)
    for stream, (oldest, newest) in bounds.items():
        if newest - oldest > farthest:
            warn(f"source {quoted(messages[0].source)}, stream {quoted(stream)}", batch_length)


def warn(name: str, batch_length: int) -> None:
    """Warn of a long call to ``name``. The text is the same for each call, so that Python shows it once."""
    warnings.warn(
        f"{name}: the event times of one call span more than {ERA} batch lengths of {format_duration(batch_length)}."
        " Messages that far from the open window join its batch and get no batches of their own. Pass a long"
        " backlog in several calls",
        LongCallWarning,
        stacklevel=4,
    )
