"""The documentation's drawings are those of the use cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.batching.event_time.drawings import DRAWINGS, drawing
from tests.batching.event_time.scenario import scenario_files


@pytest.mark.parametrize("path", scenario_files(), ids=lambda path: path.stem)
def test_a_drawing_is_current(path: Path) -> None:
    kept = DRAWINGS / f"{path.stem}.svg"
    assert kept.read_text("utf-8") == drawing(path), "draw anew: python -m tests.batching.event_time.drawings"


def test_there_is_no_drawing_without_a_use_case() -> None:
    assert {path.stem for path in DRAWINGS.glob("*.svg")} == {path.stem for path in scenario_files()}
