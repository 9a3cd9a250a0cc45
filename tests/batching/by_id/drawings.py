"""Draws batching by id for the documentation: ``python -m tests.batching.by_id.drawings``."""

from __future__ import annotations

from pathlib import Path

from tests.batching.by_id.scenario import IdScenario
from tests.figures.scenario import scenario_drawing

DRAWING = Path(__file__).parents[3] / "docs" / "images" / "id" / "trains.svg"


def drawing() -> str:
    """Draw the scenario's messages and batches."""
    scenario = IdScenario.read()
    batcher, batches = scenario.run()
    return scenario_drawing(batches, batcher.take_rejected(), width=880, title=scenario.title)


if __name__ == "__main__":
    DRAWING.parent.mkdir(exist_ok=True)
    DRAWING.write_text(drawing(), "utf-8")
