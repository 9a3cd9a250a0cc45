"""Parses positions and times in the arguments of commands."""

from __future__ import annotations

import re

from waterclock.message import Position


def position_or_time(text: str) -> Position | str:
    """Read ledger:entry:index as a position, anything else as a time."""
    return Position.parse(text) if re.fullmatch(r"-?\d+:-?\d+:-?\d+", text) else text
