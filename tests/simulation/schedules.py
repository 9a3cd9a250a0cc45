"""Stored schedules: runs that found a fault, shrunk, as files that replay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.gate import Rewrite
from tests.simulation.scheduler import Choosing
from tests.simulation.strategies import OnePreemption, OneThread, Pct, Random, Replay, Runs
from tests.simulation.worlds import mutations, topic_mutations
from tests.simulation.worlds.mutations import Mutation
from tests.simulation.worlds.scenarios import SCENARIOS
from tests.simulation.worlds.world import LEASE, Outcome, Scenario, Stage, play

MUTATIONS = mutations.MUTATIONS | topic_mutations.MUTATIONS
FOLDER = Path(__file__).parent / "schedules"
KINDS = (
    "never got",
    "deadlock",
    "was acked before",
    "' before [",
    "was acked by",
    "while",
    "do not end",
    "too early",
    "untruly",
    "is undone",
    "is gone",
    "called lost",
    "stand at place",
    "and there",
    "count as purged",
    "had expired",
    "though it lasts",
    "though its lease lasts",
    "not removed",
    "went back",
    "passed over",
    "appended twice",
    "stands at",
    "read twice",
    "behind",
    "with one key wait",
    "gave two messages",
    "after another one",
    "has holes",
    "count as appended",
    "cannot be read",
    "verify:",
)
"""What a fault says, by which two runs have the same one."""

OTHERWISE = 40
"""Schedules of one thread, and schedules on SQLite, that do not find what takes locks."""


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
    mutation
        The deliberate fault that is found; none where it was the product's own.
    takes_locks
        Whether a deliberate fault is found by locks alone, which no single thread meets. None of `OTHERWISE` runs on
        this database finds it in which each transaction goes on to its end and none waits for another, nor does one of
        as many on SQLite, where no two write at a time. It is judged when the schedule is stored.
    """

    scenario: str
    database: str
    fault: str
    is_open: bool
    about: str
    runs: Runs
    mutation: str = ""
    takes_locks: bool = False

    @classmethod
    def read(cls, name: str) -> Schedule:
        return cls(**json.loads((FOLDER / f"{name}.json").read_text()))

    def write(self, name: str) -> None:
        facts = asdict(self) | {"runs": None}
        if not self.mutation:
            del facts["mutation"], facts["takes_locks"]
        text = json.dumps(facts, indent=2)
        runs = ",\n    ".join(json.dumps(one) for one in self.runs)
        (FOLDER / f"{name}.json").write_text(text.replace('"runs": null', f'"runs": [\n    {runs}\n  ]') + "\n")

    def play(self, stage: Stage) -> Outcome:
        """Play it, with its deliberate fault where it has one."""
        strategy, scenario = Replay(self.runs, LEASE), SCENARIOS[self.scenario]
        if not self.mutation:
            return play(stage, scenario, strategy)
        mutation = MUTATIONS[self.mutation]
        with mutation.made():
            return play(stage, scenario, strategy, mutation.rewrite)


def names() -> list[str]:
    """Name the schedules that found faults of the product."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def deliberate() -> list[str]:
    """Name the schedules that find deliberate faults."""
    return sorted(f"deliberate/{path.stem}" for path in FOLDER.glob("deliberate/*.json"))


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


def find(stage: Stage, mutation: Mutation, count: int = 200, most_plays: int = 40) -> Schedule | None:
    """Search for a schedule that finds a deliberate fault; None where none of so many does."""
    scenario = SCENARIOS[mutation.scenario]
    with mutation.made():
        for strategy in strategies(scenario, count):
            outcome = play(stage, scenario, strategy, mutation.rewrite)
            if outcome.faults:
                kind = kind_of(outcome.faults[0])
                runs = shrink(stage, scenario, outcome.runs, kind, most_plays, mutation.rewrite)
                about = outcome.faults[0].split(": [", maxsplit=1)[0].split("(", maxsplit=1)[0]
                return Schedule(scenario.name, stage.kind, kind, True, about, runs, mutation.name)
    return None


def shows_to_one_thread(stage: Stage, mutation: Mutation, count: int) -> bool:
    """Say that a deliberate fault shows in runs of whole transactions, of which none waits for another's lock."""
    scenario = SCENARIOS[mutation.scenario]
    with mutation.made():
        for seed in range(count):
            strategy = OneThread(seed, scenario.harms if seed else (), scenario.victims, LEASE)
            outcome = play(stage, scenario, strategy, mutation.rewrite)
            if outcome.faults and not outcome.seen.get("blocked"):
                return True
    return False


def takes_locks(stage: Stage, sqlite: Stage, mutation: Mutation) -> bool:
    """Judge whether a deliberate fault that is found on a stage is found by locks alone, as `Schedule` says."""
    on_server = stage.waits.has_server and not shows_to_one_thread(stage, mutation, OTHERWISE)
    return on_server and find(sqlite, mutation, OTHERWISE, most_plays=0) is None


def shrink(
    stage: Stage, scenario: Scenario, runs: Runs, kind: str, most_plays: int = 150, rewrite: Rewrite = str
) -> Runs:
    """Leave out of a schedule what its fault does not need."""
    left = most_plays

    def fails(shorter: Runs) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and has(play(stage, scenario, Replay(shorter, LEASE), rewrite), kind)

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
