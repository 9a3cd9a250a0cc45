"""Whatever happens to messages, the rows of their keys never contradict them, and all messages are delivered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import ModuleType
from typing import Any

import pytest
from tests.tables.conftest import MovableClock
from tests.tables.keys.random_run import DEAD, OPTIONS, RandomRun, reset

from waterclock.connection import Database
from waterclock.tables.keys import key_routing, key_rows
from waterclock.tables.messages.claiming import bounded_rows, claim_keyed

FEW = (
    (key_routing, "_ROUTED_AT_ONCE", 3),
    (key_routing, "_ROUTED_AT_LEAST", 2),
    (key_routing, "_SKIPPED_AT_ONCE", 2),
    (key_rows, "_WOKEN_AT_ONCE", 2),
    (claim_keyed, "_KEYS_AT_ONCE", 2),
    (claim_keyed, "_ROUNDS", 2),
    (bounded_rows, "ADVANCE_EVERY", 0),
    (bounded_rows, "_ADVANCE_IDLE_EVERY", 0),
)
"""So that few messages fill a search, and bounds advance with each claim."""


Play = Callable[..., None]


@pytest.fixture
def play(connect: Callable[..., Database], clock: MovableClock, limit: Callable[[ModuleType, str, int], None]) -> Play:
    def play(options: dict[str, Any], *, runs: int, steps: int) -> None:
        for one in FEW:
            limit(*one)
        databases = [connect(clock=clock), connect(clock=clock)]
        databases[0].create_table("orders", payload="text", jitter=0, columns={"customer": "text"}, **DEAD, **options)
        tables = [database.table("orders") for database in databases]
        for seed in range(runs):
            reset(tables)
            with closing(RandomRun(tables, clock, seed)) as run:
                run.take(steps)

    return play


@pytest.mark.both_servers
def test_rows_of_keys_never_contradict_messages_and_all_are_delivered(play: Play) -> None:
    play({"limit": {"customer": 2}}, runs=1, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_rows_of_keys_never_contradict_messages_in_many_runs(play: Play, options: dict[str, Any]) -> None:
    play(options, runs=30, steps=80)
