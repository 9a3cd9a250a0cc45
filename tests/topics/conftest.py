"""Topics on each database in turn."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clocks import MovableClock

from waterclock.database.backend import Backend
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.topic import Topic

MakeTopic = Callable[..., Topic]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(1_000_000)


@pytest.fixture
def backend(database_url: str) -> Generator[Backend]:
    backend = Backend(database_url)
    yield backend
    backend.close()


@pytest.fixture
def clocked_backend(database_url: str, clock: MovableClock) -> Generator[Backend]:
    backend = Backend(database_url, clock=clock)
    yield backend
    backend.close()


@pytest.fixture
def sqlite_backend(sqlite_url: str) -> Generator[Backend]:
    backend = Backend(sqlite_url)
    yield backend
    backend.close()


def _maker(backend: Backend, tmp_path: Path) -> MakeTopic:
    def make(name: str = "telemetry", **options: Any) -> Topic:
        exist_ok = options.pop("exist_ok", False)
        chosen = TopicOptions.check(**{"roll_after": None, "roll_size": 1 << 30, **options})
        return Topic.create(backend, str(tmp_path / "ledgers"), name, chosen, exist_ok=exist_ok)

    return make


@pytest.fixture
def make_topic(backend: Backend, tmp_path: Path) -> MakeTopic:
    return _maker(backend, tmp_path)


@pytest.fixture
def topic(make_topic: MakeTopic) -> Topic:
    return make_topic()


@pytest.fixture
def clocked_topic(clocked_backend: Backend, tmp_path: Path) -> Topic:
    return _maker(clocked_backend, tmp_path)()


@pytest.fixture
def make_sqlite_topic(sqlite_backend: Backend, tmp_path: Path) -> MakeTopic:
    """Where the database makes no difference: SQLite is the fastest to set up."""
    return _maker(sqlite_backend, tmp_path)


@pytest.fixture
def sqlite_topic(make_sqlite_topic: MakeTopic) -> Topic:
    return make_sqlite_topic()
