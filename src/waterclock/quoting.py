"""How an error quotes a value: whole where it is short, else its beginning and how long it is.

What a caller gave by mistake may be a file's content. Whole in an error it would fill a log, and travel to wherever
the error does.
"""

from __future__ import annotations

_WHOLE = 160
"""Characters of a value's own spelling up to which it is quoted whole."""

_BEGINNING = 80

_TEXT = 1000
"""Characters of a whole error text, quoted values and all."""

_TEXT_END = 300
"""An error ends with the remedy, so its end stays as well."""


def quoted(value: object) -> str:
    """Spell a value as ``repr`` does, cut where it is long."""
    if isinstance(value, str | bytes | bytearray) and len(value) > _WHOLE:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:_BEGINNING]!r}… ({len(value)} {unit})"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a value that cannot be spelled, as an int of 5,000 digits, is no less wrong
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _WHOLE else f"{text[:_BEGINNING]}… ({len(text)} characters)"


def cut(text: str) -> str:
    """Cut an error's text in its middle where it is long: what another program's error says may quote anything."""
    if len(text) <= _TEXT:
        return text
    left_out = len(text) - _TEXT
    return f"{text[: _TEXT - _TEXT_END]}… ({left_out} characters left out) …{text[-_TEXT_END:]}"
