"""Traffic with a clock that is wrong, a silence, and traffic again."""

from __future__ import annotations

from tests.batching.rate.traffic import message, pulses

from waterclock.message import Message

SILENCE = 1200


def wild(seconds: tuple[float, float], offset: int, rate: int = 1) -> list[tuple[int, Message]]:
    """Make a monitor whose clock is ``offset`` (ns) off, each message with the time at which it arrives."""
    messages = pulses("mon", rate, *seconds, phase=0.01)
    return [(m.event_time, message("mon", m.event_time + offset)) for m in messages]


def arriving(*arrivals: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
    return sorted((pair for pairs in arrivals for pair in pairs), key=lambda pair: pair[0])


def on_time(messages: list[Message]) -> list[tuple[int, Message]]:
    return [(m.event_time, m) for m in messages]


def in_calls(arrivals: list[tuple[int, Message]], length: int | None) -> list[list[Message]]:
    """Cut into calls of a length of time (ns), or of one message each."""
    calls: dict[int, list[Message]] = {}
    for number, (arrival, m) in enumerate(arrivals):
        calls.setdefault(number if length is None else arrival // length, []).append(m)
    return list(calls.values())


def before_and_after_the_silence(offset: int, length: int | None) -> list[list[Message]]:
    detector = pulses("det", 14, 0, 20) + pulses("det", 14, 20 + SILENCE, 60 + SILENCE)
    broken = wild((0, 20), offset) + wild((20 + SILENCE, 60 + SILENCE), offset)
    return in_calls(arriving(on_time(detector), broken), length)


def a_broken_stream_alone_in_the_silence(
    offset: int, length: int | None, rate: int = 1, phase: float = 0.0
) -> list[list[Message]]:
    detector = pulses("det", 14, 0, 60, phase) + pulses("det", 14, 60 + SILENCE, 120 + SILENCE, phase)
    return in_calls(arriving(on_time(detector), wild((2, 120 + SILENCE), offset, rate)), length)
