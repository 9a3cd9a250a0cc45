"""Kernels as in a process that has not imported their compiled form."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

from waterclock.batching import kernels
from waterclock.batching.kernels import KERNELS, Kernel


@contextmanager
def interpreting(rows: int = 2**31) -> Generator[None]:
    """Act as a process that has not imported the compiled form, for this many rows of a kernel."""
    nothing = property(lambda _: None)
    few = patch.object(kernels, "INTERPRETED_ROWS", rows)
    with patch.dict(sys.modules), few, patch.object(Kernel, "shipped", nothing):
        for name in KERNELS:
            sys.modules.pop(name, None)
        yield


@contextmanager
def in_form(*, compiled: bool) -> Generator[None]:
    """Run kernels in one form."""
    if compiled:  # what is imported stays: each further import loads the machine code again
        with patch.object(kernels, "INTERPRETED_ROWS", 0):
            yield
    else:
        with interpreting():
            yield
