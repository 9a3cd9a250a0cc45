"""A server in a process of its own, as ``waterclock serve`` starts it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager


class Served:
    """A running server.

    Attributes
    ----------
    url
        Where it answers.
    process
        Its process.
    said
        What it has written to stderr until it answered.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        for line in process.stderr:
            self.said += line
            if found := re.search(r"serving \S+ at (\S+)", line):
                self.url = found[1]
                return
        raise AssertionError(self.said)


@contextmanager
def served(database_url: str, *options: str) -> Generator[Served]:
    """Serve a database at a free port until the block ends."""
    command = [sys.executable, "-m", "waterclock", "serve", "--url", database_url, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()
