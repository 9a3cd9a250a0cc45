"""Draws the pictures of pages from their data, as inline SVG. Their style sheet is a static file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from waterclock.figures.glyphs import GLYPHS
from waterclock.figures.lane_view import ShownLane, ShownWindow, lane_view
from waterclock.figures.svg import Svg
from waterclock.figures.topic_picture import Flag, TopicBlock, TopicView, topic_picture
from waterclock.time import to_time

_NARROW = 380
"""Width of the picture for screens up to 40 rem, px: the page shows the one that fits."""


def both_widths(wide: Svg, narrow: Svg) -> Markup:
    """Put two pictures, whose texts are already escaped, into a page that shows one of them."""
    pictures = (Markup(str(each)) for each in (wide, narrow))  # noqa: S704  # `to_text` has escaped every text
    return Markup('<div class="for-wide">{}</div><div class="for-narrow">{}</div>').format(*pictures)


def _ns(time: str | None) -> int | None:
    return None if time is None else to_time(time)


def topic_figure(data: Mapping[str, Any]) -> Markup:
    """Draw the data of a topic's page."""
    axis, trimmed, preview = data["axis"], data["trimmed"], data["preview"]
    flags = [
        Flag(one["name"], f"subscription {one['name']} at {one['position']}, {one['unread']:,} unread", one["ordinal"])
        for one in data["subscriptions"]
    ]
    if preview is not None and not preview["problem"]:
        time = _ns(preview["time"])
        flags.insert(0, Flag("preview", f"{preview['to']} leads to {preview['position']}", preview["ordinal"], time))
    blocks = [
        TopicBlock(
            _label(one), one["state"], _ns(one["begin"]), _ns(one["end"]), _ns(one["peak"]),
            one["first_ordinal"], one["first_ordinal"] + one["messages"],
        )
        for one in data["ledgers"]
    ]  # fmt: skip
    deleted = f"{trimmed['messages']:,} messages in {trimmed['ledgers']:,} ledgers were deleted before"
    view = TopicView(
        to_time(axis["since"]), to_time(axis["until"]), blocks, flags, deleted if trimmed["ledgers"] else ""
    )
    title = f"Ledgers of {data['topic']['name']} over {data['by'].replace('_', ' ')}"
    text = f"{len(blocks)} blocks and {len(data['subscriptions'])} subscriptions; the tables of this page list them"
    return both_widths(topic_picture(view, title, text), topic_picture(view, title, text, _NARROW))


def _label(block: Mapping[str, Any]) -> str:
    last = block["ledger"] + block["stands_for"] - 1
    name = f"ledger {block['ledger']}" if block["stands_for"] == 1 else f"ledgers {block['ledger']} to {last}"
    return f"{name}, {block['state']}: {block['messages']:,} messages, {block['begin'] or '?'} to {block['end'] or '?'}"


def batches_figure(data: Mapping[str, Any]) -> Markup:
    """Draw the data of the timeline of batches."""
    start, end = to_time(data["view"]["since"]), to_time(data["view"]["until"])
    density = data["density"]
    if density is not None:
        lanes = [ShownLane("all sources", f"about {density['about']:,} messages", bars={"accepted": density["bars"]})]
    else:
        lanes = [_shown_lane(one, start) for one in data["lanes"]]
    clock = "high-water mark" if data["by"] == "rate" else "receive clock"
    title = f"Batches of {data['topic']}, {data['view']['since']} to {data['view']['until']}"
    text = f"{len(lanes)} lanes; the tables below list their windows"
    wide, narrow = (lane_view(start, end, lanes, title, text, width, clock) for width in (1000, _NARROW))
    return both_widths(wide, narrow)


def _shown_lane(lane: Mapping[str, Any], start: int) -> ShownLane:
    windows = [
        ShownWindow(to_time(one["start"]), to_time(one["end"]), one["reason"], _window_label(one))
        for one in lane["windows"]
    ]
    streams = max(len(lane["streams"] or ()) - 1, 1)
    only = 0.5 if lane["streams"] and len(lane["streams"]) == 1 else 0
    dots = [(start + time, only or rank / streams, verdict) for time, rank, verdict in lane["dots"] or ()]
    messages = f"{lane['messages']:,} message{'s' if lane['messages'] != 1 else ''}"
    note = f"{messages}, {lane['batches']:,} window{'s' if lane['batches'] != 1 else ''}"
    return ShownLane(lane["name"], note, windows, dots, lane["bars"] or {}, _ns(lane["clock"]))


def _window_label(window: Mapping[str, Any]) -> str:
    why = "open" if window["closed_at"] is None else f"closed by {window['reason']} at {window['closed_at']}"
    return f"{window['start']} to {window['end']}: {window['messages']:,} messages, {why}"


def glyph_symbol(reason: str) -> Markup:
    """Draw the mark of a kind of rejected message, for a legend."""
    drawn = Markup('<svg class="wc" viewBox="0 0 26 14" aria-hidden="true"><path class="{} glyph" d="{}"/></svg>')
    return drawn.format(reason, GLYPHS[reason](13, 7, 4))
