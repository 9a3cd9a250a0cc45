"""Every paragraph of the document and every rule beyond it, as the scenario files tell them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.batching.rate.scenario import FOLDER, Scenario, found

PATHS = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_scenario_gives_the_batches_it_expects(path: Path) -> None:
    scenario = Scenario.read(path)
    batcher, batches = scenario.run()
    assert [found(batch) for batch in batches] == scenario.batches
    assert batcher.buffered == scenario.waiting
    assert scenario.gating is None or batcher.gating_streams == set(scenario.gating)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_scenario_ends_the_same_where_the_batcher_is_restored_after_each_call(path: Path) -> None:
    scenario = Scenario.read(path)
    _, never_stopped = scenario.run()
    now = 0.0
    batcher = type(scenario.run()[0])(**scenario.options, clock=lambda: now if scenario.wall_clock else 0.0)
    batches = []
    lengths = dict(scenario.set_batch_length)
    for arrival, messages in scenario.calls():
        batcher = batcher.restore(batcher.state(), clock=lambda: now if scenario.wall_clock else 0.0)
        now = arrival
        for due in [key for key in lengths if float(key) <= arrival]:
            batcher.set_batch_length(lengths.pop(due))
        batches += batcher.add(messages)
    assert batches + (batcher.flush() if scenario.flush else []) == never_stopped
