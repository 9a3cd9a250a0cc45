"""Takes keys from a table of a TOML file one by one, and adds the file and line to errors."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from waterclock._support.quoting import quoted
from waterclock.configuration.toml_lines import TomlLines
from waterclock.database.engines.database_url import parse_url
from waterclock.errors import InvalidArgumentError, WaterclockError

_MOST = 2**31 - 1
"""The maximum of Spark's integers."""

_TELLING = 4
"""Minimum length of an environment value that errors replace by its variable."""

_SECRET = ("password",)
"""Keys whose values no error repeats."""

_VARIABLE = re.compile(r"\$(\$|\{([^}]*)\}?)?")


class TomlTable:
    """One table of the file, whose keys are taken one by one; a key that remains is unknown, and refused.

    Parameters
    ----------
    path, lines
        The file, for errors.
    name, values
        The table's name, and its value in the file; anything but a table is refused.
    place
        Which of several tables of one name, from 0.
    pipeline
        Which of the file's pipelines, from 0.
    """

    def __init__(
        self, path: Path, lines: TomlLines, name: str, values: object, place: int = 0, pipeline: int = 0
    ) -> None:
        self._path = path
        self._lines = lines
        self._name = name
        self._place = place
        self._pipeline = pipeline
        self._filled_in: dict[str, str] = {}
        if not isinstance(values, dict):
            raise self.wrong("", f"the table [{name}] is missing" if values is None else f"{name} must be a table")
        self._values = dict(cast("dict[str, object]", values))
        self._taken: dict[str, object] = {}
        self._known: list[str] = []

    def text(self, key: str) -> str:
        """Take a required text."""
        value = self.optional(key)
        if value is None:
            raise self.wrong(key, f"{self._name}.{key} is missing")
        return value

    def optional(self, key: str) -> str | None:
        """Take a text; None if the key is missing."""
        value = cast("str | None", self.take(key, (str,), "a string"))
        if value == "" or "\0" in (value or ""):
            raise self.wrong(
                key, f"{self._name}.{key} must be a non-empty string without NUL characters, got {quoted(value)}"
            )
        return value

    def texts(self, key: str) -> list[str] | None:
        """Take an array of texts; None if the key is missing."""
        values = cast("list[object] | None", self.take(key, (list,), "an array of strings"))
        for value in values or ():
            if not isinstance(value, str) or value == "" or "\0" in value:
                raise self.wrong(
                    key, f"{self._name}.{key} must hold non-empty strings without NUL characters, got {quoted(value)}"
                )
        return None if values is None else [self._filled(key, str(value)) for value in values]

    def texts_by_name(self, key: str) -> dict[str, str]:
        """Take a table of texts, numbers and booleans, as texts."""
        values = cast("dict[str, object] | None", self.take(key, (dict,), "a table"))
        return TomlTable(self._path, self._lines, f"{self._name}.{key}", values or {}).flat()

    def duration_or_inf(self, key: str) -> str | float | None:
        """Take a duration or ``inf``, which may be in quotes, as on a command line; None if the key is missing."""
        value = cast("str | float | None", self.take(key, (str, float), "a duration in quotes, or inf for no timeout"))
        return math.inf if value == "inf" else value

    def url(self, key: str) -> str | None:
        """Take the URL of a database."""
        value = self.optional(key)
        if value is not None:
            self.check(key, lambda: parse_url(value))
        return value

    def whole(self, key: str) -> int | None:
        """Take a count."""
        value = cast("int | None", self.take(key, (int,), "an integer"))
        if value is not None and not 1 <= value <= _MOST:
            raise self.wrong(key, f"{self._name}.{key} must be an integer from 1 to {_MOST}, got {quoted(value)}")
        return value

    def take(self, key: str, kinds: tuple[type, ...], wanted: str) -> object:
        """Take a value, with the variables of a text filled in; None if the key is missing."""
        self._known.append(key)
        value = self._values.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, f"{self._name}.{key} must be {wanted}, got {quoted(value)}")
        self._taken[key] = self._filled(key, value) if isinstance(value, str) else value
        if self._taken[key] != value:
            self._filled_in = {str(self._taken[key]): str(value)} | self._filled_in  # longer ones first
        return self._taken[key]

    def check(self, key: str, check: Callable[[], Any]) -> Any:
        """Check a value with a function of another part, and add the value's line to its error.

        The function may check several values: the error is that of the key with which its text begins, if it was taken.
        """
        try:
            return check()
        except WaterclockError as error:
            first = re.match(r"\w*", str(error))
            if first is not None and first[0] in self._taken and first[0] not in _SECRET:
                key = first[0]
            raise self.wrong(key, f"{self._name}.{key} = {quoted(self._taken.get(key))}: {error}") from error

    def end(self) -> None:
        """Refuse the keys that were not taken."""
        for key in self._values:
            known = ", ".join(sorted(self._known))
            raise self.wrong(key, f"no key named {self._name}.{key}; choose from {known}")

    def flat(self) -> dict[str, str]:
        """Take all values as texts; keys of nested tables are joined by dots."""
        found: dict[str, str] = {}
        waiting = [*self._values.items()]
        while waiting:
            key, value = waiting.pop(0)
            if isinstance(value, dict):
                waiting += [(f"{key}.{name}", inner) for name, inner in cast("dict[str, object]", value).items()]
            elif isinstance(value, bool):
                found[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                found[key] = self._filled(key, str(value))
            else:
                raise self.wrong(
                    key, f"{self._name}.{key} must be a string, a number or a boolean, got {quoted(value)}"
                )
        return found

    def wrong(self, key: str, text: str) -> InvalidArgumentError:
        """Build an error with the line of a key, and the fault of its value."""
        line = self._lines.find(self._name, key, self._place, self._pipeline)
        return InvalidArgumentError(f"{self._path}, line {line}: {self._named(key, text)}")

    def _named(self, key: str, text: str) -> str:
        """Replace values from the environment, which may be passwords, by the variables' names."""
        for said, name in self._filled_in.items():
            for form, shown in ((quoted(said), quoted(name)), (repr(said)[1:-1], name), (said, name)):
                text = text.replace(form, shown)
        if any(said[:_TELLING] in text for said, name in self._filled_in.items() if _VARIABLE.fullmatch(name)):
            return f"{self._name}.{key}: the value of its environment variable is invalid"
        return text

    def _filled(self, key: str, text: str) -> str:
        """Replace ``${NAME}`` by the environment's value; ``$$`` is a dollar sign."""

        def fill(found: re.Match[str]) -> str:
            if found[1] == "$":
                return "$"
            name = found[2]
            if name is None or not found[0].endswith("}"):
                raise self.wrong(
                    key, f"{self._name}.{key}: $ must start a variable, as in ${{NAME}}. Write $$ for a dollar sign"
                )
            if name not in os.environ:
                raise self.wrong(key, f"{self._name}.{key}: environment variable {quoted(name)} is not set")
            if os.environ[name]:
                self._filled_in[os.environ[name]] = found[0]
            return os.environ[name]

        return _VARIABLE.sub(fill, text)
