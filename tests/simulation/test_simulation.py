"""Message tables and topics under every order of their statements, and with processes that die in between."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from itertools import product

import pytest
from tests.conftest import DATABASES
from tests.simulation.__main__ import lines
from tests.simulation.scheduler import within_time
from tests.simulation.schedules import (
    MUTATIONS,
    OTHERWISE,
    Schedule,
    deliberate,
    find,
    has,
    names,
    shows_to_one_thread,
    strategies,
)
from tests.simulation.strategies import InOrder, OnePreemption, Random
from tests.simulation.worlds import topic_scenarios
from tests.simulation.worlds.mutations import Mutation
from tests.simulation.worlds.scenarios import SCENARIOS
from tests.simulation.worlds.world import LEASE, Stage, play

FEWEST = 25
"""Deliberate faults that are found: fewer would say little of what the simulator sees."""

OPEN = {Schedule.read(name).scenario for name in names() if Schedule.read(name).is_open}
"""Scenarios of which a stored schedule finds a fault: they are not searched for others until it is mended."""

SEARCHED = sorted(SCENARIOS.keys() - OPEN, key=lambda name: (repr(SCENARIOS[name].options), name))
"""Those with a table of the same options one after another, since another table takes as long to create as a run."""

TOPICS = sorted(topic_scenarios.SCENARIOS)


def search(stage: Stage, scenario: str, count: int, first: int = 0) -> Counter[str]:
    seen: Counter[str] = Counter()
    for strategy in strategies(SCENARIOS[scenario], count, first):
        outcome = play(stage, SCENARIOS[scenario], strategy)
        assert not outcome.faults, "\n".join([*lines(outcome), f"runs: {outcome.runs}", *outcome.faults])
        seen.update(outcome.seen)
    return seen


@pytest.mark.parametrize("scenario", SEARCHED)
def test_a_schedule_holds(stage: Stage, scenario: str) -> None:
    """The three databases play a scenario by three strategies; `make soak` plays hundreds on each."""
    if scenario in TOPICS:
        search(stage, scenario, 1, TOPICS.index(scenario))
    else:
        search(stage, scenario, 1, (SEARCHED.index(scenario) + DATABASES.index(stage.kind)) % len(DATABASES))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SEARCHED)
def test_many_schedules_pass_and_reach_their_target(stage: Stage, scenario: str) -> None:
    seen = search(stage, scenario, 100 if scenario in TOPICS else 400)
    for sometimes in SCENARIOS[scenario].sometimes:
        takes_a_server = sometimes in ("blocked", "frozen", "others' locks")
        assert seen[sometimes] or (takes_a_server and not stage.waits.has_server), f"never met: {sometimes}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_claim", "two_claim_to_own", "a_hot_group", "two_of_one_name"])
def test_every_schedule_of_one_preemption_holds(stage: Stage, name: str) -> None:
    undisturbed = play(stage, SCENARIOS[name], InOrder())
    others = len({actor for actor, _ in undisturbed.history}) - 1
    for at, to in product(range(1, undisturbed.steps + 1), range(others)):
        outcome = play(stage, SCENARIOS[name], OnePreemption(at, to))
        assert not outcome.faults, "\n".join([*lines(outcome), f"runs: {outcome.runs}", *outcome.faults])


@pytest.mark.parametrize("name", ["two_own", "two_compact", "two_of_one_producer"])
@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_seed_gives_the_same_run_each_time(stage: Stage, times: int, name: str) -> None:
    scenario = SCENARIOS[name]
    runs = {
        tuple(play(stage, scenario, Random(5, scenario.harms, scenario.victims, LEASE)).history) for _ in range(times)
    }
    assert len(runs) == 1


def stored() -> list[object]:
    made: list[object] = []
    for name in names():
        schedule = Schedule.read(name)
        # What is open may block for as long as the server lets a statement wait for a lock.
        is_open = [pytest.mark.xfail(strict=True, reason=schedule.about), pytest.mark.slow]
        marks = is_open if schedule.is_open else []
        made.append(pytest.param(schedule.database, schedule, id=name, marks=marks))
    return made


@pytest.mark.parametrize(("database_url", "schedule"), stored(), indirect=["database_url"])
def test_faults_that_stored_schedules_found_are_fixed(stage: Stage, schedule: Schedule) -> None:
    outcome = schedule.play(stage)
    assert not has(outcome, schedule.fault), "\n".join([*lines(outcome), *outcome.faults])


@pytest.mark.parametrize(
    ("database_url", "schedule"),
    [pytest.param(Schedule.read(name).database, Schedule.read(name), id=name) for name in deliberate()],
    indirect=["database_url"],
)
def test_a_stored_schedule_finds_a_deliberate_fault(stage: Stage, schedule: Schedule) -> None:
    # The first run on a stage has more statements than the others: processes open their topics in it.
    is_found = any(has(schedule.play(stage), schedule.fault) for _ in range(2))
    if not is_found:
        again = f"python -m tests.simulation find {schedule.mutation} {schedule.database}"
        assert find(stage, MUTATIONS[schedule.mutation], most_plays=0), f"not found any more; try {again}"
        warnings.warn(f"statements have changed, and searching takes seconds. Store it again: {again}", stacklevel=1)
    if schedule.takes_locks:
        assert not shows_to_one_thread(stage, MUTATIONS[schedule.mutation], 1)


def test_most_deliberate_faults_are_found_by_locks_that_no_single_thread_meets() -> None:
    """`Schedule.takes_locks` says how it is counted; the tests of each schedule hold it."""
    found = {schedule.mutation: schedule for schedule in map(Schedule.read, deliberate())}
    assert found.keys() == MUTATIONS.keys()
    by_locks = [name for name, schedule in found.items() if schedule.takes_locks]
    assert len(found) >= FEWEST
    assert len(by_locks) > len(found) / 2


@pytest.mark.both_servers
def test_a_few_runs_meet_what_is_dangerous(stage: Stage) -> None:
    """Runs in which no actor waits for a lock and no lease ends prove nothing."""
    seen: Counter[str] = Counter()
    dangerous = {"sent again", "lease lost"} | ({"blocked", "frozen"} if stage.waits.has_server else set())
    for seed, scenario in product(range(8), ("two_claim", "rows_frozen", "one_fails", "an_operator_skips")):
        seen += search(stage, scenario, 1, seed)
        if dangerous <= seen.keys():
            return
    pytest.fail(f"never met: {dangerous - seen.keys()}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database_url", "mutation"),
    [
        pytest.param(Schedule.read(name).database, MUTATIONS[Schedule.read(name).mutation], id=name)
        for name in deliberate()
    ],
    indirect=["database_url"],
)
def test_a_search_finds_a_deliberate_fault(stage: Stage, mutation: Mutation) -> None:
    assert find(stage, mutation, most_plays=0)


BY_LOCKS = [name for name in deliberate() if Schedule.read(name).takes_locks]


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", BY_LOCKS)
def test_no_schedule_on_sqlite_finds_a_fault_that_takes_locks(stage: Stage, name: str) -> None:
    assert find(stage, MUTATIONS[Schedule.read(name).mutation], OTHERWISE, most_plays=0) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("database_url", "mutation"),
    [pytest.param(Schedule.read(name).database, MUTATIONS[Schedule.read(name).mutation], id=name) for name in BY_LOCKS],
    indirect=["database_url"],
)
def test_no_schedule_of_one_thread_finds_a_fault_that_takes_locks(stage: Stage, mutation: Mutation) -> None:
    assert not shows_to_one_thread(stage, mutation, OTHERWISE)


def test_a_hang_between_two_runs_is_ended_with_the_stacks_of_all_threads() -> None:
    kept = threading.Lock()
    kept.acquire()
    try:
        with pytest.raises(AssertionError, match=r"(?s)the next run hangs.*work\(\)"):
            within_time(kept.acquire, "the next run", 0.05)
    finally:
        kept.release()
