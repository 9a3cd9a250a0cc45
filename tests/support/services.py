"""The servers that tests run against: started by scripts/services when first needed, and ended with the session."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from tests.support.catalogues import create_migrated, migrate

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "services"

_SESSIONS = sa.text("SELECT id FROM information_schema.processlist WHERE db = :name")


@dataclass(frozen=True)
class Service:
    """A server that runs.

    Attributes
    ----------
    name
        ``"postgresql"``, ``"mariadb"`` or ``"mosquitto"``.
    url
        SQLAlchemy URL of a database that belongs to no test; of a broker ``mqtt://user:password@host:port``.
    folder
        What `scripts/services` knows it by; None for a server that was started elsewhere.
    template
        A database that was migrated; None where there is none.
    """

    name: str
    url: str
    folder: Path | None
    template: str | None = None

    def restart(self, *, immediate: bool = False) -> None:
        """Stop it and start it again on the same port with the same data; ``immediate`` kills it, as a crash would."""
        how = ["--immediate"] if immediate else []
        _services("restart", self._own_folder(), self.name, *how)

    @contextmanager
    def stopped(self) -> Generator[None]:
        """Stop it for a while; afterwards it is there again on the same port with the same data."""
        _services("halt", self._own_folder(), self.name)
        try:
            yield
        finally:
            self.restart()

    def _own_folder(self) -> str:
        if self.folder is None:
            pytest.fail(
                f"this test restarts {self.name}, and only a server of scripts/services can be restarted:"
                f" unset {_variable(self.name)}, or use scripts/services run",
                pytrace=False,
            )
        return str(self.folder)

    @contextmanager
    def new_database(self, *, empty: bool = False) -> Generator[str]:
        """Make a database, give its URL, and drop it in the end, also while clients are connected to it.

        Parameters
        ----------
        empty
            Whether it lacks the catalogue, so that opening it migrates it.
        """
        name = f"test_{secrets.token_hex(8)}"
        engine = self._engine()
        with engine.connect() as connection:
            if empty or self.template is None:
                connection.execute(_statement(engine, "CREATE DATABASE %(name)s", name))
            else:
                create_migrated(connection, name, self.template)
        try:
            yield engine.url.set(database=name).render_as_string(hide_password=False)
        finally:
            self.drop(name)

    def drop(self, name: str) -> None:
        """Drop a database, also while clients are connected to it; nothing to do where there is none."""
        with self._engine().connect() as connection:
            self._drop(connection, name)

    @contextmanager
    def with_template(self) -> Generator[Service]:
        """Give the same server with a database that was migrated, to copy others from; dropped in the end."""
        with self.new_database(empty=True) as url:
            migrate(url)
            yield replace(self, template=sa.make_url(url).database)

    def _engine(self) -> sa.Engine:
        return _keeper(self.url)

    def _drop(self, connection: sa.Connection, name: str) -> None:
        if self.name == "postgresql":
            connection.execute(_statement(connection.engine, "DROP DATABASE IF EXISTS %(name)s WITH (FORCE)", name))
            return
        for session in connection.scalars(_SESSIONS, {"name": name}).all():
            # It may have ended by itself meanwhile.
            with suppress(exc.OperationalError):
                connection.execute(sa.text("KILL :id"), {"id": session})
        connection.execute(_statement(connection.engine, "DROP DATABASE IF EXISTS %(name)s", name))


@contextmanager
def running_service(name: str) -> Generator[Service]:
    """Give the server that the environment names, or start one that ends with this process."""
    url = os.environ.get(_variable(name))
    if url is not None:
        folder = os.environ.get("WATERCLOCK_TEST_SERVICES")
        yield Service(name, url, Path(folder) if folder else None)
        return
    # In memory, a test's tables cost milliseconds; what a killed server had committed is still there afterwards.
    facts = json.loads(_services("start", name, "--in-memory", "--end-with", str(os.getpid())))
    yield Service(name, facts["servers"][name]["url"], Path(facts["folder"]))
    _services("stop", facts["folder"])


@cache
def program(product: str, name: str) -> str:
    """Give the path of a program of PostgreSQL, MariaDB or SQLite, such as ``psql``."""
    return json.loads(_services("programs", product))[name]


@cache
def _keeper(url: str) -> sa.Engine:
    """Give what makes and drops databases: one for all tests, since each new one first asks the server what it is."""
    return sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_size=1, pool_pre_ping=True)


def _variable(name: str) -> str:
    return f"WATERCLOCK_TEST_{name.upper()}_URL"


def _services(*arguments: str) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # Never a skip: a test that did not run has shown nothing.
        pytest.fail(f"scripts/services {' '.join(arguments)}\n{done.stderr}", pytrace=False)
    return done.stdout


def _statement(engine: sa.Engine, text: str, name: str) -> sa.DDL:
    return sa.DDL(text, context={"name": engine.dialect.identifier_preparer.quote(name)})
