"""Every paragraph of *RateAwareMessageBatcher* and every rule beyond it, as the scenario files have them."""

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
    assert scenario.run(restoring=True)[1] == scenario.run()[1]
