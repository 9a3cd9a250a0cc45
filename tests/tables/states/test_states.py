"""Every verb moves messages and groups only along the table of states, and every step of the table is made."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables.conftest import MovableClock
from tests.tables.states.drawings import files
from tests.tables.states.meanings import GROUPS, HOLDS, MESSAGES
from tests.tables.states.states_walk import POLICIES, GroupMove, MessageMove, Walk, kept_walks
from tests.tables.states.steps import GROUP_STEPS, MESSAGE_STEPS, Step, Verb

from waterclock.connection import Database, connect
from waterclock.errors import NotFoundError
from waterclock.tables.model.states import GroupState, MessageColumns, MessageState, state_of

VERBS: tuple[Verb, ...] = get_args(Verb)
_MESSAGE_MOVES: set[MessageMove] = {(step.source, verb, step.target) for step in MESSAGE_STEPS for verb in step.verbs}
_GROUP_MOVES: set[GroupMove] = {(step.source, verb, step.target) for step in GROUP_STEPS for verb in step.verbs}
_STEPS: list[tuple[Sequence[Step[Any]], set[str]]] = [(MESSAGE_STEPS, set(MESSAGES)), (GROUP_STEPS, set(GROUPS))]


def strays(walk: Walk) -> set[Any]:
    """Moves that the table does not have, neither as they are nor as if the verb had routed new messages first."""
    groups = {
        move
        for move in walk.groups - _GROUP_MOVES
        if not any(
            (move[0], "route", between) in _GROUP_MOVES
            and (between == move[2] or (between, move[1], move[2]) in _GROUP_MOVES)
            for between in GROUPS
        )
    }
    return (walk.messages - _MESSAGE_MOVES) | groups


class Walks:
    """A walk for each policy, in one database."""

    def __init__(self, database: Database, clock: MovableClock) -> None:
        self._database, self._clock = database, clock
        self.begun: dict[str, Walk] = {}

    def anew(self, policy: str) -> Walk:
        if policy in self.begun:
            self.begun[policy].begin_anew()
        else:
            self.begun[policy] = Walk(self._database, self._clock, policy, **POLICIES[policy])
        return self.begun[policy]


def walk_along(walks: Walks, policy: str, steps: Sequence[tuple[Verb, int, int]]) -> Walk:
    walk = walks.anew(policy)
    for verb, one, other in steps:
        walk.step(verb, one, other)
        assert not strays(walk), (policy, steps)
    return walk


@pytest.fixture
def on_sqlite(sqlite_url: str, tmp_path: Path, clock: MovableClock) -> Generator[Walks]:
    with connect(sqlite_url, tmp_path / "ledgers", clock=clock) as database:
        yield Walks(database, clock)


def test_every_step_of_the_table_is_made_by_each_of_its_verbs(on_sqlite: Walks) -> None:
    for policy, steps in kept_walks():
        walk_along(on_sqlite, policy, steps)
    walks = on_sqlite.begun.values()
    assert set().union(*(walk.messages for walk in walks)) >= _MESSAGE_MOVES
    assert set().union(*(walk.groups for walk in walks)) >= _GROUP_MOVES


def test_verbs_move_along_the_table_on_every_database(database: Database, clock: MovableClock) -> None:
    walks = Walks(database, clock)
    longest: dict[str, list[tuple[Verb, int, int]]] = {}
    for policy, steps in kept_walks():
        longest[policy] = max(longest.get(policy, []), steps, key=len)
    for policy, steps in longest.items():
        walk_along(walks, policy, steps)


@settings(max_examples=8, derandomize=True)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    steps=st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 8), st.integers(0, 5)), min_size=10, max_size=20),
)
def test_random_verbs_move_along_the_table_and_explain_says_the_same(
    connected: Walks, policy: str, steps: list[tuple[Verb, int, int]]
) -> None:
    walk = walk_along(connected, policy, [("put", 0, 0), ("receive", 0, 0), *steps])
    for message_id, state in walk.seen[0].items():
        if state == "absent":
            with pytest.raises(NotFoundError):
                walk.table.explain(message_id)
            continue
        explained = walk.table.explain(message_id).state
        assert explained == state or (state == "ready" and explained in HOLDS)


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Generator[Walks]:
    """One database for all examples, since opening it takes as long as dozens of steps."""
    folder, clock = tmp_path_factory.mktemp("states"), MovableClock()
    with connect(f"sqlite:///{folder / 'waterclock.db'}", folder / "ledgers", clock=clock) as database:
        yield Walks(database, clock)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_long_random_walks_stay_on_the_table(on_sqlite: Walks, policy: str) -> None:
    chance = random.Random(16)  # noqa: S311  # no secret
    for _ in range(60):
        steps = [(chance.choice(VERBS), chance.randrange(9), chance.randrange(6)) for _ in range(25)]
        walk_along(on_sqlite, policy, [("put", 0, 0), ("put", 1, 0), *steps])


@pytest.mark.parametrize(("steps", "states"), _STEPS, ids=["messages", "groups"])
def test_every_state_is_entered_and_left(steps: Sequence[Step[Any]], states: set[str]) -> None:
    assert {step.target for step in steps} == states == {step.source for step in steps}
    pairs = [(step.source, step.target) for step in steps]
    assert len(pairs) == len(set(pairs))
    assert all(set(step.usual) <= set(step.verbs) for step in steps)


def test_every_state_has_a_meaning() -> None:
    assert set(MESSAGES) == set(get_args(MessageState))
    assert set(GROUPS) == set(get_args(GroupState))
    assert {verb for _, verb, _ in _MESSAGE_MOVES | _GROUP_MOVES} == set(VERBS)


@given(
    time_acked=st.none() | st.integers(0, 9),
    ack_held_at=st.none() | st.integers(0, 9),
    leased=st.booleans(),
    time_next=st.integers(0, 9),
    epoch=st.integers(0, 3),
    now=st.integers(0, 9),
    blocked=st.booleans(),
)
def test_an_ack_counts_for_more_than_a_lease_and_a_lease_for_more_than_the_group(
    time_acked: int | None,
    ack_held_at: int | None,
    leased: bool,
    time_next: int,
    epoch: int,
    now: int,
    blocked: bool,
) -> None:
    columns = MessageColumns(time_acked, ack_held_at, leased, time_next, epoch)
    state = state_of(columns, now, blocked=blocked, most=2)
    assert (state == "acked") == (time_acked is not None)
    assert (state == "ack_held_back") == (time_acked is None and ack_held_at is not None)
    acked = time_acked is not None or ack_held_at is not None
    assert (state == "leased") == (not acked and leased and time_next > now)
    assert (state == "blocked") == (not acked and not (leased and time_next > now) and blocked)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_the_documentation_shows_the_table_as_it_is(path: Path) -> None:
    assert path.read_text("utf-8") == files()[path], "run python -m tests.tables.states.drawings"
