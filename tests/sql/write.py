"""Writes docs/sql.md: `make sql`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.sql.page import PAGE, Part, recorded_parts, written
from tests.support.catalogues import sqlite_with_catalogue
from tests.support.services import running_service


def write() -> None:
    """Record the statements on each database, and write the page of them."""
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[Part, str] = recorded_parts(sqlite_with_catalogue(Path(folder) / "waterclock.db"), "sqlite")
    for name in ("postgresql", "mariadb"):
        with running_service(name) as server, server.new_database() as url:
            parts |= recorded_parts(url, name)
    PAGE.write_text(written(parts))
    print("docs/sql.md")


if __name__ == "__main__":
    write()
