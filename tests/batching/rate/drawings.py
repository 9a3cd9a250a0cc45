"""Draws the scenarios of batching by rate for the documentation: ``python -m tests.batching.rate.drawings``."""

from __future__ import annotations

from pathlib import Path

from tests.batching.rate.scenario import FOLDER, Scenario
from tests.batching.rate.traffic import SECOND, at
from tests.figures.rate_drawing import rate_drawing

from waterclock.figures.lanes import at_aligned_times

DRAWINGS = Path(__file__).parents[3] / "docs" / "images" / "rate"
_LONGEST = 32 * SECOND


def drawing(path: Path) -> str:
    """Draw what a scenario's messages and batches are, from a second before zero on."""
    scenario = Scenario.read(path)
    batcher, batches = scenario.run()
    assembly = batcher._assembly
    waiting = [] if assembly is None else assembly.active + assembly.waiting_messages()
    times = [batch.end for batch in batches] + [message.event_time for message in waiting]
    near = [time for time in times if abs(time - at(0)) < _LONGEST]
    if batcher.window is not None and waiting:
        near.append(min(batcher.window[1], max(near) + SECOND // 4))
    return rate_drawing(
        list(map(at_aligned_times, batches)),
        waiting,
        in_progress=batcher.window,
        start=at(-1),
        end=max(near),
        origin=at(0),
        width=880,
        title=scenario.title,
    )


if __name__ == "__main__":
    DRAWINGS.mkdir(parents=True, exist_ok=True)
    for scenario_path in sorted(FOLDER.glob("*.toml")):
        (DRAWINGS / f"{scenario_path.stem}.svg").write_text(drawing(scenario_path), "utf-8")
