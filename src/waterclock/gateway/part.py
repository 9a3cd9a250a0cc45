"""A part of a gateway: a command that runs until it is stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A command in its own process.

    Attributes
    ----------
    name
        Its name for people; it precedes each line that it prints.
    words
        The command, without the program.
    stops_within
        Seconds in which it must end after a request to stop.
    reloads
        Whether it reads its file again at SIGHUP, which is blocked when it starts.
    """

    name: str
    words: tuple[str, ...]
    stops_within: float
    reloads: bool = False
