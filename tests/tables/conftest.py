"""What the tests of message tables share: a clock that they move, and tables on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import pytest
from tests.support.clocks import MovableClock
from tests.tables.kinds import KINDS

from waterclock.connection import Database
from waterclock.database.per_database_cache import forget_built
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_rows
from waterclock.tables.model.timing import sweeps

_CLOCK = MovableClock()


@pytest.fixture(scope="session", autouse=True)
def groups_are_checked_at_once() -> Generator[None]:
    """Let a check of groups go on to the last one, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_CHUNK_TAKES", "_VISIT_TAKES", "_FIRST_TAKES"):
            patch.setattr(sweeps, name, 3_600_000_000_000)
        yield


@pytest.fixture
def clock() -> MovableClock:
    # One object for all tests, since statements are built for a clock.
    _CLOCK.now = time.time_ns()
    return _CLOCK


@pytest.fixture
def database(connect: Callable[..., Database], clock: MovableClock) -> Database:
    return connect(clock=clock)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[ModuleType, str, int], None]]:
    """Set a limit that is written into statements, which other tests share, for as long as the test runs."""

    def set_limit(module: ModuleType, name: str, value: int) -> None:
        monkeypatch.setattr(module, name, value)
        forget_built()

    yield set_limit
    monkeypatch.undo()
    forget_built()


@pytest.fixture
def bounds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no claim look for new lower bounds, which takes further statements after some time."""
    for name in ("_ADVANCE_IN_PAIRS_EVERY", "_ADVANCE_IDLE_EVERY"):
        monkeypatch.setattr(bounded_rows, name, 3_600.0)


@pytest.fixture
def make_table(database: Database) -> Callable[..., MessageTable]:
    def make(name: str = "orders", **options: Any) -> MessageTable:
        return database.create_table(name, **{"payload": "text", "jitter": 0, **options})

    return make


@pytest.fixture
def orders(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table()


@pytest.fixture
def sequenced(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table(groups="sequenced")


@pytest.fixture
def exclusive(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table(groups="exclusive")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]
