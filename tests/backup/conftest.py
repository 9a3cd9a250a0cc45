"""A database with some of everything in it, at a clock that stands still."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.backup.contents import furnish

import waterclock as wc

NOW = 1_782_907_200_000_000_000


@pytest.fixture
def source(sqlite_url: str, tmp_path: Path) -> Generator[wc.Database]:
    with wc.connect(sqlite_url, tmp_path / "ledgers", clock=lambda: NOW) as database:
        furnish(database)
        yield database


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"
