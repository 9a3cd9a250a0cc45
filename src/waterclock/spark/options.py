"""Checks the options of the format ``waterclock``. Spark passes them as strings with case-insensitive names."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock._support.urls import represented
from waterclock.connection import Database, connect
from waterclock.errors import InvalidArgumentError, WaterclockError


@dataclass(frozen=True, repr=False)
class Opening:
    """The options that every use of the format shares. Subclasses set ``repr=False``, because a URL has secrets.

    Attributes
    ----------
    url, ledgers
        As `connect` takes them; ``ledgers`` is None if its default is meant.
    """

    url: str
    ledgers: str | None

    def __repr__(self) -> str:
        return represented(self, vars(self))

    def connect(self) -> Database:
        return connect(self.url, self.ledgers)


def needed(options: Mapping[str, str], name: str) -> str:
    """Return a required option."""
    if name not in options:
        raise InvalidArgumentError(f'option {name} is missing. Add .option("{name}", …)')
    return options[name]


def known_only(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return options by names in lower case; refuse unknown ones: a misspelling must not change the result."""
    spelt = {name.lower() for name in known}
    for name in options:
        if name.lower() not in spelt:
            raise InvalidArgumentError(f"no option named {quoted(name)}; choose from {', '.join(sorted(known))}")
    return {name.lower(): value for name, value in options.items()}


def number(options: Mapping[str, str], name: str) -> int | None:
    """Read an option that is a count of at least 1; None if omitted."""
    given = options.get(name.lower())
    if given is None:
        return None
    if not given.isdecimal() or int(given) < 1:
        raise InvalidArgumentError(f"{name} must be an integer ≥ 1, got {quoted(given)}")
    return int(given)


def truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Read an option that is true or false."""
    given = options.get(name.lower(), str(default)).lower()
    if given not in ("true", "false"):
        raise InvalidArgumentError(f"{name} must be true or false, got {quoted(given)}")
    return given == "true"


@contextmanager
def plainly() -> Generator[None]:
    """Raise a user's mistake as its text only, without the trace of the Python process that detected it."""
    try:
        yield
    except WaterclockError:
        # Spark writes a worker's trace into the error unless this is set. The worker ends with its first error, so
        # later errors are not affected. Errors that are not ours keep their trace.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
