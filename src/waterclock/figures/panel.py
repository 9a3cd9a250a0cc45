"""Draws the panel behind every picture: background, title and summary. It is legible on any page."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from waterclock.figures.svg import Svg, add, picture, shorten, to_text
from waterclock.figures.theme import style_sheet

MARGIN = 18
HEADER = 68
"""Height of title and summary, px."""


def panel(width: float, height: float, title: str, summary: str, content: Iterable[Element] = ()) -> Svg:
    """Put ``content`` on a panel of ``width`` by ``height`` pixels and write the picture."""
    root = picture(width, height, title, summary, style_sheet())
    add(root, "rect", class_="panel frame", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8)
    room = width - 2 * MARGIN
    add(root, "text", class_="ink title", x=MARGIN, y=31, content=shorten(title, 19, room))
    add(root, "text", class_="muted", x=MARGIN, y=51, content=shorten(summary, 11, room))
    root.extend(content)
    return to_text(root)


def empty_panel(width: float, title: str, words: str) -> Svg:
    """Write an empty picture with the reason."""
    return panel(width, HEADER, title, words)
