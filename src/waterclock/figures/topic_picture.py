"""Draws a topic over time: ledgers as blocks, the running maximum of times as a line, and subscriptions as flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.etree.ElementTree import Element

from waterclock.figures.glyphs import box
from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.figures.svg import Svg, add, number, path, picture, shorten, text_width, to_text
from waterclock.time import format_time

_SIDE = 14
_PLOT = 120
_STRIP = 24
_GAP = 10
_AXIS = 42
_FLAG_ROW = 18
_MOST_FLAG_ROWS = 6
_TICK_EVERY = 90
_FONT = 11
_HATCH = 6
_DAMAGED = frozenset({"lost", "missing"})


@dataclass(frozen=True, slots=True)
class TopicBlock:
    """One ledger, or several side by side."""

    label: str  # its tooltip
    state: str  # ``open``, ``closed``, ``sealed``, ``lost`` or ``missing``
    # Its times, ns; None: not known.
    begin: int | None
    end: int | None
    peak: int | None  # the running maximum after it, ns; None: unknown
    # Numbers of its first message, and of the one after its last.
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Flag:
    """A place in the topic with a name."""

    # The text next to it, and its tooltip.
    name: str
    label: str
    ordinal: int  # number of its message
    time: int | None = None  # draw a line at this time, ns, instead of the time of the message


@dataclass(frozen=True, slots=True)
class TopicView:
    """The contents of a picture: blocks in order, and flags, from ``start`` to ``end`` (ns)."""

    start: int
    end: int
    blocks: Sequence[TopicBlock]
    flags: Sequence[Flag] = field(default_factory=tuple[Flag, ...])
    trimmed: str = ""


def topic_picture(view: TopicView, title: str, description: str, width: int = 1000) -> Svg:
    """Draw a topic, in the classes of `waterclock.figures.theme`, whose style sheet the page holds."""
    scale = Scale(view.start, max(view.end, view.start + 1), _SIDE, width - _SIDE)
    line = _running_maximum(view, scale)
    flags = [(flag, _flag_place(flag, view, scale, line)) for flag in view.flags]
    rows = _flag_rows([(flag, place[0]) for flag, place in flags], scale)
    top = 6 + _FLAG_ROW * (1 + max((row for row in rows if row is not None), default=-1))
    strip = top + _PLOT + _GAP
    root = picture(width, strip + _STRIP + _AXIS, title, description, "")
    add(root, "rect", class_="lane", x=_SIDE, y=top, width=width - 2 * _SIDE, height=_PLOT, rx=4)
    _draw_axis(root, scale, top, strip + _STRIP)
    _draw_blocks(root, view, scale, strip)
    points = "L".join(f"{number(x)} {number(top + _PLOT * (1 - y))}" for x, y in line)
    path(root, "running", [f"M{points}"] if line else [])
    for (flag, (x, y)), row in zip(flags, rows, strict=True):
        _draw_flag(root, flag, x, top + _PLOT * (1 - y), row, strip, scale)
    return to_text(root)


def _running_maximum(view: TopicView, scale: Scale) -> list[tuple[float, float]]:
    """Return the points of the line: px, and the fraction of the messages up to there."""
    if not view.blocks:
        return []
    first, last = view.blocks[0].first, max(view.blocks[-1].last, view.blocks[0].first + 1)
    points: list[tuple[float, float]] = []
    reached: int | None = None
    for block in view.blocks:
        if block.peak is None:
            continue
        start = block.peak if block.begin is None else block.begin
        start = start if reached is None else max(start, reached)
        reached = block.peak
        points.append((scale.x(min(start, reached)), (block.first - first) / (last - first)))
        points.append((scale.x(reached), (block.last - first) / (last - first)))
    return points


def _flag_place(flag: Flag, view: TopicView, scale: Scale, line: Sequence[tuple[float, float]]) -> tuple[float, float]:
    if not line:
        return scale.right if flag.time is None else scale.x(flag.time), 0
    first, last = view.blocks[0].first, max(view.blocks[-1].last, view.blocks[0].first + 1)
    y = min(max((flag.ordinal - first) / (last - first), 0), 1)
    if flag.time is not None:
        return scale.x(flag.time), y
    for (left, low), (right, high) in pairwise(line):
        if low <= y <= high:
            part = 1 if high == low else (y - low) / (high - low)
            return left + (right - left) * part, y
    return line[-1][0] if y > line[-1][1] else line[0][0], y


def _name_of(flag: Flag) -> str:
    return shorten(flag.name, _FONT, 150)


def _flag_rows(flags: Sequence[tuple[Flag, float]], scale: Scale) -> list[int | None]:
    """Choose for each flag a row in which its name overlaps no other; None if they do not fit."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_MOST_FLAG_ROWS)]
    rows: list[int | None] = []
    for flag, x in flags:
        left, right = _name_edges(flag, x, scale)
        chosen = None
        for row, spans in enumerate(taken):
            if all(right < other_left or left > other_right for other_left, other_right in spans):
                spans.append((left, right))
                chosen = row
                break
        rows.append(chosen)
    return rows


def _name_edges(flag: Flag, x: float, scale: Scale) -> tuple[float, float]:
    wide = text_width(_name_of(flag), _FONT) + 16
    return (x, x + wide) if x + wide <= scale.right or x - wide < 0 else (x - wide, x)


def _draw_flag(parent: Element, flag: Flag, x: float, y: float, row: int | None, strip: float, scale: Scale) -> None:
    group = add(parent, "g", class_="flag" if flag.time is None else "flag chosen")
    add(group, "title", content=flag.label)
    top = 6.0 if row is None else 6 + row * _FLAG_ROW
    path(group, "pole", [f"M{number(x)} {number(top)}V{number(strip + _STRIP)}"])
    add(group, "circle", class_="spot", cx=x, cy=y, r=4)
    if row is None:
        return
    left, _ = _name_edges(flag, x, scale)
    to_left = left < x
    tip = -7 if to_left else 7
    path(group, "cloth", [f"M{number(x)} {number(top)}l{number(tip)} 5l{number(-tip)} 5z"])
    side = "ink end" if to_left else "ink"
    add(group, "text", class_=side, x=x - 10 if to_left else x + 10, y=top + 9, content=_name_of(flag))


def _draw_blocks(parent: Element, view: TopicView, scale: Scale, top: float) -> None:
    known = 0
    reached = view.start
    for block in view.blocks:
        if block.last <= block.first:
            continue
        begin, end = block.begin, block.end
        if begin is None or end is None:
            begin = reached if block.peak is None else min(reached, block.peak)
            end = reached if block.peak is None else block.peak
        reached = max(reached, end)
        left, right = scale.x(begin), max(scale.x(end), scale.x(begin) + 2)
        group = add(parent, "g", class_=f"block {block.state}")
        add(group, "title", content=block.label)
        shade = "odd" if known % 2 else "even"
        known += 1
        path(group, f"{shade} body", [box(left, right, top, _STRIP)])
        if block.state in _DAMAGED:
            path(group, "damage", _hatch(left, max(right, left + _HATCH), top))
        label = {"lost": "lost", "missing": "missing", "open": "open"}.get(block.state, "")
        if label and text_width(label, _FONT) + 6 <= right - left:
            middle = (left + right) / 2
            add(group, "text", class_="ink middle", x=middle, y=top + _STRIP / 2 + 4, content=label)
    if view.trimmed:
        group = add(parent, "g", class_="block trimmed")
        add(group, "title", content=view.trimmed)
        path(group, "cut", [f"M{number(scale.left - 8)} {number(top)}l4 6l-4 6l4 6l-4 6"])


def _hatch(left: float, right: float, top: float) -> list[str]:
    count = min(int((right - left) // _HATCH) + 1, 200)
    wide = (right - left) / count
    lines = (left + wide * place for place in range(count))
    return [f"M{number(x)} {number(top + _STRIP)}L{number(min(x + wide, right))} {number(top)}" for x in lines]


def _draw_axis(parent: Element, scale: Scale, top: float, bottom: float) -> None:
    step = tick_step(scale.end - scale.start, max(2, int((scale.right - scale.left) // _TICK_EVERY)))
    for elapsed in range(0, scale.end - scale.start + 1, step):
        x = scale.x(scale.start + elapsed)
        add(parent, "path", class_="grid", d=f"M{number(x)} {number(top)}V{number(bottom + 5)}")
        side = "muted" if elapsed == 0 else "muted middle"
        if x + 30 <= scale.right:
            add(parent, "text", class_=side, x=x, y=bottom + 18, content=tick_label(elapsed, step))
    zero = f"{tick_label(0, step)} is {format_time(scale.start)} (UTC)"
    room = scale.right - scale.left
    add(parent, "text", class_="muted", x=scale.left, y=bottom + 36, content=shorten(zero, _FONT, room))
