"""One topic of all scenarios and a slice of the recorded traffic, each under a source of its own, as rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tests.batching.event_time.scenario import Scenario, scenario_files
from tests.batching.rate.scenario import FOLDER
from tests.batching.rate.scenario import Scenario as RateScenario
from tests.spark.results import Results, results_of, results_one_by_one

from waterclock.arrow import from_arrow
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.ingest.recording import read_recording
from waterclock.message import Message, Position
from waterclock.time import to_duration

RULE = {"window": "500ms", "max_delay": "200ms"}
CLOCK = "clock"
"""A source whose last message comes long after all others: it moves the stream's receive clock on."""

_SCALE = to_duration("500ms") // 50  # the windows of the use cases are 50 long, their delays 20
_RECORDED = 6_000
_ENTRIES_A_LEDGER = 300
_SOON = to_duration("5ms")
_HOUR = to_duration("1h")


def whole_topic(recorded_messages: int = _RECORDED) -> list[Message]:
    """List the topic's messages in order of position; each call of a rate scenario is one entry."""
    recorded = from_arrow(read_recording().slice(0, recorded_messages))
    begin = recorded[0].receive_time or 0
    calls = [*_use_cases(begin), *_rate_calls(begin)]
    calls += [(m.receive_time or 0, [m]) for m in recorded]
    # QoS 1 redelivers now and then.
    again = [m.replace(receive_time=(m.receive_time or 0) + _SOON) for m in recorded[::97]]
    calls += [(m.receive_time or 0, [m]) for m in again]
    calls.sort(key=lambda call: call[0])
    end = calls[-1][0] + _HOUR
    calls.append((end, [Message(CLOCK, "tick", end, receive_time=end)]))
    return list(_positioned(calls))


def gated_streams() -> set[str]:
    """Name the streams that the rate scenarios let gate."""
    names: set[str] = set()
    for path in sorted(FOLDER.glob("*.toml")):
        scenario = RateScenario.read(path)
        streams = {m.stream for _, call in scenario.calls() for m in call}
        names |= {f"{path.stem}/{name}" for name in scenario.options.get("gated", streams)}
    return names


def event_time_results(messages: list[Message]) -> Results:
    """Batch by event time in this process, to the end of the clock."""
    return results_one_by_one(messages, **RULE)


def rate_results(messages: list[Message], *, flush: bool, **options: Any) -> Results:
    """Batch by rate in this process, an entry's messages of a source in one call."""
    batchers: dict[str, RateAwareBatcher] = {}
    batches = []
    for _, entry in groupby(messages, key=lambda m: m.position and m.position[:2]):
        calls: dict[str, list[Message]] = {}
        for message in entry:
            calls.setdefault(message.source, []).append(message)
        for source, call in calls.items():
            batcher = batchers.setdefault(source, RateAwareBatcher(**options, clock=lambda: 0.0))
            batches += batcher.add(call)
    if flush:
        batches += [batch for batcher in batchers.values() for batch in batcher.flush()]
    return results_of(batches, [])


def _use_cases(begin: int) -> Iterable[tuple[int, list[Message]]]:
    for path in scenario_files():
        for m in Scenario.read(path).messages.values():
            received = begin + (m.receive_time or 0) * _SCALE
            event_time = begin + m.event_time * _SCALE
            yield received, [m.replace(source=path.stem, event_time=event_time, receive_time=received)]


def _rate_calls(begin: int) -> Iterable[tuple[int, list[Message]]]:
    for path in sorted(FOLDER.glob("*.toml")):
        for arrival, call in RateScenario.read(path).calls():
            received = begin + to_duration("20s") + round(arrival * 1e9)
            renamed = [
                m.replace(source=path.stem, stream=f"{path.stem}/{m.stream}", receive_time=received) for m in call
            ]
            if renamed:
                yield received, renamed


def _positioned(calls: Iterable[tuple[int, list[Message]]]) -> Iterable[Message]:
    for number, (_, call) in enumerate(calls):
        ledger, entry = divmod(number, _ENTRIES_A_LEDGER)
        for index, message in enumerate(call):
            yield message.replace(position=Position(ledger, entry, index))
