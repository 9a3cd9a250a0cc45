"""Draws one lane of a timeline: windows, messages, flags that count the rejected messages, and close reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from xml.etree.ElementTree import Element

from waterclock.figures.lanes import Lane
from waterclock.figures.marks import GLYPHS, Point, bars, box, cut_edge, dots
from waterclock.figures.scale import Scale
from waterclock.figures.svg import add, counted, path, shorten, text_width
from waterclock.figures.theme import REJECTED
from waterclock.message import Message

LANE_HEIGHT = 66
_FLAGS = 15  # the strip at the top where rejected messages are counted
_WORDS = 13  # the strip at the bottom where close reasons stand
_DOTS = LANE_HEIGHT - _FLAGS - _WORDS
_PAD = 4
_BAR = 3
_SMALL = 9
_GLYPH = 11
_FLAG = 34


class Detail(Enum):
    """How much of a message there is room to show."""

    GLYPH = "a mark of its own"
    DOT = "a dot"
    BAR = "counted in a bar"


def draw_lane(parent: Element, lane: Lane, top: float, scale: Scale, detail: Detail) -> None:
    """Draw ``lane`` with its upper edge at ``top`` (px) between the edges of ``scale``."""
    wide = scale.right - scale.left
    add(parent, "rect", class_="lane", x=scale.left, y=top, width=wide, height=LANE_HEIGHT, rx=4)
    _draw_name(parent, lane, top, scale.left - 12)
    _draw_windows(parent, lane, top + _FLAGS, scale)
    if detail is Detail.BAR:
        _draw_bars(parent, lane, top + _FLAGS, scale)
    else:
        _draw_messages(parent, lane, top + _FLAGS, scale, detail)
    _draw_flags(parent, lane, top, scale)


def _bar_counts(lane: Lane, scale: Scale) -> dict[str, Counter[int]]:
    counts: dict[str, Counter[int]] = {"message": Counter(_bar(message, scale) for message in lane.accepted)}
    for kind in REJECTED:
        counts[kind] = Counter(_bar(message, scale) for message, reason in lane.rejected if reason == kind)
    return counts


def _bar(message: Message, scale: Scale) -> int:
    return int((scale.x(message.event_time) - scale.left) // _BAR)


def _draw_name(parent: Element, lane: Lane, top: float, right: float) -> None:
    y = top + 24
    name = add(parent, "text", class_="ink name end", x=right, y=y, content=shorten(lane.source, 13, right - 12))
    add(name, "title", content=lane.source)
    lines = [counted(lane.size, "message"), counted(len(lane.batches), "batch", "batches")]
    for row, line in enumerate(lines, start=1):
        add(parent, "text", class_="muted end", x=right, y=y + 15 * row, content=line)


def _draw_windows(parent: Element, lane: Lane, top: float, scale: Scale) -> None:
    height = _DOTS + _WORDS
    edges = [(scale.x(batch.start), scale.x(batch.end)) for batch in lane.batches]
    # More windows than pixels cannot be told apart; what they cover together can still be seen.
    if len(edges) > (scale.right - scale.left) / 2:
        path(parent, "odd", (box(left, right, top, height) for left, right in _covered(edges)))
        return
    for shade in range(2):
        shaded = edges[shade::2]
        path(parent, ("odd", "even")[shade], (box(left, right, top, height) for left, right in shaded))
    torn = [right for batch, (_, right) in zip(lane.batches, edges, strict=True) if batch.reason == "conflict"]
    path(parent, "cut", (cut_edge(right, top, height) for right in torn if right < scale.right))
    for batch, (left, right) in zip(lane.batches, edges, strict=True):
        if text_width(batch.reason, _SMALL) + 4 <= right - left:
            middle, base = (left + right) / 2, top + height - 4
            add(parent, "text", class_="muted small middle", x=middle, y=base, content=batch.reason)


def _covered(edges: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    left, right = edges[0]
    for further_left, further_right in edges:
        if further_left > right + _BAR:
            yield left, right
            left = further_left
        right = max(right, further_right)
    yield left, right


def _draw_messages(parent: Element, lane: Lane, top: float, scale: Scale, detail: Detail) -> None:
    ranks = lane.streams()
    pitch = (_DOTS - 2 * _PAD) / max(1, len(ranks) - 1)
    radius = min(max(pitch * 0.45, 0.8), 3)

    def point(message: Message) -> Point:
        rank = ranks[message.stream] if len(ranks) > 1 else 0.5
        return scale.x(message.event_time), top + _PAD + pitch * rank

    stroke = {"stroke_width": 2 * radius}
    path(parent, "message dots", dots(point(message) for message in lane.accepted), **stroke)
    for kind in REJECTED:
        points = [point(message) for message, reason in lane.rejected if reason == kind]
        if detail is Detail.GLYPH:
            path(parent, f"{kind} glyph", (GLYPHS[kind](x, y, max(radius, 2)) for x, y in points))
        else:
            path(parent, f"{kind} dots", dots(points), **stroke)


def _draw_bars(parent: Element, lane: Lane, top: float, scale: Scale) -> None:
    counts = _bar_counts(lane, scale)
    together = sum(counts.values(), Counter[int]())
    if not together:
        return
    per_message = (_DOTS - _PAD) / max(together.values())
    reached: Counter[int] = Counter()
    for kind, by_bar in counts.items():
        columns: list[tuple[float, float, float]] = []
        for bar, count in sorted(by_bar.items()):
            x = scale.left + (bar + 0.5) * _BAR
            columns.append((x, top + _DOTS - reached[bar] * per_message, count * per_message))
            reached[bar] += count
        path(parent, f"{kind} bars", bars(columns), stroke_width=_BAR - 1)


def _draw_flags(parent: Element, lane: Lane, top: float, scale: Scale) -> None:
    y = top + _FLAGS / 2
    for first, last, counts in _flags(lane, scale):
        parts = [(kind, f"{counts[kind]:,}" if counts[kind] > 1 else "") for kind in REJECTED if kind in counts]
        widths = [_GLYPH + text_width(words, _SMALL) for _, words in parts]
        whole = sum(widths)
        x = min(max((first + last - whole) / 2, scale.left), scale.right - whole)
        for (kind, words), wide in zip(parts, widths, strict=True):
            path(parent, f"{kind} glyph", [GLYPHS[kind](x + _GLYPH / 2, y, 3)])
            if words:
                add(parent, "text", class_=f"{kind} small", x=x + _GLYPH, y=y + 3, content=words)
            x += wide


def _flags(lane: Lane, scale: Scale) -> Iterator[tuple[float, float, Counter[str]]]:
    # A flag counts what would otherwise be marks upon marks: it takes in messages until it is as wide as its text.
    room = _FLAG * max(1, len({reason for _, reason in lane.rejected}))
    counts: Counter[str] = Counter()
    first = last = 0.0
    for message, reason in lane.rejected:
        x = scale.x(message.event_time)
        if counts and x > first + room:
            yield first, last, counts
            counts = Counter()
        if not counts:
            first = x
        last = x
        counts[reason] += 1
    if counts:
        yield first, last, counts
