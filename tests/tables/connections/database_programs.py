"""The databases' own programs: sqlite3, psql and mariadb, as people use them."""

from __future__ import annotations

import os
import subprocess

import sqlalchemy as sa
from tests.support.services import program


def run_program(url: str, statements: str) -> str:
    """Feed statements to the program of the URL's database; return what it prints, one row per line, ``|`` between."""
    parsed = sa.make_url(url)
    environment = dict(os.environ)
    match parsed.get_backend_name():
        case "sqlite":
            command = [program("sqlite", "sqlite3"), "-bail", str(parsed.database)]
        case "postgresql":
            environment |= {"PGPASSWORD": str(parsed.password)}
            command = [
                program("postgresql", "psql"), "--no-psqlrc", "--quiet", "--no-align", "--tuples-only",
                "--set=ON_ERROR_STOP=1", f"--host={parsed.host}", f"--port={parsed.port}",
                f"--username={parsed.username}", str(parsed.database),
            ]  # fmt: skip
        case _:
            environment |= {"MYSQL_PWD": str(parsed.password)}
            command = [
                program("mariadb", "mariadb"), "--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp",
                f"--host={parsed.host}", f"--port={parsed.port}", f"--user={parsed.username}", str(parsed.database),
            ]  # fmt: skip
    done = subprocess.run(command, input=statements, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProgramError(done.stderr)
    return done.stdout.replace("\t", "|")


class ProgramError(Exception):
    """The program refused a statement; the text is what it said."""
