"""Processes that tests start, kill and start again: forked from one that has imported everything.

A Python that imports Waterclock takes half a second of processor; a fork of one that has, some milliseconds. What is
forked has run nothing of Waterclock and has no threads, so it differs in nothing from a process that began by itself.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "psycopg",
    "pyarrow.parquet",
    "pymysql",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "structlog",
    "waterclock.batching.event_time.columns",
    "waterclock.cli.app",
    "waterclock.connection",
    "waterclock.ingest.ingest",
    "waterclock.ingest.kafka.kafka_ingest",
    "waterclock.live.follower",
    "waterclock.tables.message_table",
    "waterclock.topics.topic",
    "waterclock.work.worker",
)
_NUMBER = struct.Struct("i")
_LONGEST = 65_536  # bytes of a request
_PR_SET_PDEATHSIG = 1


class Forked:
    """A process that runs ``main(*arguments)`` of a module; to its parent it is as a `subprocess.Popen` is.

    Parameters
    ----------
    module
        Such as ``"tests.tables.upkeep.worker"``. It is imported in the new process, so its random numbers are its own.
    arguments
        Texts, or what becomes one.

    Attributes
    ----------
    pid
        Its process id.
    returncode
        None until `poll` or `wait` has seen its end; the negative number of the signal that killed it.
    stdout
        What it prints.
    """

    def __init__(self, module: str, *arguments: object) -> None:
        self._states, states = os.pipe()
        printed, stdout = os.pipe()
        request = json.dumps([module, *map(str, arguments)]).encode()
        assert len(request) < _LONGEST
        socket.send_fds(start_server(), [request], [states, stdout])
        os.close(states)
        os.close(stdout)
        self.stdout = open(printed, encoding="utf-8")  # noqa: PTH123, SIM115  # a pipe; closed by close()
        self.returncode: int | None = None
        self.pid = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.kill()  # a test that has failed may never let it end
        self.wait()

    def poll(self) -> int | None:
        """Give its exit code, or None while it runs."""
        if self.returncode is None and select.select([self._states], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for its end; give its exit code."""
        if self.returncode is None:
            self.returncode = self._read()
            os.close(self._states)
        return self.returncode

    def kill(self) -> None:
        """Kill it, where it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> int:
        read = os.read(self._states, _NUMBER.size)
        assert read, "the process that forks has ended: its error is above"
        return _NUMBER.unpack(read)[0]


@cache
def start_server() -> socket.socket:
    """Start the process that forks, unless it runs; it ends with this one and its forks, which share it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    pa.array([0])  # pyarrow imports pandas at the first list it meets
    gc.freeze()  # a collection in a fork would copy each page of these objects
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}  # process id: where its end is reported
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, _LONGEST)
            _report_ends(children)
        if requests not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, _LONGEST, 2)
        if not request:
            return  # each child is killed with this process
        states, stdout = files
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for each in (requests.detach(), woken, wake, states, *children.values()):
                os.close(each)
            os.dup2(stdout, 1)
            os.close(stdout)
            _run(*json.loads(request))
        os.close(stdout)
        os.write(states, _NUMBER.pack(child))
        children[child] = states


def _report_ends(children: dict[int, int]) -> None:
    for child in list(children):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            states = children.pop(child)
            os.write(states, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
            os.close(states)


def _run(module: str, *arguments: str) -> None:
    code = 1
    try:
        importlib.import_module(module).main(*arguments)
        sys.stdout.flush()
        code = 0
    except BaseException:  # noqa: BLE001  # nothing may lead the child back into the loop of its parent
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
