"""Builds small HTML tables for notebooks. All texts are escaped, and long texts are cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from waterclock._support.quoting import in_a_line


def facts_as_html(title: str, facts: Mapping[str, object]) -> str:
    """Write a title, and a table with a row for each fact."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_text(name)}</th>{_cell(fact)}</tr>" for name, fact in facts.items()
    )
    return f"<p><strong>{_text(title)}</strong></p><table>{rows}</table>"


def rows_as_html(names: Sequence[str], rows: Sequence[Sequence[object]], count: int) -> str:
    """Write rows below the names of their columns, and how many of ``count`` rows are left out."""
    head = "".join(f"<th style='text-align:left'>{_text(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    left_out = count - len(rows)
    more = f"<p>… and {left_out:,} more</p>" if left_out > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    return f"<td style='text-align:left'>{_text('' if value is None else value)}</td>"


def _text(value: object) -> str:
    return escape(in_a_line(str(value)))
