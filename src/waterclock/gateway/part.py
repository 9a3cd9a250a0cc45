"""A part of a gateway: a command that runs until it is stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A command in its own process."""

    name: str  # its name for people; it precedes each line that it prints
    words: tuple[str, ...]  # the command, without the program
    stops_within: float  # seconds in which it must end after a request to stop
    reloads: bool = False  # whether it reads its file again at SIGHUP, which is blocked when it starts
