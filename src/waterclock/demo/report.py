"""The interface through which a demo reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

ProgressReport = Callable[[int], None]
"""Takes the number of finished parts of a step."""


class Report(Protocol):
    """Shows the progress of the job."""

    def step(self, text: str, total: int | None = None) -> AbstractContextManager[ProgressReport]:
        """Begin a step of ``total`` parts, or of an unknown number."""
        ...

    def say(self, text: str) -> None:
        """Print a result."""
        ...
