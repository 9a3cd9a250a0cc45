"""The arrays on which the kernel's functions work, and the decorators that compile these functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.kernels import numba_for

njit, types = numba_for(__name__)

internal = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)  # only compiled code calls it
inlined = njit(error_model="numpy", inline="always")

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Links = npt.NDArray[np.int32]
Table = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint32]  # unsigned, because Numba then leaves out the test for negative indices


class Known(NamedTuple):
    """The state except messages; ``tracks`` and ``rings`` have a row per gating stream, and one for all others."""

    facts: Ints
    tracks: Table
    rings: Table


class WaitingMessages(NamedTuple):
    """By message: its track, its event time, and in ``links`` its children in a pile and the track it waits for."""

    rows: Codes
    times: Ints
    links: Links


class KernelOutput(NamedTuple):
    """Messages in the order in which they joined a window, and a row for each batch."""

    joined: Ints
    batches: Table
