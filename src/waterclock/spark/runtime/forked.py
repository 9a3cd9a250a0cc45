"""Replaces a Python process that Java would start: asks the fork server to fork one.

Java starts ``python -I -S forked.py FOLDER -m MODULE [ARGUMENT]``. This script asks the fork server in FOLDER to fork a
Python process that runs MODULE, and ends when the forked process ends. If the server does not answer, the script runs
MODULE itself. It imports little, to start fast.
"""

from __future__ import annotations

import json
import os
import socket
import sys

PLANNING, TASKS = "planning.sock", "tasks.sock"
"""The sockets of the server: for workers of tasks, and for all others."""

LENGTH = 16
"""Bytes of the number that says how long a request is."""


def _main(folder: str, command: list[str]) -> None:
    _, module, *arguments = command
    name = TASKS if arguments == ["pyspark.worker"] else PLANNING
    asked = json.dumps([module, arguments, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109  # as below
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.path.join(folder, name))  # noqa: PTH118  # pathlib takes as long to import as all else
            socket.send_fds(server, [b"%*d" % (LENGTH, len(asked))], [0, 1, 2])
            server.sendall(asked)
        except OSError:
            os.execv(sys.executable, [sys.executable, *command])  # noqa: S606  # as Java would have done
        server.recv(1)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2:])
