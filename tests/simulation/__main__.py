"""Search for faults, or replay one: ``python -m tests.simulation search SCENARIO DATABASE [COUNT [NAME]]`` or
``python -m tests.simulation replay NAME``. What is found under a NAME is shrunk and stored.

``python -m tests.simulation find MUTATION DATABASE [COUNT]`` searches for a deliberate fault, and stores the schedule.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import groupby

from tests.simulation.schedules import MUTATIONS, Schedule, find, has, kind_of, shrink, strategies, takes_locks
from tests.simulation.stages import stage_on
from tests.simulation.worlds.scenarios import SCENARIOS
from tests.simulation.worlds.world import Outcome, play


def search(scenario: str, database: str, count: str = "200", name: str | None = None) -> int:
    """Play a scenario until a run fails."""
    with stage_on(database) as stage:
        for number, strategy in enumerate(strategies(SCENARIOS[scenario], int(count)), 1):
            outcome = play(stage, SCENARIOS[scenario], strategy)
            if not outcome.faults:
                continue
            print(f"schedule {number} of {scenario} on {database}: {outcome.faults[0]}")
            kind = kind_of(outcome.faults[0])
            if name is not None:
                runs = shrink(stage, SCENARIOS[scenario], outcome.runs, kind)
                about = outcome.faults[0].split(": [", maxsplit=1)[0]
                Schedule(scenario, database, kind, True, about, runs).write(name)
                print(f"stored as {name}: {len(outcome.runs)} runs, {len(runs)} when shrunk")
            return 1
    print(f"{count} schedules of {scenario} on {database} hold")
    return 0


def find_deliberate(name: str, database: str, count: str = "200") -> int:
    """Search for a schedule that finds a deliberate fault, and store it."""
    with stage_on(database) as stage, stage_on("sqlite") as sqlite:
        found = find(stage, MUTATIONS[name], int(count))
        by_locks = found is not None and takes_locks(stage, sqlite, MUTATIONS[name])
    if found is None:
        print(f"{count} schedules do not find {name} on {database}")
        return 1
    replace(found, takes_locks=by_locks).write(f"deliberate/{name}")
    how = ", by locks alone" if by_locks else ""
    print(f"{name} is found on {database}{how}: {found.about}; {len(found.runs)} runs")
    return 0


def replay(name: str) -> int:
    """Play a stored schedule, and print what happened."""
    schedule = Schedule.read(name)
    with stage_on(schedule.database) as stage:
        outcome = schedule.play(stage)
    print(*lines(outcome), sep="\n")
    print(*outcome.faults or ["no fault"], sep="\n")
    return int(has(outcome, schedule.fault))


def lines(outcome: Outcome) -> list[str]:
    """Write a history: a line for what one actor did without a break, the end of a run left out."""
    steps = outcome.history[: outcome.steps]
    lines = []
    for actor, part in groupby(steps, key=lambda step: step[0]):
        labels = [label for label, _ in groupby(label for _, label in part)]
        lines.append(f"{actor:>28}  {' · '.join(labels)}")
    return lines


if __name__ == "__main__":
    commands = {"search": search, "find": find_deliberate, "replay": replay}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:  # a command and what it is about
        sys.exit(__doc__)
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
