"""Draws the use cases of batching by event time for the docs: ``python -m tests.batching.event_time.drawings``."""

from __future__ import annotations

from pathlib import Path

from tests.batching.event_time.scenario import Scenario, scenario_files
from tests.figures.scenario import scenario_drawing

from waterclock.batching.event_time.batcher import EventTimeBatcher

DRAWINGS = Path(__file__).parents[3] / "docs" / "images" / "event-time"


def drawing(path: Path) -> str:
    """Draw what a use case's messages and batches are."""
    scenario = Scenario.read(path)
    batcher = EventTimeBatcher(**scenario.rule)
    batches = [batch for message in scenario.messages.values() for batch in batcher.add(message)]
    batches += batcher.advance(10_000)
    return scenario_drawing(batches, batcher.take_rejected(), width=880, title=scenario.title)


if __name__ == "__main__":
    DRAWINGS.mkdir(parents=True, exist_ok=True)
    for scenario_path in scenario_files():
        (DRAWINGS / f"{scenario_path.stem}.svg").write_text(drawing(scenario_path), "utf-8")
