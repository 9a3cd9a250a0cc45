"""A child process of ``waterclock run``, which runs one command and stops when its parent is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from waterclock.cli import main

_PR_SET_PDEATHSIG = 1


def _stop_with(parent: int) -> None:
    """Arrange for SIGTERM when the parent ends for any reason: without it, this process has no supervisor."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    _stop_with(int(sys.argv[1]))
    main(sys.argv[2:])
