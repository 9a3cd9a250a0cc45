"""Draws batches over event time: a lane per source, with messages as dots, and windows shaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from xml.etree.ElementTree import Element

from waterclock._support.quoting import counted, quoted
from waterclock.batching.batch import Batch, Rejection
from waterclock.errors import InvalidArgumentError
from waterclock.figures.arguments import batch_list, check_frame, name_list, note_list, rejection_list
from waterclock.figures.lane_picture import LANE_HEIGHT, Detail, draw_lane
from waterclock.figures.lanes import Lane, sort_into_lanes, time_bounds
from waterclock.figures.legend import LegendLine, bar_line, dot_line, draw_legend, outside_line, reason_lines
from waterclock.figures.panel import HEADER, MARGIN, empty_panel, panel
from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.figures.svg import Svg, add, number, path, shorten
from waterclock.time import MAX_NS, MIN_NS, Time, format_time, to_time

_GUTTER = 132
_GAP = 9
_AXIS = 34
_TICK_EVERY = 80
_SHORTEST = 1_000
_ROUND = 60
_MOST_LANES = 12
_MOST_GLYPHS = 1_500
_MOST_DOTS = 9_000
_MOST_WINDOWS = 640


def timeline(
    batches: Iterable[Batch],
    rejected: Iterable[Rejection] = (),
    *,
    lanes: Iterable[str] | None = None,
    start: Time | None = None,
    end: Time | None = None,
    width: int = 1000,
    title: str = "Messages batched by when they happened",
    notes: Iterable[tuple[Time, str]] = (),
) -> Svg:
    """Draw batches and rejected messages over event time, as SVG text of at most about 200 kB.

    Every message is a dot at its event time, at the height of its stream, with another colour if it lies outside its
    batch's window. If there are more than 9,000 messages, bars show their counts instead. A window is a shaded area,
    and a cut window has a torn right edge; above 640 windows, one area shows the time that they cover together. Each
    kind of rejected message has its own colour and shape. The legend names and counts every reason that the picture
    shows. The same input produces the same bytes.

    Parameters
    ----------
    batches, rejected
        Results of batchers, in any order, of any sources.
    lanes
        The sources to draw, from top to bottom. Default: all, by name, but at most 12; the picture says how many it
        omits.
    start, end
        The stretch of event time to draw. Default: all of it.
    width
        Width of the picture, px; from 400 to 100,000.
    title
        Its heading.
    notes
        Times with a short text each, drawn as a dashed line across all lanes; those outside the stretch are left out.

    Returns
    -------
    Svg
        A str that notebooks show as a picture. It needs no script, font or style sheet, and follows the page into dark
        mode.

    Raises
    ------
    InvalidArgumentError
        For an argument of another type, an end that is not after start, a width out of range, or a rejection whose
        reason has no mark.
    """
    check_frame(width, title)
    closed, refused, noted = batch_list(batches), rejection_list(rejected), note_list(notes)
    order = None if lanes is None else name_list(lanes)
    scale = _scale(closed, refused, start, end, width)
    drawn = [] if scale is None else sort_into_lanes(closed, refused, order, scale.start, scale.end)
    if scale is None or not any(lane.batches or lane.size for lane in drawn):
        return empty_panel(width, title, _nothing(start, end))
    shown = len(drawn) if order is not None else _MOST_LANES
    summary = [_summary(drawn[:shown])]
    if drawn[shown:]:
        size = sum(lane.size for lane in drawn[shown:])
        summary.append(f"{counted(size, 'message')} from {len(drawn) - shown:,} more not drawn")
    outside = sum(len(batch.messages) for batch in closed) + len(refused) - sum(lane.size for lane in drawn)
    if outside and order is None and start is None and end is None:
        summary.append(f"{counted(outside, 'message')} far outside not drawn")
    return _draw(drawn[:shown], scale, width, title, "; ".join(summary), noted)


def _scale(
    batches: Sequence[Batch], rejected: Sequence[Rejection], start: Time | None, end: Time | None, width: int
) -> Scale | None:
    left, right = MARGIN + _GUTTER, width - MARGIN
    first = None if start is None else to_time(start, "start")
    last = None if end is None else to_time(end, "end")
    if first is not None and last is not None and last <= first:
        raise InvalidArgumentError(f"'end' must be after 'start' ({quoted(start)}), got {quoted(end)}")
    if first is None or last is None:
        bounds = time_bounds(batches, rejected)
        if bounds is None:
            return None
        # A default stretch begins and ends at a round time.
        step = tick_step(max(bounds[1] - bounds[0], _SHORTEST), _ROUND)
        first = max(bounds[0] // step * step, MIN_NS) if first is None else first
        last = min((bounds[1] // step + 1) * step, MAX_NS) if last is None else last
    return Scale(first, last, left, right) if first < last else None


def _draw(
    lanes: Sequence[Lane], scale: Scale, width: int, title: str, summary: str, notes: Iterable[tuple[int, str]]
) -> Svg:
    detail = _detail(sum(lane.size for lane in lanes))
    bottom = HEADER + len(lanes) * (LANE_HEIGHT + _GAP) - _GAP
    content = Element("g")
    _draw_axis(content, scale, HEADER, bottom)
    for row, lane in enumerate(lanes):
        merge = len(lane.batches) > _MOST_WINDOWS // len(lanes)
        draw_lane(content, lane, HEADER + row * (LANE_HEIGHT + _GAP), scale, detail, merge_windows=merge)
    for time, text in notes:
        if scale.start <= time < scale.end:
            _draw_note(content, scale.x(time), text, bottom, scale.right)
    end = draw_legend(content, _legend_lines(lanes, detail), MARGIN, width - MARGIN, bottom + _AXIS + 8)
    return panel(width, end + 14, title, summary, [content])


def _draw_note(parent: Element, x: float, text: str, bottom: float, right: float) -> None:
    path(parent, "link closing", [f"M{number(x)} {number(HEADER - 12)}V{number(bottom)}"])
    # To the right of its line, or to the left if that side has more room.
    leftwards = right - x < x - MARGIN
    side, at, room = ("ink end", x - 5, x - MARGIN) if leftwards else ("ink", x + 5, right - x)
    label = add(parent, "text", class_=side, x=at, y=HEADER - 3, content=shorten(text, 11, room - 5))
    add(label, "title", content=text)


def _detail(messages: int) -> Detail:
    if messages > _MOST_DOTS:
        return Detail.BAR
    return Detail.DOT if messages > _MOST_GLYPHS else Detail.GLYPH


def _most_ticks(left: float, right: float) -> int:
    return int((right - left) // _TICK_EVERY)


def _draw_axis(parent: Element, scale: Scale, top: float, bottom: float) -> None:
    step = tick_step(scale.end - scale.start, _most_ticks(scale.left, scale.right))
    for elapsed in range(0, scale.end - scale.start + 1, step):
        x = scale.x(scale.start + elapsed)
        add(parent, "path", class_="grid", d=f"M{number(x)} {number(top)}V{number(bottom + 5)}")
        add(parent, "text", class_="muted middle", x=x, y=bottom + 18, content=tick_label(elapsed, step))
    zero = f"event time; {tick_label(0, step)} is {format_time(scale.start)} (UTC)"
    add(parent, "text", class_="muted", x=scale.left, y=bottom + _AXIS, content=zero)


def _legend_lines(lanes: Sequence[Lane], detail: Detail) -> list[LegendLine]:
    messages = [dot_line("message, its height by stream")]
    outside = sum(len(lane.outside) for lane in lanes)
    if detail is Detail.BAR:
        messages = [bar_line("messages, counted; each lane to its own scale")]
    elif outside:
        messages.append(outside_line(outside))
    batches = chain.from_iterable(lane.batches for lane in lanes)
    rejected = chain.from_iterable(lane.rejected for lane in lanes)
    return [*messages, *reason_lines(batches, rejected)]


def _summary(lanes: Sequence[Lane]) -> str:
    accepted = sum(len(lane.accepted) for lane in lanes)
    rejected = sum(len(lane.rejected) for lane in lanes)
    batches = sum(len(lane.batches) for lane in lanes)
    outside = sum(len(lane.outside) for lane in lanes)
    return (
        f"{counted(accepted + rejected, 'message')} from {counted(len(lanes), 'source')}:"
        f" {accepted:,} in {counted(batches, 'batch', 'batches')}, {rejected:,} rejected"
        + (f", {outside:,} outside their windows" if outside else "")
    )


def _nothing(start: Time | None, end: Time | None) -> str:
    since = "" if start is None else f" from {format_time(to_time(start))}"
    until = "" if end is None else f" until {format_time(to_time(end))}"
    return f"Nothing to draw: no batches and no rejected messages{since}{until}."
