"""Workers of pytest-xdist that are forked from one process, which has imported and collected all tests.

Otherwise each worker would import and collect by itself, for a dozen seconds of processor time.

xdist starts each worker as a Python that executes the first line of its standard input. Instead of Python, it starts
a small program here, which sends its standard streams to the process that forks and waits until the worker ends.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import execnet
import pytest
import xdist.remote
from _pytest import tmpdir

ROOT = Path(__file__).resolve().parents[2]
_STAND_IN = (
    "import socket, sys; peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1]);"
    " socket.send_fds(peer, [b'.'], [0, 1, 2]); peer.recv(1)"
)


def fork_workers(config: pytest.Config, specs: Sequence[execnet.XSpec]) -> None:
    """Start the process that forks, wait until it has collected the tests, and make xdist take workers from it."""
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    path = f"{folder.name}/socket"
    ours, theirs = socket.socketpair()
    arguments = [str(config.invocation_params.dir), *map(str, config.invocation_params.args)]
    with theirs, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        files = [theirs.fileno(), listener.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps([*files, *arguments])],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=files,
        )
    config.add_cleanup(process.wait)
    config.add_cleanup(ours.close)  # runs before the one above; the process ends when this end is closed
    if not ours.recv(1):
        pytest.exit(
            "cannot start workers: the tests were not collected. See the error above", returncode=process.wait()
        )
    config.pluginmanager.register(_RemoteModule())
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-IS", "-c", _STAND_IN, path])


class _RemoteModule:
    """Replaces what xdist executes in a worker, which would collect the tests again."""

    def pytest_xdist_getremotemodule(self) -> str:
        return "import __main__; __main__.forking.hand_over(channel)"


class _Forking:
    """A plugin that collects as usual, then forks a worker for each request, and runs tests in these workers only."""

    def __init__(self, controller: socket.socket, listener: socket.socket) -> None:
        self._controller = controller
        self._listener = listener
        self._reports: list[tuple[str, dict[str, object]]] = []
        self._channels: queue.SimpleQueue[execnet.Channel] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._gateway: threading.Thread | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.workerinput = {}  # plugins recognise a worker by it

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._reports.append(("pytest_collectreport", {"report": report}))

    def pytest_warning_recorded(self, warning_message: object, when: str, nodeid: str, location: object) -> None:
        if when == "collect":
            warning = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
            self._reports.append(("pytest_warning_recorded", warning))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        # Workers that inherited the open files of captured output would overwrite each other's.
        capture = session.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        if forked := sys.modules.get("tests.support.forked"):
            forked.start_server()  # one for all workers, since it imports for two seconds
        self._controller.send(b".")
        workers: list[int] = []
        while self._listener in select.select([self._controller, self._listener], [], [])[0]:
            peer, _ = self._listener.accept()
            _, streams, _, _ = socket.recv_fds(peer, 1, 3)
            if (worker := os.fork()) == 0:
                self._controller.close()
                self._listener.close()
                for stream, file in enumerate(streams):
                    os.dup2(file, stream)
                    os.close(file)
                self._run(session)
                return True
            workers.append(worker)
            for file in (*streams, peer.detach()):
                os.close(file)
        for worker in workers:
            os.waitpid(worker, 0)
        os._exit(0)

    def _run(self, session: pytest.Session) -> None:
        """Run the tests that the controller sends, as `xdist.remote` does, with a session that has collected."""
        self._gateway = threading.Thread(target=_serve)
        self._gateway.start()
        channel = self._channels.get()
        config = session.config
        config.pluginmanager.unregister(self)
        config.workerinput, _, options, _ = channel.receive()
        config.workeroutput = {}
        config.option.basetemp = options.get("basetemp")
        tmpdir.pytest_configure(config)
        # Otherwise each process that a test spawns would import this file, and pytest with it.
        main = sys.modules["__main__"]
        main.__spec__ = main.__file__ = None
        os.environ["PYTEST_XDIST_TESTRUNUID"] = config.workerinput["testrunuid"]
        os.environ["PYTEST_XDIST_WORKER"] = config.workerinput["workerid"]
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(config.workerinput["workercount"])
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.start_global_capturing()
        capture.suspend_global_capture()
        worker = xdist.remote.interactor = xdist.remote.WorkerInteractor(config, channel)
        worker.pytest_sessionstart(session)
        for hook, arguments in self._reports:
            getattr(worker, hook)(**arguments)
        worker.pytest_collection_finish(session)
        worker.pytest_runtestloop(session)

    def hand_over(self, channel: execnet.Channel) -> None:
        """Pass a worker's channel to its main thread, and keep it open until the session is over."""
        self._channels.put(channel)
        self._is_over.wait()

    def end(self) -> None:
        """Close the channel of a worker, and wait until the controller ends the connection."""
        self._is_over.set()
        if self._gateway:
            self._gateway.join()


def _serve() -> None:
    exec(eval(sys.stdin.readline()), {"__name__": "execnet"})  # noqa: S102, S307  # as the Python would that xdist starts


if __name__ == "__main__":
    controller, listener, folder, *arguments = json.loads(sys.argv[1])
    os.chdir(folder)
    forking = _Forking(socket.socket(fileno=controller), socket.socket(fileno=listener))
    code = pytest.main([*arguments, "-n0"], plugins=[forking])
    forking.end()
    atexit._run_exitfuncs()
    os._exit(code)  # Python would first take every object apart, for a second
