"""Stored schedules: runs that found a fault, shrunk, as files that replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.scenarios import SCENARIOS
from tests.simulation.scheduler import Choosing
from tests.simulation.strategies import OnePreemption, Pct, Random, Replay, Runs
from tests.simulation.world import LEASE, Outcome, Scenario, Stage, play

FOLDER = Path(__file__).parent / "schedules"
KINDS = ("never got", "was acked before", "was acked by", "while", "do not end")
"""What a fault says, by which two runs have the same one."""


@dataclass(frozen=True)
class Schedule:
    """A run that finds a fault.

    Attributes
    ----------
    scenario, database
        Where it is played.
    fault
        One of `KINDS`.
    is_open
        Whether the product still has the fault.
    about
        What goes wrong.
    runs
        The choices; after them each actor keeps on.
    """

    scenario: str
    database: str
    fault: str
    is_open: bool
    about: str
    runs: Runs

    @classmethod
    def read(cls, name: str) -> Schedule:
        return cls(**json.loads((FOLDER / f"{name}.json").read_text()))

    def write(self, name: str) -> None:
        text = json.dumps(asdict(self) | {"runs": None}, indent=2)
        runs = ",\n    ".join(json.dumps(one) for one in self.runs)
        (FOLDER / f"{name}.json").write_text(text.replace('"runs": null', f'"runs": [\n    {runs}\n  ]') + "\n")

    def play(self, stage: Stage) -> Outcome:
        return play(stage, SCENARIOS[self.scenario], Replay(self.runs, LEASE))


def names() -> list[str]:
    """Name the stored schedules."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def kind_of(fault: str) -> str:
    """Say of which kind a fault is."""
    return next((kind for kind in KINDS if kind in fault), fault.split("(", maxsplit=1)[0])


def has(outcome: Outcome, kind: str) -> bool:
    """Say whether a run found a fault of this kind."""
    return any(kind_of(one) == kind for one in outcome.faults)


def strategies(scenario: Scenario, count: int, first: int = 0) -> Iterator[Choosing]:
    """Give strategies in turn: one preemption, by chance, by priorities, by chance with stalls."""
    stalls = ("stall",) if scenario.victims else ()
    for seed in range(first, first + count):
        yield (
            OnePreemption(seed + 1, seed),
            Random(seed, scenario.harms, scenario.victims, LEASE),
            Pct(seed, scenario.harms, scenario.victims, LEASE),
            Random(seed, stalls, scenario.victims, LEASE),
        )[seed % 4]


def shrink(stage: Stage, scenario: Scenario, runs: Runs, kind: str, most_plays: int = 150) -> Runs:
    """Leave out of a schedule what its fault does not need."""
    left = most_plays

    def fails(shorter: Runs) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and has(play(stage, scenario, Replay(shorter, LEASE)), kind)

    length = len(runs)
    while length > 1:  # the tail first: what follows the fault is not needed
        length = max(length // 2, 1)
        while len(runs) > length and fails(runs[:-length]):
            runs = runs[:-length]
    place = 0
    while place < len(runs) and left > 0:
        without = runs[:place] + runs[place + 1 :]
        who, what, *times = runs[place]
        fewer = [*runs[:place], [who, what, times[0] - 1], *runs[place + 1 :]] if times and times[0] > 1 else None
        if fails(without):
            runs = without
        elif fewer is not None and fails(fewer):
            runs = fewer
        else:
            place += 1
    return runs
