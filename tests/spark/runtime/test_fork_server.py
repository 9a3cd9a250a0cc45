"""The process that the Python processes of an embedded Spark are forked from, without Spark."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waterclock.spark.runtime.worker_python import make_python

SHOW = """
import json, os, sys
print(json.dumps([os.getpid(), os.getppid(), sys.argv[1:], os.environ["GIVEN"], os.getcwd(), sys.stdin.readline()]))
print("said", file=sys.stderr)
sys.exit(3)
"""
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wc-") as name:  # a socket's path is short
        yield Path(name)


@contextmanager
def _serving(folder: Path) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "waterclock.spark.runtime.fork_server", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as running:
        while not (folder / "tasks.sock").exists():
            assert running.poll() is None
        yield running


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with _serving(folder) as running:
        yield running
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(60) == 0


def _launched(folder: Path, module: str, program: str, *arguments: str) -> subprocess.Popen[str]:
    modules = folder / "modules"
    modules.mkdir(exist_ok=True)
    (modules / f"{module}.py").write_text(program)
    return subprocess.Popen(
        [make_python(folder / "python", folder), "-m", module, *arguments],
        cwd=modules,
        env=os.environ | {"GIVEN": "ä\n", "PYTHONPATH": str(modules)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_forked_process_has_what_its_launcher_was_given(folder: Path, server: subprocess.Popen[bytes]) -> None:
    with _launched(folder, "show", SHOW, "an argument", "") as launcher:
        said, errors = launcher.communicate("a line\n", 60)
    process, parent, *given = json.loads(said)
    assert (parent, errors) == (server.pid, "said\n")
    assert process != launcher.pid
    assert given == [["an argument", ""], "ä\n", str(folder / "modules"), "a line\n"]


@pytest.mark.usefixtures("server")
def test_a_forked_process_ends_with_its_launcher(folder: Path) -> None:
    with _launched(folder, "wait", WAIT) as launcher:
        assert launcher.stdout is not None
        process = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
        assert select.select([process], [], [], 60)[0], "it did not end"
        os.close(process)


@pytest.mark.usefixtures("server")
def test_an_error_of_a_forked_process_is_shown(folder: Path) -> None:
    with _launched(folder, "fails", "raise ValueError('broken')") as launcher:
        assert "ValueError: broken" in launcher.communicate(timeout=60)[1]


@pytest.mark.parametrize("killed", ["planning", "tasks"])
def test_after_one_of_its_processes_was_killed_launchers_become_the_processes_that_it_forked(killed: str) -> None:
    with tempfile.TemporaryDirectory(prefix="wc-") as name, _serving(Path(name)) as server:
        arguments = {"planning": [], "tasks": ["pyspark.worker"]}
        parents = {"planning": server.pid}
        with _launched(Path(name), "show", SHOW, *arguments["tasks"]) as launcher:
            parents["tasks"] = json.loads(launcher.communicate("", 60)[0])[1]
        assert parents["tasks"] != server.pid
        ended = os.pidfd_open(parents[killed])
        os.kill(parents[killed], signal.SIGKILL)
        assert select.select([ended], [], [], 60)[0]
        os.close(ended)
        with _launched(Path(name), "show", SHOW, *arguments[killed]) as launcher:
            try:
                assert json.loads(launcher.communicate("", 60)[0])[0] == launcher.pid
            finally:
                launcher.kill()


def test_without_a_server_the_launcher_becomes_the_process(tmp_path: Path) -> None:
    with _launched(tmp_path, "show", SHOW) as launcher:
        said, _ = launcher.communicate("", 60)
    assert json.loads(said)[0] == launcher.pid
    assert launcher.returncode == 3
