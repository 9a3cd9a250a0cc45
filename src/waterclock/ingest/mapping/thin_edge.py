"""Reads measurements of thin-edge.io: ``te/DEVICE-OR-SERVICE/m/TYPE`` with a JSON object of numbers.

The four levels after the root identify the entity, for example ``device/main//``. Each number of the payload is a
separate stream, even if it is in a group of numbers. The format is thin-edge.io's "Thin Edge JSON".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.json_values import JsonNumber, check_text, read_json
from waterclock.ingest.mapping.mapped import Reading
from waterclock.ingest.mapping.times import parse_time, parse_unix_time

_LEVELS = 7  # root, four of the entity, channel, type
_CHANNEL = "m"


def thin_edge_topic(topic: str) -> tuple[str, str]:
    """Split a measurement's topic into source and type.

    Returns the entity without the slashes of its empty last levels, and the type, which may be empty. Raises
    `InvalidArgumentError` if the topic has another form.
    """
    levels = topic.split("/")
    source = "/".join(levels[1:5]).rstrip("/")
    if len(levels) != _LEVELS or levels[5] != _CHANNEL or not source:
        raise InvalidArgumentError(
            f"topic must be te/DEVICE/NAME/SERVICE/NAME/m/TYPE, as in thin-edge.io, got {quoted(topic)}"
        )
    return source, levels[6]


def map_thin_edge(source: str, kind: str, payload: bytes) -> list[Reading]:
    """Map one payload: its ``time`` is ISO 8601 or Unix seconds, and each number or group of numbers is a stream."""
    content = read_json(payload)
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"payload must be a JSON object, got {quoted(payload)}")
    fields = cast("dict[str, object]", content)
    time = fields.pop("time", None)
    match time:
        case None:
            event_time = None
        case JsonNumber():
            event_time = parse_unix_time(time.text)
        case str():
            event_time = parse_time(time)
        case _:
            raise InvalidArgumentError(f"time must be ISO 8601 or Unix seconds, got {quoted(time)}")
    prefix = f"{kind}/" if kind else ""
    readings = [
        Reading(source, check_text(prefix + name, "stream"), event_time, number.text.encode())
        for name, number in _numbers(fields)
    ]
    if not readings:
        raise InvalidArgumentError(f"payload must have a measurement, got {quoted(payload)}")
    return readings


def _numbers(fields: dict[str, object]) -> Iterator[tuple[str, JsonNumber]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            for inner, number in cast("dict[str, object]", value).items():
                yield f"{name}/{inner}", _number(f"{name}.{inner}", number)
        else:
            yield name, _number(name, value)


def _number(name: str, value: object) -> JsonNumber:
    if not name or not isinstance(value, JsonNumber):
        raise InvalidArgumentError(f"{quoted(name)} must be a number, or a group of numbers, got {quoted(value)}")
    return value
