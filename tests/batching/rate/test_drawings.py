"""The documentation's drawings are those of the scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.batching.rate.drawings import DRAWINGS, drawing
from tests.batching.rate.scenario import FOLDER

PATHS = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_drawing_is_current(path: Path) -> None:
    kept = DRAWINGS / f"{path.stem}.svg"
    assert kept.read_text("utf-8") == drawing(path), "draw anew: python -m tests.batching.rate.drawings"


def test_there_is_no_drawing_without_a_scenario() -> None:
    assert {path.stem for path in DRAWINGS.glob("*.svg")} == {path.stem for path in PATHS}
