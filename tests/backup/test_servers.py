"""The commands of the how-to page, on PostgreSQL and MariaDB: every message, row and group comes back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.backup.conftest import NOW
from tests.backup.contents import furnish, groups, messages, rows
from tests.support.services import Service, program

import waterclock as wc
from waterclock.errors import InvalidArgumentError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operation" / "back-up-and-restore.md"
PROGRAMS = {
    "postgresql": {"postgresql": ("createdb", "pg_dump", "pg_restore")},
    "mariadb": {"mariadb": ("mariadb",), "mariadb-dump": ("mariadb-dump",)},
}
TITLES = {"postgresql": "PostgreSQL", "mariadb": "MariaDB"}


@dataclass(frozen=True)
class Place:
    """A server with a database, its ledger files, and a folder for backups."""

    server: Service
    url: str
    folder: Path

    @property
    def copy(self) -> str:
        """The URL of the restored database."""
        return self._url(f"{sa.make_url(self.url).database}_copy")

    def ledgers(self, url: str) -> Path:
        return self.folder / "srv" / f"{sa.make_url(url).database}-ledgers"

    def connect(self, url: str) -> wc.Database:
        return wc.connect(url, self.ledgers(url), clock=lambda: NOW)

    def run(self, title: str) -> None:
        """Run the commands of a block of the page, on this server, database and folder instead of those of the page."""
        [block] = re.findall(
            rf'```sh title="{TITLES[self.server.name]}: {title}"\n(.*?)```', PAGE.read_text(), re.DOTALL
        )
        here = [
            (r"(postgresql\+psycopg|mysql\+pymysql)://db\.example/(\w+)", lambda found: f"'{self._url(found[2])}'"),
            (r"/(srv|backup)/", rf"{self.folder}/\1/"),
            ("factory", str(sa.make_url(self.url).database)),
        ]
        for pattern, replacement in here:
            block = re.sub(pattern, replacement, block)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def _url(self, database: str) -> str:
        return sa.make_url(self.url).set(database=database).render_as_string(hide_password=False)

    def _environment(self) -> dict[str, str]:
        found = {
            str(Path(program(product, name)).parent)
            for product, names in PROGRAMS[self.server.name].items()
            for name in names
        }
        own = {
            "PATH": ":".join([str(Path(sys.executable).parent), *found, os.environ["PATH"]]),
            "HOME": str(self.folder),
        }
        url = sa.make_url(self.url)
        facts = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
        if self.server.name == "postgresql":
            return os.environ | own | {f"PG{name.upper()}": str(value) for name, value in facts.items()}
        options = "".join(f"{name}={value}\n" for name, value in facts.items())
        (self.folder / ".my.cnf").write_text(f"[client]\nprotocol=tcp\n{options}")
        return os.environ | own


@pytest.fixture(params=["postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Place]:
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database() as url:
        made = Place(server, url, tmp_path)
        (tmp_path / "backup").mkdir()
        try:
            yield made
        finally:
            server.drop(str(sa.make_url(made.copy).database))


def names_original(copy: wc.Database, original: str | None) -> bool:
    """Say whether a table would draw its ids from the original's sequence, which MariaDB names with its database."""
    if copy.backend.dialect.name != "mysql":
        return False
    with copy.backend.engine.connect() as connection:
        made = [connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()[1] for name in ("orders", "plain")]
    assert all("nextval(" in each for each in made)
    return any(f"`{original}`" in each for each in made)


def test_the_commands_of_the_page_back_up_and_restore_everything(place: Place) -> None:
    with place.connect(place.url) as source:
        furnish(source)
        whole = messages(source), rows(source.backend.engine), groups(source)
        place.run("back up")
        # What comes after the backup is not in it, and does not disturb it.
        source.topic("telemetry").append([wc.Message("press", "load", 81)])
        source.table("orders").put({"n": 9}, group="g0")
        place.run("restore")
        with place.connect(place.copy) as copy:
            assert (messages(copy), rows(copy.backend.engine), groups(copy)) == whole
        place.run("make the copy independent")
        with place.connect(place.copy) as copy:
            copy.topic("telemetry").remove()
            new = copy.table("orders").put({"n": 10}, group="g3")
            with copy.backend.engine.begin() as connection:
                connection.exec_driver_sql("INSERT INTO plain (message) VALUES ('by plain SQL')")
            assert new not in range(1, 10)
            assert not names_original(copy, sa.make_url(place.url).database)
        assert len(messages(source)["telemetry"]) == 82, "the original keeps what its copy removed"


def test_waterclock_says_which_tools_to_use(place: Place) -> None:
    with place.connect(place.url) as database, pytest.raises(InvalidArgumentError, match="pg_dump or mariadb-dump"):
        database.backup(place.folder / "there")
    assert not (place.folder / "there").exists()
