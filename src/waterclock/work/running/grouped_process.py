"""Starts a child process in its own process group. Killing the child also kills the processes that it started."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from multiprocessing.popen_spawn_posix import Popen
from typing import Any


def lead_group() -> None:
    """Turn this process, a `GroupedProcess`, into the leader of a process group for its children."""
    os.setpgid(0, 0)


class GroupedProcess(SpawnProcess):
    """A spawned process. If it is killed or fails, its process group is killed before its id can be reused."""

    @staticmethod
    def _Popen(process_obj: Any) -> _GroupPopen:  # noqa: N802  # pyright: ignore[reportIncompatibleMethodOverride]  # multiprocessing's name
        return _GroupPopen(process_obj)


class _GroupPopen(Popen):
    """Kills the group before it reaps the child.

    Until then no other process, and so no other group, can get the child's process id. Whenever multiprocessing starts
    a child it also reaps others, so the group must be killed here.
    """

    def __init__(self, process_obj: Any) -> None:
        self._reaping = threading.Lock()
        super().__init__(process_obj)

    def kill(self) -> None:
        """Kill the child and its group, unless it was reaped."""
        with self._reaping:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)
                self._kill_group()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return how the child ended; None: it runs. Without the flag, wait for its end."""
        if flag != os.WNOHANG:
            self._look(0)
        with self._reaping:
            ended = self._look(os.WNOHANG) if self.returncode is None else None
            if ended is not None and (ended.si_code, ended.si_status) != (os.CLD_EXITED, 0):
                self._kill_group()
            return super().poll(os.WNOHANG)

    def _look(self, flag: int) -> Any:
        """Check how the child ended without reaping it; None: it runs, or was reaped elsewhere."""
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flag)
        return None

    def _kill_group(self) -> None:
        with suppress(
            ProcessLookupError, PermissionError
        ):  # it leads no group yet, or a member belongs to another user
            os.killpg(self.pid, signal.SIGKILL)
