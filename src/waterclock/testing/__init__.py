"""Helpers for testing programs with message tables. They handle all due messages immediately, and move the clock."""

from __future__ import annotations

from waterclock.testing.clock import Clock
from waterclock.testing.draining import drain

__all__ = ["Clock", "drain"]
