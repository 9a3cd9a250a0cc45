"""Draws states and the steps between them: boxes on a grid, and arrows with the words of what makes each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from xml.etree.ElementTree import Element

from waterclock._support.quoting import counted, quoted
from waterclock.errors import InvalidArgumentError
from waterclock.figures.glyphs import Point
from waterclock.figures.panel import HEADER, MARGIN, panel
from waterclock.figures.svg import add, number, path, text_width

_COLUMN, _ROW = 176, 104
_WIDE, _TALL = 112, 38
_DOT = 7
_HEAD = 7
_SIZE = 11


@dataclass(frozen=True, slots=True)
class Box:
    """A state in the picture.

    Attributes
    ----------
    name
        The state; "" draws the dot at which lives begin and end.
    column, row
        Its place on the grid, from 0; halves are places, too.
    """

    name: str
    column: float
    row: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """A step in the picture.

    Attributes
    ----------
    source, target
        Keys of boxes.
    words
        What makes the step.
    via
        Places on the grid, each a column and a row, at which the arrow turns.
    shift
        How far it lies to the right of the straight line, px, looking along it: so two arrows between the same boxes
        lie apart.
    at
        Where along it the words stand, from 0 to 1.
    """

    source: str
    target: str
    words: str
    via: Sequence[Point] = ()
    shift: float = 0
    at: float = 0.5


def state_diagram(boxes: dict[str, Box], arrows: Sequence[Arrow], *, title: str) -> str:
    """Draw states and steps as SVG text. The same input gives the same bytes.

    Parameters
    ----------
    boxes
        The states by key.

    Raises
    ------
    InvalidArgumentError
        Where there is no state, or an arrow begins or ends at none of them.
    """
    if not boxes:
        raise InvalidArgumentError("boxes: there is no state to draw; give at least one")
    for arrow in arrows:
        for end in (arrow.source, arrow.target):
            if end not in boxes:
                raise InvalidArgumentError(f"arrows: {quoted(end)} is none of the states; they are {', '.join(boxes)}")
    places = [(box.column, box.row) for box in boxes.values()] + [place for arrow in arrows for place in arrow.via]
    columns, rows = (max(place[axis] for place in places) for axis in (0, 1))
    content = Element("g")
    # All lines before all words, so that no line crosses out a word.
    courses = [_course(arrow, boxes) for arrow in arrows]
    path(content, "link", [_line(course) for course in courses])
    for course in courses:
        add(content, "polygon", class_="muted", points=_head(course))
    for box in boxes.values():
        _draw_box(content, box)
    for arrow, course in zip(arrows, courses, strict=True):
        _draw_words(content, arrow, course)
    states = sum(bool(box.name) for box in boxes.values())
    summary = f"{counted(states, 'state')}, {counted(len(arrows), 'step')}"
    width = 2 * MARGIN + _WIDE + columns * _COLUMN
    return panel(width, HEADER + _TALL + rows * _ROW + MARGIN, title, summary, [content])


def _centre(place: Point) -> Point:
    return MARGIN + _WIDE / 2 + place[0] * _COLUMN, HEADER + _TALL / 2 + place[1] * _ROW


def _course(arrow: Arrow, boxes: dict[str, Box]) -> list[Point]:
    """Give the points of an arrow, from border to border."""
    ends = [boxes[arrow.source], boxes[arrow.target]]
    places = [(ends[0].column, ends[0].row), *arrow.via, (ends[1].column, ends[1].row)]
    points = [_centre(place) for place in places]
    if arrow.shift and len(points) == len(ends):
        (x0, y0), (x1, y1) = points
        length = hypot(x1 - x0, y1 - y0) or 1
        dx, dy = -(y1 - y0) / length * arrow.shift, (x1 - x0) / length * arrow.shift
        points = [(x0 + dx, y0 + dy), (x1 + dx, y1 + dy)]
    points[0] = _border(ends[0], points[0], points[1])
    points[-1] = _border(ends[1], points[-1], points[-2])
    return points


def _border(box: Box, inside: Point, outside: Point) -> Point:
    """Find where the way from a point in a box to one outside crosses its border."""
    half = (_DOT, _DOT) if not box.name else (_WIDE / 2, _TALL / 2)
    middle = _centre((box.column, box.row))
    steps: list[float] = []
    for axis in (0, 1):
        way = outside[axis] - inside[axis]
        if way:
            edge = middle[axis] + (half[axis] if way > 0 else -half[axis])
            steps.append((edge - inside[axis]) / way)
    share = max(0.0, min(steps, default=0.0))
    return inside[0] + share * (outside[0] - inside[0]), inside[1] + share * (outside[1] - inside[1])


def _line(course: Sequence[Point]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in course)


def _head(course: Sequence[Point]) -> str:
    (x0, y0), (x1, y1) = course[-2:]
    length = hypot(x1 - x0, y1 - y0) or 1
    along, across = ((x1 - x0) / length * _HEAD, (y1 - y0) / length * _HEAD), 0.5
    corners = [
        (x1, y1),
        (x1 - along[0] - across * along[1], y1 - along[1] + across * along[0]),
        (x1 - along[0] + across * along[1], y1 - along[1] - across * along[0]),
    ]
    return " ".join(f"{number(x)},{number(y)}" for x, y in corners)


def _draw_box(parent: Element, box: Box) -> None:
    x, y = _centre((box.column, box.row))
    if not box.name:
        add(parent, "circle", class_="muted", cx=x, cy=y, r=_DOT)
        return
    add(parent, "rect", class_="odd", x=x - _WIDE / 2, y=y - _TALL / 2, width=_WIDE, height=_TALL, rx=8)
    add(parent, "text", class_="ink name middle", x=x, y=y + 4, content=box.name)


def _draw_words(parent: Element, arrow: Arrow, course: Sequence[Point]) -> None:
    lengths = [hypot(x1 - x0, y1 - y0) for (x0, y0), (x1, y1) in pairwise(course)]
    left = arrow.at * sum(lengths)
    for ((x0, y0), (x1, y1)), length in zip(pairwise(course), lengths, strict=True):
        if left <= length:
            share = left / (length or 1)
            x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
            wide = text_width(arrow.words, _SIZE) + 2
            add(parent, "rect", class_="panel", x=x - wide / 2, y=y - 8, width=wide, height=15)
            add(parent, "text", class_="ink middle", x=x, y=y + 4, content=arrow.words)
            return
        left -= length
