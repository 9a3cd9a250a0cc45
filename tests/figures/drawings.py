"""Reads drawings back: what a test may ask of an SVG picture."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from waterclock.batching.batch import Batch, CloseReason, Rejection, RejectReason
from waterclock.message import Message

SECOND = 1_000_000_000
SVG = "{http://www.w3.org/2000/svg}"


def message(source: str = "press-01", stream: str = "load", at: int = 0, received: int | None = None) -> Message:
    return Message(source, stream, at, receive_time=at + 10 if received is None else received)


def batch(*messages: Message, length: int = SECOND, reason: CloseReason = "timeout", source: str = "press-01") -> Batch:
    start = messages[0].event_time
    return Batch(source, start, start + length, start + length + SECOND, reason, messages)


def rejection(reason: RejectReason, source: str = "press-01", at: int = 0, stream: str = "load") -> Rejection:
    return Rejection(message(source, stream, at), reason)


def parse(picture: str) -> ET.Element:
    root = ET.fromstring(picture)  # noqa: S314  # our own text
    assert root.tag == f"{SVG}svg"
    return root


def words(picture: str) -> list[str]:
    """All texts of the picture, from top to bottom as written."""
    return [element.text or "" for element in parse(picture).iter(f"{SVG}text")]


def paths(picture: str, class_: str) -> list[str]:
    """The data of all paths of exactly this class, those of the legend and of the flags not among them."""
    root = parse(picture)
    aside = {path for group in root.iter(f"{SVG}g") if group.get("class") in ("legend", "flags") for path in group}
    return [path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("class") == class_ and path not in aside]


def dot_count(picture: str, kind: str = "message") -> int:
    return sum(data.count("h0") for data in paths(picture, f"{kind} dots"))


def glyph_count(picture: str, kind: str) -> int:
    # Every glyph begins with a move; only the cross and the plus have a second one, a relative one.
    return sum(data.count("M") for data in paths(picture, f"{kind} glyph"))


def dot_places(data: str) -> list[tuple[float, float]]:
    """Where the dots of a path lie."""
    x = y = 0.0
    places: list[tuple[float, float]] = []
    for dx, dy in re.findall(r"m(-?[\d.]+) ?(-?[\d.]+)h0", data):
        x, y = x + float(dx), y + float(dy)
        places.append((round(x, 1), round(y, 1)))
    return places
