"""tests/support/forked_workers.py: workers of pytest-xdist that are forked from one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forked_workers import ROOT

CONFTEST = "from tests.support.forked_workers import fork_workers as pytest_xdist_setupnodes\n"
TESTS = """
import os
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
import pytest

with open("imports", "a") as file:
    file.write("imported\\n")

def test_first(tmp_path, worker_id):
    Path(worker_id).write_text(str(tmp_path))

@pytest.mark.parametrize("number", range(4))
def test_output_of_failures(number):
    print("printed by", number)
    assert number != 2

def test_spawned_processes_do_not_import_what_runs_the_tests():
    assert not {"init_main_from_name", "init_main_from_path"} & get_preparation_data("").keys()

def test_a_crash():
    os._exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True)


def test_workers_share_an_import_and_report_as_those_of_xdist_do(folder: Path) -> None:
    (folder / "test_it.py").write_text(TESTS)

    ran = run(folder, "-n2", "--dist=load")

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "2 failed, 5 passed" in ran.stdout
    assert "worker 'gw" in ran.stdout  # that crashed; another one has replaced it
    assert "printed by 2" in ran.stdout
    assert (folder / "imports").read_text() == "imported\n"
    [worker] = folder.glob("gw*")
    assert f"/popen-{worker.name}/" in worker.read_text()


def test_errors_of_collecting_are_reported(folder: Path) -> None:
    (folder / "test_it.py").write_text("import missing_module\n")
    failed = run(folder, "-n2")
    assert failed.returncode != 0
    assert "No module named 'missing_module'" in failed.stdout

    refused = run(folder, "-n2", "missing_file")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "missing_file" in refused.stderr
