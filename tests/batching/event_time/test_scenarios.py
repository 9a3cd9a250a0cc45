"""The use cases of *Message Batching*, through the batcher and through the columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.batching.event_time.scenario import Place, Scenario, scenario_files

from waterclock.arrow import to_arrow
from waterclock.batching.batch import Batch
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.columns import assign_batches


@pytest.fixture(params=scenario_files(), ids=lambda path: path.stem)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    path: Path = request.param
    return Scenario.read(path)


def test_all_five_use_cases_are_there_and_those_of_other_rules() -> None:
    assert [path.stem for path in scenario_files()] == ["UC1", "UC2", "UC3", "UC4", "UC5", "runs", "sessions"]


def test_each_batch_closes_at_its_tick_of_the_clock(scenario: Scenario) -> None:
    batcher = EventTimeBatcher(**scenario.rule)
    closed: dict[int, list[Batch]] = {}
    for tick in range(100, 400):
        for message in scenario.messages.values():
            if message.receive_time == tick:
                assert batcher.add(message) == [], "closed by a message before its tick"
        if batches := batcher.advance(tick):
            closed[tick] = batches

    assert {tick: [scenario.closing(batch) for batch in batches] for tick, batches in closed.items()} == {
        batch.closed_at: [batch] for batch in scenario.batches
    }
    assert dict(map(scenario.rejection, batcher.take_rejected())) == scenario.rejected


def test_messages_alone_close_the_same_batches(scenario: Scenario) -> None:
    batcher = EventTimeBatcher(**scenario.rule)
    batches = [batch for message in scenario.messages.values() for batch in batcher.add(message)]
    batches += batcher.advance(10_000)

    assert [scenario.closing(batch) for batch in batches] == scenario.batches


def test_the_columns_hold_the_same_windows(scenario: Scenario) -> None:
    arrived = pa.Table.from_batches([to_arrow(list(scenario.messages.values()))])
    assigned = assign_batches(arrived, **scenario.rule)

    rows = assigned.select(["batch_start", "batch_end", "rejected"]).to_pylist()
    assert [Place(*row.values()) for row in rows] == list(scenario.places().values())
