"""Linux's means against orphans: children that end with their parent, and a process killed together with its own."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent(sent: signal.Signals) -> Callable[[], None]:
    """Give what a child must do before it runs its program, to be sent this signal when its parent dies."""
    parent = os.getpid()

    def ask_kernel() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(sent))
        # The parent may have died before the kernel was asked.
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel


def kill_with_children(process: subprocess.Popen[bytes], patience: float) -> None:
    """Kill a process and its children, and return when they have ended.

    Raises
    ------
    TimeoutError
        Where one is still there after ``patience`` seconds.
    """
    # Stopped first, so that it has no more children than those counted here.
    process.send_signal(signal.SIGSTOP)
    children = [os.pidfd_open(pid) for pid in children_of(process.pid)]
    process.kill()
    try:
        for child in children:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        process.wait()
        for child in children:
            if not select.select([child], [], [], patience)[0]:
                raise TimeoutError(f"a child of process {process.pid} outlives SIGKILL by {patience:g} s")
    finally:
        for child in children:
            os.close(child)


def children_of(parent: int) -> list[int]:
    """List the processes whose parent this is."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command's name stands in brackets and may hold anything, so fields are counted from its end.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
