"""Processes that die at a chosen moment, as an error that nothing catches."""

from __future__ import annotations


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it, so no clean-up runs."""
