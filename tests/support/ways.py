"""The way of a call: how many functions, in how many files of ours, it passes.

It is counted and not timed, so that the figures are the same on every machine. Clocks are no stations of the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import waterclock

SOURCES = Path(waterclock.__file__).parent
CLOCKS = {SOURCES / "_support" / "moments.py", SOURCES / "time.py"}
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}  # not functions since Python 3.12

WARM = 5
"""Rounds after which every statement is compiled and everything that is kept is there."""


@dataclass(frozen=True)
class Way:
    calls: int
    files: int


def way_of(verb: Callable[[], Any]) -> tuple[Any, Way]:
    """Follow a call; return what it gives, and what it passes."""
    passed: list[Path] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            file = Path(frame.f_code.co_filename)
            is_function = frame.f_code.co_name not in COMPREHENSIONS
            if is_function and file.is_relative_to(SOURCES) and file not in CLOCKS:
                passed.append(file)

    sys.setprofile(note)
    try:
        given = verb()
    finally:
        sys.setprofile(None)
    return given, Way(len(passed), len(set(passed)))


def fewest(ways: list[Way]) -> Way:
    """Choose the usual way: once a second a call looks at the options, too."""
    return min(ways, key=lambda way: way.calls)


def is_within(way: Way, calls: int, files: int) -> bool:
    return way.calls <= calls and way.files <= files
