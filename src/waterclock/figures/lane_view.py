"""Draws batches over event time for web pages that zoom. Draws message counts, so it works for any number of messages.

`waterclock.figures.timeline` draws batches that are in memory. This module draws counts from a server. A lane shows
messages as dots if they fit, and otherwise as bars. Windows are shaded, and colour and shape distinguish rejected
messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from waterclock.figures.glyphs import CUTS, GLYPHS, bars, box, dots, torn_box
from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.figures.svg import Svg, add, number, path, picture, shorten, text_width, to_text
from waterclock.time import format_time

_SIDE = 10

BARS = (1000 - 2 * _SIDE) // 4
"""Bars on the axis of a picture of the usual width: one every 4 px."""

_NAME = 18  # the strip above a lane that names it
_REASONS = 14  # the strip at the bottom of a lane for close reasons
_HEIGHT = 62
_GAP = 8
_AXIS = 42
_TICK_EVERY = 90
_FONT = 11
_SMALL = 9
_PAD = 5
_GLYPH = 3.2
_OPEN = "open"


@dataclass(frozen=True, slots=True)
class ShownWindow:
    """A window: its times (ns), why it closed (``open`` if it has not), and its tooltip."""

    start: int
    end: int
    reason: str
    label: str


@dataclass(frozen=True, slots=True)
class ShownLane:
    """A lane of a picture."""

    # The texts above it, on the left and on the right.
    name: str
    note: str = ""
    windows: Sequence[ShownWindow] = ()  # in order of start
    # Each message: time (ns), its height in the lane from 0 to 1, and its verdict.
    dots: Sequence[tuple[int, float, str]] = ()
    # Instead of dots, by verdict, how many messages lie in each of `BARS` equal parts of the axis.
    bars: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    clock: int | None = None  # its clock, ns; None: unknown


def lane_view(
    start: int, end: int, lanes: Sequence[ShownLane], title: str, description: str, width: int = 1000, clock: str = ""
) -> Svg:
    """Draw lanes from ``start`` to ``end`` (ns); ``clock`` names the mark of their clocks."""
    scale = Scale(start, end, _SIDE, width - _SIDE)
    bottom = len(lanes) * (_NAME + _HEIGHT + _GAP)
    root = picture(width, bottom + _AXIS, title, description, "")
    _draw_axis(root, scale, bottom - _GAP)
    for row, lane in enumerate(lanes):
        _draw_lane(root, lane, row * (_NAME + _HEIGHT + _GAP), scale, clock)
    return to_text(root)


def _draw_lane(root: Element, lane: ShownLane, top: float, scale: Scale, clock: str) -> None:
    room = scale.right - scale.left
    note = shorten(lane.note, _FONT, room / 2)
    name = shorten(lane.name, 13, room - text_width(note, _FONT) - 20)
    named = add(root, "text", class_="ink name", x=scale.left, y=top + 13, content=name)
    add(named, "title", content=lane.name)
    add(root, "text", class_="muted end", x=scale.right, y=top + 13, content=note)
    body = top + _NAME
    add(root, "rect", class_="lane", x=scale.left, y=body, width=room, height=_HEIGHT, rx=3)
    for place, each in enumerate(lane.windows):
        _draw_window(root, each, place, body, scale)
    if lane.bars:
        _draw_bars(root, lane.bars, body, scale)
    else:
        _draw_dots(root, lane.dots, body, scale)
    if lane.clock is not None and scale.holds(lane.clock):
        x = scale.x(lane.clock)
        mark = add(root, "g", class_="clock")
        add(mark, "title", content=f"{clock}: {format_time(lane.clock)}")
        path(mark, "mark", [f"M{number(x)} {number(body - 2)}V{number(body + _HEIGHT)}"])
        path(mark, "head", [f"M{number(x - 4)} {number(body - 3)}h8l-4 6z"])


def _draw_window(root: Element, shown: ShownWindow, place: int, top: float, scale: Scale) -> None:
    left, right = scale.x(shown.start), scale.x(shown.end)
    group = add(root, "g", class_=f"window {'open' if shown.reason == _OPEN else 'decided'}")
    add(group, "title", content=shown.label)
    outline = torn_box if shown.reason in CUTS and scale.holds(shown.end) else box
    path(group, f"{'odd' if place % 2 else 'even'} body", [outline(left, right, top, _HEIGHT)])
    if text_width(shown.reason, _SMALL) + 2 <= right - left:
        middle = (left + right) / 2
        add(group, "text", class_="ink small middle", x=middle, y=top + _HEIGHT - 4, content=shown.reason)


def _draw_dots(root: Element, messages: Sequence[tuple[int, float, str]], top: float, scale: Scale) -> None:
    room = _HEIGHT - _REASONS - 2 * _PAD
    by_verdict: dict[str, list[tuple[float, float]]] = {}
    for time, height, verdict in messages:
        by_verdict.setdefault(verdict, []).append((scale.x(time), top + _PAD + room * height))
    for verdict, points in by_verdict.items():
        if verdict in GLYPHS:
            path(root, f"{verdict} glyph", (GLYPHS[verdict](x, y, _GLYPH) for x, y in points))
        else:
            name = "waiting" if verdict == _OPEN else "message"
            path(root, f"{name} dots", dots(points), stroke_width=5 if verdict == _OPEN else 4)


def _draw_bars(root: Element, counts: Mapping[str, Sequence[int]], top: float, scale: Scale) -> None:
    parts = len(next(iter(counts.values())))
    wide = (scale.right - scale.left) / parts
    most = max(sum(column) for column in zip(*counts.values(), strict=True))
    if not most:
        return
    per_message = (_HEIGHT - _REASONS - _PAD) / most
    reached = [0] * parts
    # Rejected ones are at the bottom, where even a few are visible.
    for verdict in sorted(counts, key=lambda one: one not in GLYPHS):
        columns: list[tuple[float, float, float]] = []
        for place, count in enumerate(counts[verdict]):
            if count:
                x = scale.left + (place + 0.5) * wide
                base = top + _HEIGHT - _REASONS - reached[place] * per_message
                columns.append((x, base, max(count * per_message, 1)))
                reached[place] += count
        name = {"accepted": "message", _OPEN: "waiting"}.get(verdict, verdict)
        path(root, f"{name} bars", bars(columns), stroke_width=max(wide - 0.8, 0.8))
        if verdict in GLYPHS:
            highest = max(columns, key=lambda column: column[2], default=None)
            if highest is not None:
                path(root, f"{verdict} glyph", [GLYPHS[verdict](highest[0], highest[1] + 7, _GLYPH)])


def _draw_axis(root: Element, scale: Scale, bottom: float) -> None:
    step = tick_step(scale.end - scale.start, max(2, int((scale.right - scale.left) // _TICK_EVERY)))
    for elapsed in range(0, scale.end - scale.start + 1, step):
        x = scale.x(scale.start + elapsed)
        add(root, "path", class_="grid", d=f"M{number(x)} {number(_NAME)}V{number(bottom + 5)}")
        if x + 30 <= scale.right:
            side = "muted" if elapsed == 0 else "muted middle"
            add(root, "text", class_=side, x=x, y=bottom + 18, content=tick_label(elapsed, step))
    zero = f"{tick_label(0, step)} is {format_time(scale.start)} (UTC)"
    room = scale.right - scale.left
    add(root, "text", class_="muted", x=scale.left, y=bottom + 36, content=shorten(zero, _FONT, room))
