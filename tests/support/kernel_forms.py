"""Kernels as in a process that has not imported their compiled form."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

from waterclock.batching import kernels

KERNELS = (
    "waterclock.batching.event_time.kernel",
    "waterclock.batching.rate.by_column.kernel",
    "waterclock.batching.rate.clock_alignment",
    "waterclock.columnar.batch_bytes_kernel",
    "waterclock.columnar.packing_kernel",
)


@contextmanager
def interpreting(rows: int = 2**31) -> Generator[None]:
    """Act as a process that has not imported the compiled form, for this many rows of a kernel."""
    with patch.dict(sys.modules), patch.object(kernels, "INTERPRETED_ROWS", rows):
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
