"""Draws the legend of a picture: the meaning of its marks and shades, and how often each reason occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from waterclock.batching.batch import Batch, Rejection
from waterclock.figures.glyphs import CUTS, GLYPHS, bars, box, dots, torn_box
from waterclock.figures.svg import add, path, text_width
from waterclock.figures.theme import REJECTED

Symbol = Callable[[Element, float, float], None]
"""Draws a symbol below an element, with its left edge and its middle height (px)."""

ROW = 20
_SYMBOL = 24
_SPACE = 18
_SIZE = 11


@dataclass(frozen=True, slots=True)
class LegendLine:
    """A symbol and its words."""

    draw: Symbol
    words: str  # its meaning


def dot_line(words: str) -> LegendLine:
    """Explain a dot."""
    return LegendLine(lambda parent, x, y: path(parent, "message dots", dots([(x + 9, y)]), stroke_width=5), words)


def outside_line(count: int) -> LegendLine:
    """Explain and count the dots of messages outside their windows."""
    return LegendLine(
        lambda parent, x, y: path(parent, "outside dots", dots([(x + 9, y)]), stroke_width=5),
        f"outside its batch's window ({count:,})",
    )


def bar_line(words: str) -> LegendLine:
    """Explain a bar that counts."""
    columns = ((4.0, 5.0), (8.0, 10.0), (12.0, 7.0))

    def draw(parent: Element, x: float, y: float) -> None:
        path(parent, "message bars", bars((x + at, y + 5, tall) for at, tall in columns), stroke_width=2)

    return LegendLine(draw, words)


def reason_lines(batches: Iterable[Batch], rejected: Iterable[Rejection]) -> list[LegendLine]:
    """Explain windows, cut windows and the marks of rejected messages; name and count each reason that occurs."""
    closed = Counter[str](batch.reason for batch in batches)
    refused = Counter[str](rejection.reason for rejection in rejected)
    lines: list[LegendLine] = []
    cuts = {reason: count for reason in CUTS if (count := closed.pop(reason, 0))}
    if closed:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in sorted(closed.items()))
        lines.append(LegendLine(_draw_windows, f"window closed by {reasons}"))
    lines += [LegendLine(_draw_cut_window, f"window cut by {reason} ({count:,})") for reason, count in cuts.items()]
    kinds = [kind for kind in REJECTED if refused[kind]]
    return lines + [LegendLine(_rejected_symbol(kind), f"rejected: {kind} ({refused[kind]:,})") for kind in kinds]


def _draw_windows(parent: Element, x: float, y: float) -> None:
    path(parent, "odd", [box(x, x + 9, y - 6, 12)])
    path(parent, "even", [box(x + 9, x + 18, y - 6, 12)])


def _draw_cut_window(parent: Element, x: float, y: float) -> None:
    path(parent, "even", [torn_box(x, x + 18, y - 6, 12)])


def _rejected_symbol(kind: str) -> Symbol:
    return lambda parent, x, y: path(parent, f"{kind} glyph", [GLYPHS[kind](x + 10, y, 4)])


def draw_legend(parent: Element, lines: Iterable[LegendLine], left: float, right: float, top: float) -> float:
    """Draw the lines in rows between ``left`` and ``right`` (px), the first row at ``top``.

    Returns the lower edge of the last row, px.
    """
    legend = add(parent, "g", class_="legend")
    x = left
    for line in lines:
        wide = _SYMBOL + text_width(line.words, _SIZE)
        if x > left and x + wide > right:
            x, top = left, top + ROW
        line.draw(legend, x, top + ROW / 2)
        add(legend, "text", class_="ink", x=x + _SYMBOL, y=top + ROW / 2 + 4, content=line.words)
        x += wide + _SPACE
    return top + ROW
