"""Who goes on next: strategies that search, and one that repeats what a schedule says."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tests.simulation.scheduler import Actor, Scheduler

_STAYS = 0.6
_HARM = 2  # things that an entry of a schedule tells of a harm

_OF_TRANSACTIONS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "COMMIT", "think")

Runs = list[list[Any]]
"""A schedule: ``[actor, label, times]`` for an actor that goes on until it is at such a gate for so many times,
``[harm, process]`` for what is done to one. Not in steps, so that it means the same when a statement comes or goes.
"""


def keep_on(scheduler: Scheduler, able: list[Actor]) -> Actor:
    """Let the same one go on for as long as it can, and then the one after it."""
    last = scheduler.last
    if last is None or last in able:
        return able[0] if last is None else last
    order = scheduler.actors
    place = order.index(last)
    return min(able, key=lambda one: (order.index(one) - place) % len(order))


class Harmless:
    """Leaves everything whole."""

    def harm(self, scheduler: Scheduler) -> None:
        """Do nothing."""


class InOrder(Harmless):
    """Switches only where it must."""

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        return keep_on(scheduler, able)


class InTurn(Harmless):
    """Lets all go on one step after another: the fair end of every run."""

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        order = scheduler.actors
        place = -1 if scheduler.last is None else order.index(scheduler.last)
        return min(able, key=lambda one: (order.index(one) - place - 1) % len(order))


@dataclass
class OnePreemption(Harmless):
    """Stops the actor that runs at one step, once, and lets another one go on as far as it can."""

    at: int
    to: int
    steps: int = 0

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        self.steps += 1
        others = [one for one in able if one is not scheduler.last]
        if self.steps == self.at and others:
            return others[self.to % len(others)]
        return keep_on(scheduler, able)


class Harming:
    """Does harm now and then, of the kinds that a scenario bears, to the processes that it names."""

    def __init__(self, seed: int, harms: Sequence[str], victims: Sequence[str], lease: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # not a secret
        self._harms, self._victims, self._lease = harms, victims, lease
        self._at = {self.random.randrange(1, 60)} if harms else set[int]()
        self._steps = 0

    def harm(self, scheduler: Scheduler) -> None:
        self._steps += 1
        if self._steps in self._at:
            do_harm(scheduler, self.random.choice(self._harms), self.random.choice(self._victims), self._lease)


def do_harm(scheduler: Scheduler, harm: str, victim: str, lease: int) -> None:
    """Do one harm by its name."""
    kind, _, duration = harm.partition(" ")
    if kind == "crash":
        scheduler.crash(victim)
    elif kind == "freeze":
        scheduler.freeze(victim)
    elif kind == "lose":
        scheduler.lose_answer(victim)
    elif kind == "late":
        scheduler.leave_commit(victim)
    elif kind == "jump":
        scheduler.jump(int(duration or lease))
    else:
        scheduler.stall(victim, int(duration or lease * 11 // 10))


class Random(Harming):
    """Chooses by chance, and stays with whom it chose for some steps."""

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        if scheduler.last in able and self.random.random() < _STAYS:
            return scheduler.last
        return self.random.choice(able)


class OneThread(Random):
    """Chooses by chance, but lets each transaction go on to its end: as far as a single thread comes that plays all."""

    def harm(self, scheduler: Scheduler) -> None:
        if not _is_under_way(scheduler):
            super().harm(scheduler)

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        last = scheduler.last
        return last if last in able and _is_under_way(scheduler) else self.random.choice(able)


def _is_under_way(scheduler: Scheduler) -> bool:
    """Say that a transaction may be under way in which the last step was."""
    last = scheduler.last
    if last is None or last.state != "ready" or scheduler.history[-1][1] == "COMMIT":
        return False
    return last.label.split()[0] in _OF_TRANSACTIONS


class Pct(Harming):
    """Probabilistic concurrency testing: priorities by chance, which change at a few steps (the depth, less one)."""

    def __init__(self, seed: int, harms: Sequence[str], victims: Sequence[str], lease: int, length: int = 120) -> None:
        super().__init__(seed, harms, victims, lease)
        self._priorities: dict[str, float] = {}
        self._changes = {self.random.randrange(1, length) for _ in range(2)}
        self._passed = 0

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        for one in able:
            self._priorities.setdefault(one.name, 1 + self.random.random())
        self._passed += 1
        if self._passed in self._changes and scheduler.last is not None:
            self._priorities[scheduler.last.name] = -self._passed
        return max(able, key=lambda one: self._priorities[one.name])


class Replay:
    """Does what a schedule says, and keeps on after its end. An actor that cannot go on ends its run."""

    def __init__(self, runs: Runs, lease: int) -> None:
        self._left = deque(runs)
        self._lease = lease
        self._chosen: Actor | None = None
        self._times = 0

    def harm(self, scheduler: Scheduler) -> None:
        self._note()
        while self._left and len(self._left[0]) == _HARM:
            harm, process = self._left.popleft()
            do_harm(scheduler, harm, process, self._lease)

    def _note(self) -> None:
        """Count where the actor that was chosen is now."""
        if self._chosen is not None and self._left and self._chosen.label == self._left[0][1]:
            self._times += 1
            if self._times == self._left[0][2]:
                self._next()
        self._chosen = None

    def _next(self) -> None:
        self._left.popleft()
        self._times = 0

    def choose(self, scheduler: Scheduler, able: list[Actor]) -> Actor:
        while self._left and len(self._left[0]) > _HARM:
            self._chosen = next((one for one in able if one.name == self._left[0][0]), None)
            if self._chosen is not None:
                return self._chosen
            self._next()
        return keep_on(scheduler, able)


def as_runs(decisions: Sequence[tuple[str, str, bool]]) -> Runs:
    """Write decisions as runs."""
    runs: Runs = []
    for is_harm, part in groupby(decisions, key=lambda one: one[2]):
        if is_harm:
            runs += [[harm, process] for harm, process, _ in part]
            continue
        for actor, steps in groupby(part, key=lambda one: one[0]):
            labels = [label for _, label, _ in steps]
            runs.append([actor, labels[-1], labels.count(labels[-1])])
    return runs
