"""For tests of programs with message tables: all that is due is handled at once, and a clock that the test moves."""

from __future__ import annotations

from waterclock.testing.clock import Clock
from waterclock.testing.draining import drain

__all__ = ["Clock", "drain"]
