"""Draws the scenarios of batching by rate for the documentation: ``python -m tests.batching.rate.drawings``."""

from __future__ import annotations

from pathlib import Path

from tests.batching.rate.scenario import FOLDER, Scenario
from tests.batching.rate.traffic import SECOND, at

from waterclock.figures.rate_drawing import rate_drawing

DRAWINGS = Path(__file__).parents[3] / "docs" / "images" / "rate"
_LONGEST = 16 * SECOND


def drawing(path: Path) -> str:
    """Draw what a scenario's messages and batches are, from a second before zero on."""
    scenario = Scenario.read(path)
    batcher, batches = scenario.run()
    assembly = batcher._assembly
    waiting = [] if assembly is None else assembly.active + assembly.waiting_messages()
    near = [batch for batch in batches if abs(batch.start - at(0)) < _LONGEST]
    ends = [batch.end for batch in near] or [at(1)]
    return rate_drawing(
        batches,
        waiting,
        start=at(-1),
        end=min(max(ends), at(0) + _LONGEST),
        origin=at(0),
        width=880,
        title=scenario.title,
    )


if __name__ == "__main__":
    DRAWINGS.mkdir(parents=True, exist_ok=True)
    for scenario_path in sorted(FOLDER.glob("*.toml")):
        (DRAWINGS / f"{scenario_path.stem}.svg").write_text(drawing(scenario_path), "utf-8")
