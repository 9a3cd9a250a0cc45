"""One stage for all runs of a test module on one kind of database: opening it takes as long as a run."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.conftest import DATABASES
from tests.simulation.worlds.world import Stage
from tests.support.catalogues import sqlite_with_catalogue
from tests.support.services import Service


@pytest.fixture(scope="module", params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    if request.param == "sqlite":
        yield sqlite_with_catalogue(tmp_path_factory.mktemp("simulation") / "waterclock.db")
        return
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database() as url:
        yield url


@pytest.fixture(scope="module")
def stage(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    made = Stage(database_url, tmp_path_factory.mktemp("ledgers"))
    yield made
    made.close()
