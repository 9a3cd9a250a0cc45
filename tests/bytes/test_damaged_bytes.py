"""Written bytes that are changed in any way: no process dies, no error is Python's own, and nothing reads as something
else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.bytes.damaging import AT
from tests.bytes.forms import FORMS

NAMES = list(FORMS)
ROOT = Path(__file__).parents[2]
SHORT = 600  # mutations of each form; the long test makes a hundred thousand


def read_damaged(place: Path, first: int, count: int, names: list[str]) -> dict[str, Any]:
    """Read mutations in processes of their own: one for all, and another wherever one dies."""
    place.write_bytes(AT.pack(NAMES.index(names[0]), first))
    numbers = [str(NAMES.index(name)) for name in names]
    child = subprocess.run(
        [sys.executable, "-m", "tests.bytes.damaging", str(place), str(first), str(count), *numbers],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,  # it may die
    )
    if child.returncode == 0:
        return json.loads(child.stdout)
    number, seed = AT.unpack(place.read_bytes())
    died = NAMES[number]
    said = f"mutation {seed} ended the process with {child.returncode}: {child.stderr[-2000:]}"
    others = [name for name in names if name != died]
    found = read_damaged(place, first, count, others) if others else {}
    return {**found, died: {"outcomes": {}, "wrong": [said]}}


def assert_sound(found: dict[str, Any], count: int) -> None:
    assert found["wrong"] == []
    assert sum(found["outcomes"].values()) == count
    assert found["outcomes"]["accepted"] < 3 / 4 * count  # so that what is tested is damage


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return read_damaged(tmp_path_factory.mktemp("damaged") / "at", 0, SHORT, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_hundreds_of_mutations_of_each_form_do_no_harm(damaged: dict[str, Any], name: str) -> None:
    assert_sound(damaged[name], SHORT)


def test_damaged_bytes_take_no_more_memory_than_sound_ones(damaged: dict[str, Any]) -> None:
    assert damaged["peak"] < 2**30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_thousand_mutations_of_each_form_do_no_harm(tmp_path: Path, name: str) -> None:
    assert_sound(read_damaged(tmp_path / "at", 10_000, 100_000, [name])[name], 100_000)


def test_a_process_that_dies_is_noticed_with_the_mutation_that_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    assert read_damaged(tmp_path / "at", 7, 1, ["batch"])["batch"]["wrong"] == ["mutation 7 ended the process with 1: "]
