"""A database with some of everything in it, at a clock that stands still."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from tests.backup.contents import furnish
from tests.support.catalogues import sqlite_with_catalogue

import waterclock as wc

NOW = 1_782_907_200_000_000_000


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a furnished database and its ledgers, copied while a process has them open."""
    made, kept = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("kept")
    with wc.connect(sqlite_with_catalogue(made / "waterclock.db"), made / "ledgers", clock=lambda: NOW) as database:
        furnish(database)
        shutil.copytree(made / "ledgers", kept / "ledgers")
        with (
            closing(sqlite3.connect(made / "waterclock.db")) as original,
            closing(sqlite3.connect(kept / "waterclock.db")) as copy,
        ):
            original.backup(copy)
    return kept


@pytest.fixture
def source(furnished: Path, sqlite_url: str, tmp_path: Path) -> Generator[wc.Database]:
    shutil.copytree(furnished, tmp_path, dirs_exist_ok=True)
    with closing(sqlite3.connect(tmp_path / "waterclock.db")) as copy, copy:
        copy.execute("UPDATE waterclock_stores SET root = ?", [str(tmp_path / "ledgers")])
    with wc.connect(sqlite_url, tmp_path / "ledgers", clock=lambda: NOW) as database:
        yield database


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"
