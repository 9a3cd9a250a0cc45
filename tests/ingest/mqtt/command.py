"""A command line in a process of its own."""

from __future__ import annotations

from waterclock.cli.app import DONE, run


def main(*words: str) -> None:
    """Run a command, and fail if it does."""
    assert run(list(words)) == DONE
