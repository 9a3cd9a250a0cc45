"""The main job as a newcomer runs it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark import short_lived

PATIENCE_S = 800  # it takes half a minute, and many times that on a machine that is busy
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)
PICTURE = Path(__file__).parent.parent.parent / "docs" / "images" / "timeline.svg"


def run_demo(folder: Path) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "waterclock", "demo", "--folder", str(folder), "--json"]
    environment = os.environ | short_lived.ENVIRONMENT
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "here"


@pytest.fixture(scope="module")
def first_run(folder: Path) -> tuple[dict[str, Any], str]:
    return run_demo(folder)


def test_the_main_job_balances_to_the_message(first_run: tuple[dict[str, Any], str]) -> None:
    books, said = first_run
    assert books["balances"]
    assert books["appended"] == 200_000
    assert books["before_start"] > 0
    assert books["appended"] == books["before_start"] + books["batched"] + sum(books["rejected"].values())
    assert books["batches"] == books["acked"] > 0
    assert books["delivered_again"] >= books["held_when_killed"] > 0
    assert "append 200,000 messages" in said


def test_the_picture_of_the_readme_is_the_one_that_the_main_job_draws(
    first_run: tuple[dict[str, Any], str], folder: Path
) -> None:
    assert (folder / "timeline.svg").read_text() == PICTURE.read_text()


@pytest.mark.slow  # as long as the first run
def test_it_runs_again_in_the_same_folder(first_run: tuple[dict[str, Any], str], folder: Path) -> None:
    again, _ = run_demo(folder)
    kept = ("appended", "before_start", "batched", "rejected", "batches", "acked")
    assert {name: again[name] for name in kept} == {name: first_run[0][name] for name in kept}


def test_it_refuses_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    command = [sys.executable, "-m", "waterclock", "demo", "--folder", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "holds other files" in ran.stderr
    assert (tmp_path / "precious.txt").read_text() == "mine"
