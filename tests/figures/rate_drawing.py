"""Draws batches by rate: a lane a stream, messages at their event times, and what closed each window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from waterclock._support.quoting import counted
from waterclock.batching.batch import Batch
from waterclock.figures.arguments import check_frame
from waterclock.figures.glyphs import box, dots, window
from waterclock.figures.legend import LegendLine, draw_legend, outside_line, reason_lines
from waterclock.figures.panel import HEADER, MARGIN, empty_panel, panel
from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.figures.svg import add, number, path, shorten
from waterclock.message import Message

_GUTTER = 84
_TOP = HEADER + 30
_LANE = 30
_AXIS = 22
_TICK_EVERY = 70
_EDGE = 16  # for half of the last tick's label
_ARROW = 3.5


def rate_drawing(
    batches: Iterable[Batch],
    waiting: Iterable[Message] = (),
    *,
    in_progress: tuple[int, int] | None = None,
    start: int | None = None,
    end: int | None = None,
    origin: int = 0,
    width: int = 760,
    title: str = "Batches by rate",
) -> str:
    """Draw each stream as a lane of dots over the windows that hold them, with the reason of each closing, as SVG text.

    A window is a shade with its reason above it, and a mark on its lower edge where the high-water mark stood when it
    closed. Messages are drawn at their event times, in another colour if they lie outside their batch's window; where
    some lie outside the picture, an arrow on its edge says so.

    Parameters
    ----------
    batches
        What a rate-aware batcher returned.
    waiting
        Messages that are in no batch yet.
    in_progress
        Start and end of the window that has not closed, ns.
    start, end
        The stretch of event time to draw, ns. Default: that of the windows.
    origin
        The time that the axis calls 0, ns.
    width
        Of the picture, px; at least 400.
    title
        Its heading.

    Raises
    ------
    InvalidArgumentError
        For a width below 400.
    """
    check_frame(width, title)
    closed, open_messages = sorted(batches, key=lambda batch: batch.start), list(waiting)
    if not closed:
        return empty_panel(width, title, "Nothing to draw: no batch.")
    first = closed[0].start if start is None else start
    last = closed[-1].end if end is None else end
    scale = Scale(first, max(last, first + 1), MARGIN + _GUTTER, width - MARGIN - _EDGE)
    messages = [message for batch in closed for message in batch.messages] + open_messages
    streams = sorted({message.stream for message in messages})
    bottom = _TOP + _LANE * len(streams)

    content = Element("g")
    _draw_axis(content, scale, bottom, origin)
    _draw_windows(content, closed, in_progress, scale, bottom)
    outside = [message for batch in closed for message in batch.messages_outside()]
    _draw_lanes(content, messages, outside, streams, scale)
    legend = [*reason_lines(closed, []), _MARK]
    legend += [outside_line(len(outside))] if outside else []
    legend += [_OUTSIDE] if any(not scale.holds(message.event_time) for message in messages) else []
    foot = draw_legend(content, legend, MARGIN, width - MARGIN, bottom + _AXIS + 20)
    sizes = f"{counted(len(messages), 'message')} of {counted(len(streams), 'stream')}"
    summary = f"{sizes}, {counted(len(closed), 'batch', 'batches')}"
    return panel(width, foot + 14, title, summary, [content])


def _draw_windows(
    parent: Element, batches: Sequence[Batch], in_progress: tuple[int, int] | None, scale: Scale, bottom: float
) -> None:
    top, height = _TOP - 6, bottom - _TOP + 8
    shown = [batch for batch in batches if batch.end >= scale.start and batch.start <= scale.end]
    outlines = [window(batch, scale, top, height) for batch in shown]
    path(parent, "odd", outlines[::2])
    path(parent, "even", outlines[1::2])
    marks = [number(scale.x(batch.closed_at)) for batch in shown if scale.holds(batch.closed_at)]
    path(parent, "link closing", [f"M{x} {number(bottom + 2)}v-9" for x in marks])
    labels = [((scale.x(batch.start) + scale.x(batch.end)) / 2, batch.reason) for batch in shown]
    if in_progress is not None and in_progress[0] < scale.end:
        left, right = (scale.x(time) for time in in_progress)
        path(parent, "link closing", [box(left, right, top, height)])
        labels.append(((left + right) / 2, "open"))
    _draw_labels(parent, labels, scale)


def _draw_labels(parent: Element, labels: Sequence[tuple[float, str]], scale: Scale) -> None:
    """Write over each window why it closed, in the room that the neighbours' words leave."""
    centres = [centre for centre, _ in labels]
    gaps = [after - before for before, after in pairwise(centres)]
    widest = scale.right - scale.left
    for (centre, words), before, after in zip(labels, [widest, *gaps], [*gaps, widest], strict=False):
        content = shorten(words, 10, min(before, after))
        add(parent, "text", class_="ink small middle", x=centre, y=_TOP - 12, content=content)


def _draw_lanes(
    parent: Element, messages: Sequence[Message], outside: Sequence[Message], streams: Sequence[str], scale: Scale
) -> None:
    for row, stream in enumerate(streams):
        y = _TOP + _LANE * (row + 0.5)
        name = shorten(stream, 11, _GUTTER - 18)
        add(parent, "text", class_="ink end", x=scale.left - 14, y=y + 4, content=name)
        times = [m.event_time for m in messages if m.stream == stream]
        path(parent, "message dots", dots((scale.x(time), y) for time in times if scale.holds(time)), stroke_width=4)
        times_outside = [m.event_time for m in outside if m.stream == stream and scale.holds(m.event_time)]
        path(parent, "outside dots", dots((scale.x(time), y) for time in times_outside), stroke_width=4)
        if min(times) < scale.start:
            path(parent, "message glyph", [beyond(scale.left - 10, y, -_ARROW)])
        if max(times) > scale.end:
            path(parent, "message glyph", [beyond(scale.right + 10, y, _ARROW)])


def beyond(x: float, y: float, reach: float) -> str:
    """Draw an arrow head with its point at x, to the right, or to the left if ``reach`` (px) is negative."""
    half = number(abs(reach))
    return f"M{number(x - reach)} {number(y - abs(reach))}l{number(reach)} {half}l{number(-reach)} {half}"


def _draw_axis(parent: Element, scale: Scale, bottom: float, origin: int) -> None:
    step = tick_step(scale.end - scale.start, int((scale.right - scale.left) // _TICK_EVERY))
    for elapsed in range(-((origin - scale.start) // step) * step, scale.end - origin + 1, step):
        x = scale.x(origin + elapsed)
        add(parent, "path", class_="grid", d=f"M{number(x)} {_TOP - 6}V{number(bottom + 4)}")
        add(parent, "text", class_="muted small middle", x=x, y=bottom + 18, content=tick_label(elapsed, step))


_MARK = LegendLine(
    lambda parent, x, y: path(parent, "link closing", [f"M{number(x + 9)} {number(y + 5)}v-10"]),
    "high-water mark at the closing",
)
_OUTSIDE = LegendLine(
    lambda parent, x, y: path(parent, "message glyph", [beyond(x + 13, y, _ARROW)]),
    "messages outside the picture",
)
