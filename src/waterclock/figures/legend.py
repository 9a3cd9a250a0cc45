"""Says what the marks and shades of a picture mean, and counts the reasons that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from waterclock.figures.marks import GLYPHS, bars, box, cut_edge, dots
from waterclock.figures.svg import add, path, text_width

ROW = 20
_SYMBOL = 24
_SPACE = 18
_SIZE = 11


@dataclass(frozen=True, slots=True)
class Entry:
    """A symbol and its words.

    Attributes
    ----------
    draw
        Draws the symbol below an element, with its left edge and its middle height (px).
    words
        What it means.
    """

    draw: Callable[[Element, float, float], None]
    words: str


def dot_entry(words: str) -> Entry:
    """Explain a dot."""
    return Entry(lambda parent, x, y: path(parent, "message dots", dots([(x + 9, y)]), stroke_width=5), words)


def bar_entry(words: str) -> Entry:
    """Explain a bar that counts."""
    columns = ((4.0, 5.0), (8.0, 10.0), (12.0, 7.0))

    def draw(parent: Element, x: float, y: float) -> None:
        path(parent, "message bars", bars((x + at, y + 5, tall) for at, tall in columns), stroke_width=2)

    return Entry(draw, words)


def window_entry(words: str) -> Entry:
    """Explain the two shades of windows."""

    def draw(parent: Element, x: float, y: float) -> None:
        path(parent, "odd", [box(x, x + 9, y - 6, 12)])
        path(parent, "even", [box(x + 9, x + 18, y - 6, 12)])

    return Entry(draw, words)


def cut_entry(words: str) -> Entry:
    """Explain the torn edge of a window that was cut."""

    def draw(parent: Element, x: float, y: float) -> None:
        path(parent, "even", [box(x, x + 15, y - 6, 12)])
        path(parent, "cut", [cut_edge(x + 15, y - 6, 12)])

    return Entry(draw, words)


def rejected_entry(kind: str, words: str) -> Entry:
    """Explain the mark of one kind of rejected message."""
    return Entry(lambda parent, x, y: path(parent, f"{kind} glyph", [GLYPHS[kind](x + 10, y, 4)]), words)


def draw_legend(parent: Element, entries: Iterable[Entry], left: float, right: float, top: float) -> float:
    """Draw the entries in rows between ``left`` and ``right`` (px), the first row at ``top``.

    Returns
    -------
    float
        The lower edge of the last row, px.
    """
    x = left
    for entry in entries:
        wide = _SYMBOL + text_width(entry.words, _SIZE)
        if x > left and x + wide > right:
            x, top = left, top + ROW
        entry.draw(parent, x, top + ROW / 2)
        add(parent, "text", class_="ink", x=x + _SYMBOL, y=top + ROW / 2 + 4, content=entry.words)
        x += wide + _SPACE
    return top + ROW
