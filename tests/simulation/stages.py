"""Stages of their own: for programs, where no fixture gives a database."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conftest import MEMORY
from tests.simulation.worlds.world import Stage
from tests.support.catalogues import sqlite_with_catalogue
from tests.support.services import running_service


@contextmanager
def stage_on(database: str) -> Generator[Stage]:
    """Give a stage on a new database of a server that is started for it."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)))
        if database == "sqlite":
            url = sqlite_with_catalogue(folder / "waterclock.db")
        else:
            server = opened.enter_context(running_service(database))
            url = opened.enter_context(opened.enter_context(server.with_template()).new_database())
        stage = Stage(url, folder / "ledgers")
        opened.callback(stage.close)
        yield stage
