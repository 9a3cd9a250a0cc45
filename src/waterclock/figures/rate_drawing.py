"""Draws batches by rate: a lane a stream, messages at their event times, and what closed each window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from waterclock.batching.batch import Batch
from waterclock.figures.legend import draw_legend, reason_entries
from waterclock.figures.marks import dots, window
from waterclock.figures.panel import HEADER, MARGIN, check_width, empty_panel, panel
from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.figures.svg import add, counted, number, path, shorten
from waterclock.message import Message

_GUTTER = 84
_TOP = HEADER + 30
_LANE = 30
_AXIS = 22
_TICK_EVERY = 70


def rate_drawing(
    batches: Iterable[Batch],
    waiting: Iterable[Message] = (),
    *,
    start: int | None = None,
    end: int | None = None,
    origin: int = 0,
    width: int = 760,
    title: str = "Batches by rate",
) -> str:
    """Draw each stream as a lane of dots over the windows that hold them, with the reason of each closing, as SVG text.

    A window is a shade with its reason above it, and a mark on its lower edge where the high-water mark stood when it
    closed. Messages are drawn at their event times; those outside the picture are on its edges.

    Parameters
    ----------
    batches
        What a rate-aware batcher returned.
    waiting
        Messages that are in no batch yet.
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
    check_width(width)
    closed, open_messages = sorted(batches, key=lambda batch: batch.start), list(waiting)
    if not closed:
        return empty_panel(width, title, "Nothing to draw: no batch.")
    first = closed[0].start if start is None else start
    last = closed[-1].end if end is None else end
    scale = Scale(first, max(last, first + 1), MARGIN + _GUTTER, width - MARGIN)
    messages = [message for batch in closed for message in batch.messages] + open_messages
    streams = sorted({message.stream for message in messages})
    bottom = _TOP + _LANE * len(streams)

    content = Element("g")
    _draw_axis(content, scale, bottom, origin)
    _draw_windows(content, closed, scale, bottom)
    _draw_lanes(content, messages, streams, scale)
    foot = draw_legend(content, reason_entries(closed, []), MARGIN, width - MARGIN, bottom + _AXIS + 20)
    sizes = f"{counted(len(messages), 'message')} of {counted(len(streams), 'stream')}"
    summary = f"{sizes}, {counted(len(closed), 'batch', 'batches')}"
    return panel(width, foot + 14, title, summary, [content])


def _draw_windows(parent: Element, batches: Sequence[Batch], scale: Scale, bottom: float) -> None:
    shown = [batch for batch in batches if batch.end >= scale.start and batch.start <= scale.end]
    outlines = [window(batch, scale, _TOP - 6, bottom - _TOP + 8) for batch in shown]
    path(parent, "odd", outlines[::2])
    path(parent, "even", outlines[1::2])
    for batch in shown:
        left, right = scale.x(batch.start), scale.x(batch.end)
        words = shorten(batch.reason, 10, right - left)
        add(parent, "text", class_="ink small middle", x=(left + right) / 2, y=_TOP - 12, content=words)
        x = number(scale.x(batch.closed_at))
        path(parent, "link closing", [f"M{x} {number(bottom + 2)}v-9"])


def _draw_lanes(parent: Element, messages: Sequence[Message], streams: Sequence[str], scale: Scale) -> None:
    for row, stream in enumerate(streams):
        y = _TOP + _LANE * (row + 0.5)
        name = shorten(stream, 11, _GUTTER - 14)
        add(parent, "text", class_="ink end", x=scale.left - 10, y=y + 4, content=name)
        points = ((scale.x(m.event_time), y) for m in messages if m.stream == stream)
        path(parent, "message dots", dots(points), stroke_width=4)


def _draw_axis(parent: Element, scale: Scale, bottom: float, origin: int) -> None:
    step = tick_step(scale.end - scale.start, int((scale.right - scale.left) // _TICK_EVERY))
    for elapsed in range(-((origin - scale.start) // step) * step, scale.end - origin + 1, step):
        x = scale.x(origin + elapsed)
        add(parent, "path", class_="grid", d=f"M{number(x)} {_TOP - 6}V{number(bottom + 4)}")
        add(parent, "text", class_="muted small middle", x=x, y=bottom + 18, content=tick_label(elapsed, step))
