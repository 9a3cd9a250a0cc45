"""Finds the line of a key in a TOML file. The standard library's reader does not return lines."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w.-]+)\s*=""")
_PIPELINE = "pipeline"


class TomlLines:
    """The lines of the tables and keys of a pipeline's TOML file that writes each key on a line of its own.

    Parameters
    ----------
    text
        The file's text.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[int, str, int, str], int] = {}
        pipeline, table, place = 0, "", 0
        places: dict[str, int] = {}
        first = True
        for number, line in enumerate(text.splitlines(), 1):
            if header := _HEADER.fullmatch(line):
                table = header[2].removeprefix(f"{_PIPELINE}.")
                if table == _PIPELINE:
                    pipeline, first, places = (0 if first else pipeline + 1), False, {}
                place = places.get(table, -1) + 1
                places[table] = place
                self._lines[pipeline, table, place, ""] = number
            elif key := _KEY.match(line):
                self._lines.setdefault((pipeline, table, place, key[1].strip("\"'")), number)

    def find(self, table: str, key: str = "", place: int = 0, pipeline: int = 0) -> int:
        """Return the line of a key in the table of this name, counted from 1; of the table if the key is missing.

        Parameters
        ----------
        place
            Which of several tables with the same name, from 0.
        pipeline
            Which of the file's pipelines, from 0.
        """
        for known in (key, ""):
            if line := self._lines.get((pipeline, table, place, known)):
                return line
        return self._lines.get((pipeline, _PIPELINE, 0, ""), 1)
