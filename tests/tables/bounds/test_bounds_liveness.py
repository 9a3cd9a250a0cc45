"""Whatever was done to a table with groups, claims that begin at bounds find everything that is due."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.clocks import MovableClock

from waterclock.connection import Database
from waterclock.errors import LeaseLostError, OrderError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.messages.upkeep.reconcile import heal

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one with bounds

# ruff: noqa: S608  # names of our own

_SECOND = 1_000_000_000
_UNACKED = "time_acked IS NULL AND id = (SELECT min(id) FROM {name} WHERE time_acked IS NULL AND group_id = '{group}')"
_PLAIN_SQL = {
    "sets an old time": f"UPDATE {{name}} SET time_next = 1 WHERE {_UNACKED}",
    "moves": f"UPDATE {{name}} SET group_id = 'a' WHERE {_UNACKED}",
    "deletes": f"DELETE FROM {{name}} WHERE {_UNACKED}",
    "acks": f"UPDATE {{name}} SET time_acked = 1, time_next = NULL WHERE {_UNACKED}",
    "takes an ack back": "UPDATE {name} SET time_acked = NULL, time_next = 1 WHERE id ="
    " (SELECT max(id) FROM {name} WHERE time_acked IS NOT NULL AND group_id = '{group}')",
}
_FLOW = ("puts late", "finds nothing", "finds nothing", "commits")
EXACT = (*_FLOW, *_FLOW, "puts", "takes", "acks", "nacks", "rolls back", "waits", "restarts", *_PLAIN_SQL)
BEHIND = ("sets the clock back", "inserts an old seq")
"""What no trigger sees, and puts a message or a group behind a bound."""
POLICIES, GROUPS = st.sampled_from(["sequenced", "exclusive"]), st.sampled_from("abc")


class Play:
    """A table of one example, and what others have open."""

    def __init__(self, connect: Callable[..., Database], clock: MovableClock, stack: ExitStack, **options: Any) -> None:
        self._connect, self._clock, self._stack = connect, clock, stack
        self._database = connect(clock=clock)
        self.name = f"t{clock.now}"
        self.table = self._database.create_table(self.name, payload="text", jitter=0, poll_interval="1s", **options)
        self._late: list[sa.Connection] = []
        self._taken: list[Delivery] = []

    def act(self, act: str, group: str) -> None:
        if act in _PLAIN_SQL:
            self._execute(_PLAIN_SQL[act].format(name=self.name, group=group))
        else:
            getattr(self, act.replace(" ", "_"))(group)

    def puts(self, group: str) -> None:
        self.table.put("x", group=group)

    def puts_late(self, group: str) -> None:
        own = self._stack.enter_context(self._database.backend.engine.connect())
        own.exec_driver_sql(f"INSERT INTO {self.name} (message, group_id) VALUES ('late', '{group}')")
        self._late.append(own)

    def commits(self, group: str) -> None:
        del group
        if self._late:
            self._late.pop().commit()

    def rolls_back(self, group: str) -> None:
        del group
        if self._late:
            self._late.pop().rollback()

    def finds_nothing(self, group: str) -> None:
        self.table.put("x", group=group)
        while claimed := self.table.receive(10, consumer="x"):
            self.table.ack(claimed)

    def takes(self, group: str) -> None:
        self._taken += self.table.receive(2, consumer=group)

    def acks(self, group: str) -> None:
        del group
        if self._taken:
            with suppress(LeaseLostError, OrderError):
                self._taken.pop(0).ack()

    def nacks(self, group: str) -> None:
        del group
        if self._taken:
            with suppress(LeaseLostError):
                self._taken.pop().nack()

    def waits(self, group: str) -> None:
        del group
        self._clock.move("40s")

    def restarts(self, group: str) -> None:
        del group
        self.table._context.sweeps.due_at = 0
        heal(self.table._context)  # which saves the bounds
        self._database = self._connect(clock=self._clock)
        self.table = self._database.table(self.name)

    def sets_the_clock_back(self, group: str) -> None:
        del group
        self._clock.now -= 60 * _SECOND

    def inserts_an_old_seq(self, group: str) -> None:
        before = 1 + 1_000 * len(self._late)  # an open transaction may have the number before the first
        columns = f"INSERT INTO {self.name} (seq, message, group_id) OVERRIDING SYSTEM VALUE"
        row = f"SELECT min(seq) - {before}, 'x', '{group}' FROM {self.name} HAVING count(*) > 0"
        self._execute(f"{columns} {row}")

    def drain(self) -> int:
        """Ack all that comes, also after leases; return how many messages are left."""
        while self._late:
            self._late.pop().commit()
        self._clock.move("1d")
        for _ in range(3):  # a dead consumer's groups are free only after a claim
            while claimed := self.table.receive(100, consumer="z"):
                self.table.ack(claimed)
            self._clock.move("2m")
        with self._database.backend.engine.connect() as own:
            left: int = own.exec_driver_sql(f"SELECT count(*) FROM {self.name} WHERE time_acked IS NULL").scalar_one()
            return left

    def look_back(self) -> None:
        """Let the next searches begin at the first message and group."""
        reached = self.table._context.reached
        for bound in (reached.routed, *reached.groups._bounds.values()):
            bound._every = 0.0

    def _execute(self, text: str) -> None:
        with self._database.backend.engine.begin() as own:
            own.exec_driver_sql(text)


@pytest.fixture
def never_looks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is found be found by the bounds alone, and save them always."""
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)


_PROPERTY = settings(
    max_examples=4, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def _play(
    connect: Callable[..., Database], clock: MovableClock, policy: str, acts: list[tuple[str, str]], *, back: bool
) -> None:
    clock.move("1s")  # names the next table
    with ExitStack() as stack:
        play = Play(connect, clock, stack, groups=policy)
        for act, group in acts:
            play.act(act, group)
        if back:
            play.look_back()
        assert play.drain() == 0


@_PROPERTY
@given(policy=POLICIES, acts=st.lists(st.tuples(st.sampled_from(EXACT), GROUPS), min_size=8, max_size=30))
@example("sequenced", [("puts late", "a"), *[("finds nothing", "b")] * 3, ("commits", "a"), ("restarts", "a")])
@example("sequenced", [("puts", "b"), ("finds nothing", "b"), ("puts", "b"), *[("sets an old time", "b")] * 2])
@example("exclusive", [("puts", "a"), ("takes", "a"), *[("finds nothing", "b")] * 3, ("sets an old time", "a")])
@pytest.mark.usefixtures("never_looks_back")
def test_bounds_pass_nothing_that_is_due(
    connect: Callable[..., Database], clock: MovableClock, policy: str, acts: list[tuple[str, str]]
) -> None:
    _play(connect, clock, policy, acts, back=False)


@_PROPERTY
@given(policy=POLICIES, acts=st.lists(st.tuples(st.sampled_from([*EXACT, *BEHIND]), GROUPS), min_size=8, max_size=30))
@pytest.mark.usefixtures("never_looks_back")
def test_a_search_from_the_first_finds_what_came_behind_the_bounds(
    connect: Callable[..., Database], clock: MovableClock, policy: str, acts: list[tuple[str, str]]
) -> None:
    _play(connect, clock, policy, acts, back=True)
