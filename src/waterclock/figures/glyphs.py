"""The shapes of messages, windows and cuts, as pieces of SVG path data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from waterclock.batching.batch import Batch
from waterclock.figures.scale import Scale
from waterclock.figures.svg import number

Point = tuple[float, float]

CUTS = ("conflict", "boundary")
"""The close reasons of batches whose windows were cut short."""


def dots(points: Iterable[Point]) -> Iterator[str]:
    """Draw a dot at every point: strokes of no length, which round line caps make visible.

    Points close together cost least when they follow one another, so they are sorted.
    """
    at_x = at_y = 0
    for x, y in sorted((round(10 * x), round(10 * y)) for x, y in points):
        yield f"m{_pair((x - at_x) / 10, (y - at_y) / 10)}h0"
        at_x, at_y = x, y


def bars(columns: Iterable[tuple[float, float, float]]) -> Iterator[str]:
    """Draw vertical strokes, each from ``(x, bottom)`` up by a height."""
    for x, bottom, height in columns:
        yield f"M{_pair(x, bottom)}v{number(-height)}"


def box(left: float, right: float, top: float, height: float) -> str:
    """Outline a window, at least a third of a pixel wide."""
    width = number(max(right - left, 0.3))
    return f"M{_pair(left, top)}h{width}v{number(height)}h-{width}z"


def window(batch: Batch, scale: Scale, top: float, height: float) -> str:
    """Outline the window of ``batch``, with a torn edge if it was cut within the edges of ``scale``."""
    outline = torn_box if batch.reason in CUTS and scale.holds(batch.end) else box
    return outline(scale.x(batch.start), scale.x(batch.end), top, height)


def torn_box(left: float, right: float, top: float, height: float) -> str:
    """Outline a cut window: its right edge is torn, as deep as the space allows."""
    teeth = max(2, round(height / 8))
    half = number(height / teeth / 2)
    depth = min(4, (right - left) / 2)
    inward, outward = number(-depth), number(depth)
    edge = f"l{inward} {half}l{outward} {half}" * teeth
    return f"M{_pair(left, top)}H{number(right)}{edge}H{number(left)}z"


def _pair(x: float, y: float) -> str:
    second = number(y)
    return f"{number(x)}{second}" if second.startswith("-") else f"{number(x)} {second}"


def _cross(x: float, y: float, r: float) -> str:
    d, back = number(2 * r), number(-2 * r)
    return f"M{_pair(x - r, y - r)}l{d} {d}m0{back}l{back} {d}"


def _triangle(x: float, y: float, r: float) -> str:
    return f"M{_pair(x - r, y - r)}v{number(2 * r)}l{number(2 * r)}{number(-r)}z"


def _circle(x: float, y: float, r: float) -> str:
    arc = f"a{number(r)} {number(r)} 0 1 0"
    return f"M{_pair(x - r, y)}{arc} {number(2 * r)} 0{arc} {number(-2 * r)} 0z"


def _diamond(x: float, y: float, r: float) -> str:
    d, back = number(r), number(-r)
    return f"M{_pair(x, y - r)}l{d} {d}l{back} {d}l{back}{back}z"


def _plus(x: float, y: float, r: float) -> str:
    return f"M{_pair(x - r, y)}h{number(2 * r)}m{_pair(-r, -r)}v{number(2 * r)}"


def _square(x: float, y: float, r: float) -> str:
    return box(x - r, x + r, y - r, 2 * r)


GLYPHS: dict[str, Callable[[float, float, float], str]] = {
    "late": _cross,
    "future": _triangle,
    "duplicate": _circle,
    "replaced": _diamond,
    "no_id": _plus,
    "undeclared": _square,
}
"""The shape of each kind of rejected message, given its centre and its radius (px)."""
