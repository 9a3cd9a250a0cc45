"""Builds SVG text. Escapes all attributes and texts, and writes numbers in one short format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

# XML 1.0 cannot contain the first ones, not even escaped, and the others control or reorder the text around them. A
# source's name may contain any of them.
_FORBIDDEN = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)

_LETTER = 0.6
"""Estimated width of a letter in a sans-serif font, relative to the font's size; bold ones are a tenth wider."""

Value = str | int | float


class Svg(str):
    """The text of an SVG picture, which a notebook shows as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def picture(width: float, height: float, title: str, description: str, style: str) -> Element:
    """Begin an SVG picture of ``width`` by ``height`` pixels with its texts for screen readers.

    Without a ``style`` sheet, the page that holds the picture has it.
    """
    root = Element("svg")
    _set(
        root,
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {number(width)} {number(height)}",
            "width": width,
            "height": height,
            "class": "wc",
            "role": "img",
        },
    )
    add(root, "title", content=title)
    add(root, "desc", content=description)
    if style:
        add(root, "style", content=style)
    return root


def add(parent: Element, name: str, *, content: str | None = None, **attributes: Value) -> Element:
    """Add an element below ``parent``.

    Underscores in attribute names become hyphens, and ``class_`` becomes ``class``.
    """
    element = SubElement(parent, name)
    _set(element, {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})
    if content is not None:
        element.text = _printable(content)
    return element


def path(parent: Element, class_: str, pieces: Iterable[str], *, stroke_width: float | None = None) -> None:
    """Add one path made of ``pieces`` of path data; nothing if there are no pieces."""
    data = "".join(pieces)
    if data:
        element = add(parent, "path", class_=class_, d=data)
        if stroke_width is not None:
            element.set("stroke-width", number(stroke_width))


def to_text(root: Element) -> Svg:
    """Write the picture as text, one element per line."""
    indent(root, space=" ")
    return Svg(tostring(root, encoding="unicode") + "\n")


def number(value: float) -> str:
    """Write a number with at most one decimal, a tenth of a pixel: ``12``, ``12.5``, ``.5``, ``-3``."""
    text = f"{value:.1f}".removesuffix(".0")
    if text == "-0":
        return "0"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def text_width(text: str, size: float) -> float:
    """Estimate the width of ``text`` in a sans-serif font of ``size`` pixels."""
    return _LETTER * size * len(text)


def shorten(text: str, size: float, width: float) -> str:
    """Cut ``text`` with an ellipsis if it is estimated to be wider than ``width`` pixels."""
    room = max(1, int(width / (_LETTER * size)))
    return text if len(text) <= room else text[: room - 1] + "…"


def _set(element: Element, attributes: dict[str, Value]) -> None:
    for key, value in attributes.items():
        element.set(key, _printable(value) if isinstance(value, str) else number(value))


def _printable(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
