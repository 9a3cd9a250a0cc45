"""A part of a gateway: a command that runs until it is stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A command of its own process.

    Attributes
    ----------
    name
        What people call it; it stands before each line that it prints.
    words
        The command, without the program.
    stops_within
        Seconds that it has to end once it is asked to.
    reloads
        Whether it reads its file again at SIGHUP.
    """

    name: str
    words: tuple[str, ...]
    stops_within: float
    reloads: bool = False
