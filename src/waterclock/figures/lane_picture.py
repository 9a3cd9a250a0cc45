"""Draws one lane of a timeline: windows, messages, counts of rejected messages, and the reasons why windows closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from xml.etree.ElementTree import Element

from waterclock._support.quoting import counted
from waterclock.figures.glyphs import GLYPHS, Point, bars, box, dots, window
from waterclock.figures.lanes import Lane
from waterclock.figures.scale import Scale
from waterclock.figures.svg import add, path, shorten, text_width
from waterclock.figures.theme import REJECTED
from waterclock.message import Message

LANE_HEIGHT = 66
_FLAGS = 15  # the strip at the top where rejected messages are counted
_WORDS = 13  # the strip at the bottom where close reasons stand
_WINDOW = LANE_HEIGHT - _FLAGS
_DOTS = _WINDOW - _WORDS
_PAD = 4
_BAR = 5
_SEAM = 2  # windows closer together than this are merged if there are too many
_SMALL = 9
_GLYPH = 11
_FLAG = 44  # a glyph, a number of a few digits, and space


class Detail(Enum):
    """How much of a message fits into the picture."""

    GLYPH = "a mark of its own"
    DOT = "a dot"
    BAR = "counted in a bar"


def draw_lane(
    parent: Element, lane: Lane, top: float, scale: Scale, detail: Detail, *, merge_windows: bool = False
) -> None:
    """Draw ``lane`` with its upper edge at ``top`` (px) between the edges of ``scale``.

    With ``merge_windows`` one shade shows the area of all windows together.
    """
    wide = scale.right - scale.left
    add(parent, "rect", class_="lane", x=scale.left, y=top, width=wide, height=LANE_HEIGHT, rx=4)
    _draw_name(parent, lane, top, scale.left - 12)
    if merge_windows:
        covered = _cover([(scale.x(batch.start), scale.x(batch.end)) for batch in lane.batches])
        path(parent, "odd", (box(left, right, top + _FLAGS, _WINDOW) for left, right in covered))
    else:
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
    outlines = [window(batch, scale, top, _WINDOW) for batch in lane.batches]
    path(parent, "odd", outlines[::2])
    path(parent, "even", outlines[1::2])
    for batch in lane.batches:
        left, right = scale.x(batch.start), scale.x(batch.end)
        if text_width(batch.reason, _SMALL) <= right - left:
            middle, base = (left + right) / 2, top + _WINDOW - 4
            add(parent, "text", class_="ink small middle", x=middle, y=base, content=batch.reason)


def _cover(edges: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    left, right = edges[0]
    for next_left, next_right in edges:
        if next_left > right + _SEAM:
            yield left, right
            left = next_left
        right = max(right, next_right)
    yield left, right


def _draw_messages(parent: Element, lane: Lane, top: float, scale: Scale, detail: Detail) -> None:
    ranks = lane.streams()
    pitch = (_DOTS - 2 * _PAD) / max(1, len(ranks) - 1)
    radius = min(max(pitch * 0.45, 1.1), 3)

    def point(message: Message) -> Point:
        rank = ranks[message.stream] if len(ranks) > 1 else 0.5
        return scale.x(message.event_time), top + _PAD + pitch * rank

    path(parent, "message dots", dots(point(message) for message in lane.accepted), stroke_width=2 * radius)
    path(parent, "outside dots", dots(point(message) for message in lane.outside), stroke_width=2 * radius)
    for kind in REJECTED:
        points = [point(message) for message, reason in lane.rejected if reason == kind]
        if detail is Detail.GLYPH:
            path(parent, f"{kind} glyph", (GLYPHS[kind](x, y, max(radius, 2)) for x, y in points))
        else:
            path(parent, f"{kind} dots", dots(points), stroke_width=2 * radius)


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
    group = add(parent, "g", class_="flags")
    y = top + _FLAGS / 2
    glyphs: dict[str, list[str]] = {kind: [] for kind in REJECTED}
    for first, last, counts in _flags(lane, scale):
        parts = [(kind, f"{counts[kind]:,}" if counts[kind] > 1 else "") for kind in REJECTED if kind in counts]
        widths = [_GLYPH + text_width(words, _SMALL) for _, words in parts]
        whole = sum(widths)
        x = min(max((first + last - whole) / 2, scale.left), scale.right - whole)
        for (kind, words), wide in zip(parts, widths, strict=True):
            glyphs[kind].append(GLYPHS[kind](x + _GLYPH / 2, y, 3))
            if words:
                add(group, "text", class_=f"{kind} small", x=x + _GLYPH, y=y + 3, content=words)
            x += wide
    for kind, pieces in glyphs.items():
        path(group, f"{kind} glyph", pieces)


def _flags(lane: Lane, scale: Scale) -> Iterator[tuple[float, float, Counter[str]]]:
    # A flag counts messages whose marks would overlap: it covers messages up to the width of its text.
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
