"""The colours and the style sheet of every picture, for light and dark backgrounds.

The colours of messages rejected by time come from Okabe and Ito's palette, which colour-blind people can distinguish.
Each kind of rejection also has its own shape.
"""

from __future__ import annotations

REJECTED = {
    "late": ("#d55e00", "#ff8b3d"),
    "future": ("#9a4f86", "#e2a3d0"),
    "duplicate": ("#00805f", "#3fd0a5"),
    "replaced": ("#8a6a00", "#e6c34f"),
    "no_id": ("#3d444d", "#c5cdd6"),
    "undeclared": ("#7b4a1d", "#d9a26b"),
}
"""Kinds of rejected messages in the order of legends: colour on light, colour on dark."""

_COLOURS = {
    # class: (property, on light, on dark)
    "panel": ("fill", "#ffffff", "#0d1117"),
    "frame": ("stroke", "#d1d9e0", "#30363d"),
    "lane": ("fill", "#f3f5f7", "#161c24"),
    "grid": ("stroke", "#dde3e8", "#29313a"),
    "odd": ("fill", "#c9e3f6", "#123b5e"),
    "even": ("fill", "#9fcdec", "#1d5a8a"),
    "message": ("stroke", "#0c4a7c", "#b5dcff"),
    "outside": ("stroke", "#d55e00", "#ff8b3d"),
    "ink": ("fill", "#1f2328", "#e9eef4"),
    "muted": ("fill", "#57606a", "#9aa4af"),
    "link": ("stroke", "#8a95a1", "#6d7884"),
}

_SHAPES = """
.wc text{font:11px system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums}
.wc text.title{font-size:17px;font-weight:600}
.wc text.name{font-size:13px;font-weight:600}
.wc text.small{font-size:9px}
.wc text.middle{text-anchor:middle}
.wc text.end{text-anchor:end}
.wc path{fill:none}
.wc .dots{stroke-linecap:round}
.wc .closing{stroke-dasharray:3 3}
.wc .glyph{stroke-width:1.4;stroke-linejoin:round}
"""


def style_sheet() -> str:
    """Write the style sheet. Every rule begins with the picture's own class, so that a page may hold it inline."""
    return f"{_SHAPES}{_rules(0)}@media (prefers-color-scheme:dark){{\n{_rules(1)}}}\n"


def _rules(surrounding: int) -> str:
    rules = [f".wc .{name}{{{key}:{colours[surrounding]}}}" for name, (key, *colours) in _COLOURS.items()]
    for name, colours in REJECTED.items():
        rules += [f".wc .{name}{{stroke:{colours[surrounding]}}}"]
        rules += [f".wc text.{name}{{stroke:none;fill:{colours[surrounding]}}}"]
    return "\n".join(rules) + "\n"
