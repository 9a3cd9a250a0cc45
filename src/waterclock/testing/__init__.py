"""For tests of programs with message tables: all due messages are handled at once, and the test moves the clock."""

from __future__ import annotations

from waterclock.testing.clock import Clock
from waterclock.testing.draining import drain

__all__ = ["Clock", "drain"]
