"""Draws how the clocks of streams differ from the receive clock. Each stream has a lane, with its offset as a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from waterclock._support.quoting import counted
from waterclock.batching.batch import Batch
from waterclock.batching.stream_clocks import offsets
from waterclock.figures.arguments import batch_list, check_frame
from waterclock.figures.panel import HEADER, MARGIN, empty_panel, panel
from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.figures.svg import Svg, add, number, path, shorten
from waterclock.time import format_time

_GUTTER = 150
_LANE = 54
_GAP = 8
_PAD = 6
_AXIS = 34
_TICK_EVERY = 80
_MOST_LANES = 12
_MOST_POINTS = 1_000
_LEAST_SPAN = 2_000_000  # ns, so that steady clocks look steady

Line = Sequence[tuple[int, int]]


def clock_offsets(
    batches: Iterable[Batch], *, width: int = 1000, title: str = "Clocks of the streams against the receive clock"
) -> Svg:
    """Draw the offset of each stream's clock over the receive time, as SVG text.

    The offset of a batch is the receive time minus the event time of its quickest messages, so that delays do not
    count; see ``BatcherStats.streams``. Each stream has a lane, all with the same scale, with the range of its offset
    next to its name. A rising line is a clock that falls behind, a step is a clock that was set.

    Parameters
    ----------
    batches
        Batches of one source, in any order. Messages without a receive time are left out.
    width
        Width of the picture, px; from 400 to 100,000.
    title
        Its heading.

    Returns
    -------
    Svg
        A str that notebooks show as a picture. It shows at most 12 streams, the first by name.

    Raises
    ------
    InvalidArgumentError
        For an argument of another type, or a width that is out of range.
    """
    check_frame(width, title)
    lines = offsets(batch_list(batches))
    if not lines:
        return empty_panel(width, title, "Nothing to draw: no batch has messages with a receive time.")
    shown = dict(list(lines.items())[:_MOST_LANES])
    times = [time for line in shown.values() for time, _ in line]
    values = [value for line in shown.values() for _, value in line]
    across = Scale(min(times), max(*times, min(times) + 1), MARGIN + _GUTTER, width - MARGIN)
    spare = max(0, _LEAST_SPAN - (max(values) - min(values))) // 2
    up = Scale(min(values) - spare, max(max(values) + spare, min(values) - spare + 1), _LANE - _PAD, _PAD)
    bottom = HEADER + len(shown) * (_LANE + _GAP) - _GAP
    content = Element("g")
    _draw_axis(content, across, bottom)
    for row, (stream, line) in enumerate(shown.items()):
        _draw_lane(content, stream, line, HEADER + row * (_LANE + _GAP), across, up)
    summary = f"{counted(len(lines), 'stream')}; a lane is {_milliseconds(up.end - up.start)} high"
    if len(lines) > len(shown):
        summary += f"; {len(lines) - len(shown):,} more not drawn"
    return panel(width, bottom + _AXIS + 14, title, summary, [content])


def _draw_lane(parent: Element, stream: str, line: Line, top: float, across: Scale, up: Scale) -> None:
    add(parent, "rect", class_="lane", x=across.left, y=top, width=across.right - across.left, height=_LANE, rx=4)
    right = across.left - 12
    name = add(parent, "text", class_="ink name end", x=right, y=top + 22, content=shorten(stream, 13, right - 12))
    add(name, "title", content=stream)
    values = [value for _, value in line]
    bounds = f"{_milliseconds(min(values))} to {_milliseconds(max(values))}"
    add(parent, "text", class_="muted end", x=right, y=top + 38, content=bounds)
    points = [(across.x(time), top + up.x(value)) for time, value in line[:: len(line) // _MOST_POINTS + 1]]
    x, y = points[0]
    pieces = [f"M{number(x)} {number(y)}h.1", *(f"L{number(x)} {number(y)}" for x, y in points[1:])]
    path(parent, "message", pieces, stroke_width=1.6)


def _draw_axis(parent: Element, scale: Scale, bottom: float) -> None:
    step = tick_step(scale.end - scale.start, max(1, int((scale.right - scale.left) // _TICK_EVERY)))
    for elapsed in range(0, scale.end - scale.start + 1, step):
        x = scale.x(scale.start + elapsed)
        add(parent, "path", class_="grid", d=f"M{number(x)} {number(HEADER)}V{number(bottom + 5)}")
        add(parent, "text", class_="muted middle", x=x, y=bottom + 18, content=tick_label(elapsed, step))
    zero = f"receive time; {tick_label(0, step)} is {format_time(scale.start)} (UTC)"
    add(parent, "text", class_="muted", x=scale.left, y=bottom + _AXIS, content=zero)


def _milliseconds(ns: int) -> str:
    return f"{ns / 1e6:,.0f} ms"
