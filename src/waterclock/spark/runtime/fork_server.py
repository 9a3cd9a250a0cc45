"""Forks the Python processes of an embedded Spark from one process, so that each import happens only once.

Spark starts a Python process for each kind of work: to look up the format, to plan reads, to plan the state of each
stream, and for tasks. Each process would spend up to some seconds on the same imports, and each stream needs two
processes. So all of them are forked from one process, the fork server, which has done these imports. When the driver
ends, the fork server's stdin is closed, and the fork server ends, too.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from waterclock.spark.runtime.forked import LENGTH, PLANNING, TASKS
from waterclock.spark.runtime.workers import FOR_TASKS, prepare

_FOR_PLANNING = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.plan_data_source_read",
    "waterclock.connection",
    "waterclock.spark.reading.topic_stream",
    "waterclock.spark.registering",
    "waterclock.spark.streaming.stateful",
)


def main(folder: Path) -> None:
    """Fork processes for those who connect to the sockets in ``folder``, until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Java and its processes ignore it
    planning, tasks = (_listener(folder / name) for name in (PLANNING, TASKS))
    prepare(_FOR_PLANNING)
    signal.signal(signal.SIGCHLD, _reap)
    listeners = [planning, tasks]
    while (ready := _ready(listeners)) is not None:
        if len(listeners) == 1 or ready is planning:
            _fork(ready, listeners)
        else:
            # Those who plan do not wait for the imports of tasks: Spark waits for them for 10 s only.
            mine, others = (tasks, planning) if os.fork() == 0 else (planning, tasks)
            listeners.remove(others)
            others.close()  # otherwise launchers would wait for the other process after that was killed
            if mine is tasks:
                prepare(FOR_TASKS, compiled=True)
    for listener in listeners:
        listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(socket.SOMAXCONN)
    return listener


def _ready(listeners: Sequence[socket.socket]) -> socket.socket | None:
    """Wait for a connection; return its listener, or None once stdin is closed."""
    ready: list[Any] = select.select([sys.stdin, *listeners], [], [])[0]
    return None if sys.stdin in ready else ready[0]


def _fork(listener: socket.socket, listeners: Sequence[socket.socket]) -> None:
    connection, _ = listener.accept()
    with connection:
        if os.fork():
            return
        for each in listeners:
            each.close()
        code = 1
        try:
            code = _run(connection)
        except BaseException:  # noqa: BLE001  # as Python itself at the end of a program
            traceback.print_exc()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(connection: socket.socket) -> int:
    """Become the process that a launcher asks for: with its arguments, environment, folder and streams."""
    start, descriptors, _, _ = socket.recv_fds(connection, LENGTH, 3)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with connection.makefile("rb") as asked:
        module, arguments, environment, folder = json.loads(asked.read(int(start)))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [folder, *given, *(entry for entry in sys.path[1:] if entry not in given)]
    if not arguments:  # one that forks others ends when Java closes its stdin, and this one with its launcher
        threading.Thread(target=_end_with, args=[connection], daemon=True).start()
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _end_with(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
