"""Draws a scenario: when a handful of messages happened, when each was received, and the batches they fell into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from waterclock._support.quoting import counted, quoted
from waterclock.batching.batch import Batch, Rejection
from waterclock.errors import InvalidArgumentError
from waterclock.figures.arguments import check_frame, rejection_list
from waterclock.figures.glyphs import GLYPHS, dots, window
from waterclock.figures.legend import draw_legend, reason_lines
from waterclock.figures.panel import HEADER, MARGIN, empty_panel, panel
from waterclock.figures.scale import Scale, tick_step
from waterclock.figures.svg import add, number, path, text_width
from waterclock.message import Message

_GUTTER = 104
_EVENTS = HEADER + 58
_BOX_TOP = _EVENTS - 48
_BOX = 72
_RECEIVED = _EVENTS + 96
_AXIS = _RECEIVED + 52
_LEGEND = _AXIS + 26
_TICK_EVERY = 60
_NUMBERS = 9
_RAISE = 11


def scenario_drawing(
    batches: Iterable[Batch],
    rejected: Iterable[Rejection],
    *,
    unit: int = 1,
    width: int = 760,
    title: str = "Event time and receive time",
) -> str:
    """Draw each message twice, at its event time above and at its receive time below, and join the two, as SVG text.

    Windows are shades around the messages' event times; a dotted line leads from a window's end to the receive-clock
    time at which its batch closes. Meant for scenarios of *Message Batching*: messages of one source, times from 0.

    Parameters
    ----------
    batches, rejected
        What a batcher returned. Every message has a receive_time.
    unit
        What the axis counts, ns: ``1_000_000`` where a scenario's times are meant as milliseconds.
    width
        Of the picture, px; at least 400.
    title
        Its heading.

    Raises
    ------
    InvalidArgumentError
        For a message without receive_time, a unit below 1, a width below 400, or a rejection whose reason has no mark.
    """
    check_frame(width, title)
    if unit < 1:
        raise InvalidArgumentError(f"unit: {quoted(unit)} ns is nothing to count in; give at least 1")
    closed, refused = sorted(batches, key=lambda batch: batch.start), rejection_list(rejected)
    accepted = [message for batch in closed for message in batch.messages]
    if not closed and not refused:
        return empty_panel(width, title, "Nothing to draw: no batch and no rejected message.")

    scale = _scale(closed, [*accepted, *(message for message, _ in refused)], width)
    content = Element("g")
    _draw_rows(content, scale, unit)
    _draw_batches(content, closed, scale, unit)
    _draw_accepted(content, accepted, scale)
    _draw_rejected(content, refused, scale)
    _draw_labels(content, accepted, refused, scale, unit)
    end = draw_legend(content, reason_lines(closed, refused), MARGIN, width - MARGIN, _LEGEND)
    sizes = f"{counted(len(accepted) + len(refused), 'message')}: {len(accepted):,} in"
    summary = f"{sizes} {counted(len(closed), 'batch', 'batches')}, {len(refused):,} rejected"
    return panel(width, end + 14, title, summary, [content])


def _scale(batches: Sequence[Batch], messages: Sequence[Message], width: int) -> Scale:
    times = [time for batch in batches for time in (batch.start, batch.end, batch.closed_at)]
    times += [time for message in messages for time in (message.event_time, _received(message))]
    first, last = min(times), max(times)
    # Room on both sides for the words under the outermost marks.
    room = max(1, (last - first) // 20)
    return Scale(first - room, last + room, MARGIN + _GUTTER, width - MARGIN)


def _received(message: Message) -> int:
    if message.receive_time is None:
        raise InvalidArgumentError(f"{message} has no receive_time, so it has no place on the lower row")
    return message.receive_time


def _draw_rows(parent: Element, scale: Scale, unit: int) -> None:
    step = unit * tick_step((scale.end - scale.start) // unit, int((scale.right - scale.left) // _TICK_EVERY))
    for time in range(-(-scale.start // step) * step, scale.end + 1, step):
        x = scale.x(time)
        add(parent, "path", class_="grid", d=f"M{number(x)} {HEADER}V{_AXIS}")
        add(parent, "text", class_="muted small middle", x=x, y=_AXIS + 12, content=_count(time, unit))
    for y, words in ((_EVENTS, ("event", "time")), (_RECEIVED, ("receive", "time"))):
        add(parent, "path", class_="link", d=f"M{number(scale.left)} {y}H{number(scale.right)}")
        for row, word in enumerate(words):
            add(parent, "text", class_="ink end", x=scale.left - 10, y=y - 2 + 13 * row, content=word)


def _draw_batches(parent: Element, batches: Sequence[Batch], scale: Scale, unit: int) -> None:
    outlines = [window(batch, scale, _BOX_TOP, _BOX) for batch in batches]
    path(parent, "odd", outlines[::2])
    path(parent, "even", outlines[1::2])
    for batch in batches:
        left, end, closed = scale.x(batch.start), scale.x(batch.end), scale.x(batch.closed_at)
        lead = f"M{number(end)} {_BOX_TOP + _BOX}L{number(closed)} {_RECEIVED}V{_RECEIVED + 28}"
        path(parent, "link closing", [lead])
        words = f"closes {_count(batch.closed_at, unit)}"
        add(parent, "text", class_="ink small middle", x=closed, y=_RECEIVED + 39, content=words)
        span = f"{_count(batch.start, unit)}-{_count(batch.end, unit)}"
        add(parent, "text", class_="ink small", x=left + 3, y=_BOX_TOP + 11, content=span)
        add(parent, "text", class_="ink small", x=left + 3, y=_BOX_TOP + 22, content=batch.reason)


def _draw_accepted(parent: Element, messages: Sequence[Message], scale: Scale) -> None:
    ends = [(scale.x(message.event_time), scale.x(_received(message))) for message in messages]
    path(parent, "link", (f"M{number(x)} {_EVENTS}L{number(end)} {_RECEIVED}" for x, end in ends))
    path(parent, "message dots", dots((x, _EVENTS) for x, _ in ends), stroke_width=7)
    path(parent, "message dots", dots((end, _RECEIVED) for _, end in ends), stroke_width=7)


def _draw_rejected(parent: Element, rejected: Sequence[Rejection], scale: Scale) -> None:
    for message, reason in rejected:
        x, end = scale.x(message.event_time), scale.x(_received(message))
        path(parent, reason, [f"M{number(x)} {_EVENTS}L{number(end)} {_RECEIVED}"])
        path(parent, f"{reason} glyph", [GLYPHS[reason](x, _EVENTS, 4), GLYPHS[reason](end, _RECEIVED, 4)])


def _draw_labels(
    parent: Element, accepted: Sequence[Message], rejected: Sequence[Rejection], scale: Scale, unit: int
) -> None:
    labelled = [(message, "ink") for message in accepted]
    labelled += [(message, str(reason)) for message, reason in rejected]
    above = ((m.event_time, f"{m.stream} {_count(m.event_time, unit)}", class_) for m, class_ in labelled)
    _draw_staggered(parent, above, scale, _EVENTS - 9, -_RAISE)
    below = ((_received(m), f"{m.stream} {_count(_received(m), unit)}", class_) for m, class_ in labelled)
    _draw_staggered(parent, below, scale, _RECEIVED + 17, _RAISE)


def _draw_staggered(
    parent: Element, labels: Iterable[tuple[int, str, str]], scale: Scale, y: float, raised: float
) -> None:
    """Write labels centred at their times; one that would run into its neighbour goes into a second row."""
    ends = [float("-inf"), float("-inf")]
    for time, words, class_ in sorted(labels):
        x, half = scale.x(time), text_width(words, _NUMBERS) / 2
        row = 0 if x - half >= ends[0] else 1
        ends[row] = x + half + 2
        add(parent, "text", class_=f"{class_} small middle", x=x, y=y + row * raised, content=words)


def _count(time: int, unit: int) -> str:
    return number(time / unit)
