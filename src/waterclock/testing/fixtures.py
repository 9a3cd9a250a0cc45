"""Fixtures for pytest: ``pytest_plugins = ["waterclock.testing.fixtures"]`` in your ``conftest.py``."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from waterclock.connection import Database, connect
from waterclock.testing.clock import Clock


@pytest.fixture
def waterclock_clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def waterclock_database(tmp_path: Path, waterclock_clock: Clock) -> Generator[Database]:
    """Return an empty database in a temporary file, which uses that clock."""
    with connect(f"sqlite:///{tmp_path / 'waterclock.db'}", clock=waterclock_clock) as database:
        yield database
