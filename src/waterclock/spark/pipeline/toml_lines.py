"""Finds the line of a key in a TOML file, which the standard library's reader does not tell."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"\s*([\w-]+)\s*=")


class TomlLines:
    """The lines of the tables and keys of a TOML file that writes each key on a line of its own.

    Parameters
    ----------
    text
        The file's text.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, int, str], int] = {}
        table, place = "", 0
        places: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.fullmatch(line):
                table = header[2]
                place = places.get(table, -1) + 1
                places[table] = place
                self._lines[table, place, ""] = number
            elif key := _KEY.match(line):
                self._lines.setdefault((table, place, key[1]), number)

    def find(self, table: str, key: str = "", place: int = 0) -> int:
        """Give the line of a key in the table of this name, counted from 1; of the table where the key is not there.

        Parameters
        ----------
        place
            Which of several tables of one name, from 0.
        """
        return self._lines.get((table, place, key)) or self._lines.get((table, place, "")) or 1
