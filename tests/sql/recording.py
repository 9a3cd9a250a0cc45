"""Recording the statements that a call sends to the driver, in their order."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy.dialects.mysql.mysqldb import MySQLDialect_mysqldb
from sqlalchemy.engine.default import DefaultDialect

from waterclock.database import driver_fast_path
from waterclock.database.driver_fast_path import DirectConnection
from waterclock.tables.messages.claiming import bounded_rows

_TRIES = 3
_LOOKS_AT_TABLES = re.compile(
    r"FROM (pg_catalog\.pg_|INFORMATION_SCHEMA\.TABLES)|^(DESCRIBE|SHOW CREATE) ", re.MULTILINE
)
"""What SQLAlchemy asks before it makes or drops something."""


@contextmanager
def recorded() -> Generator[list[str]]:
    """Give the list to which every statement is added that reaches a driver in this process.

    ``BEGIN`` and ``COMMIT`` stand where the driver's own methods are called. A placeholder that has no name of its own,
    as on SQLite, gets that of its parameter.
    """
    seen: list[str] = []
    places: dict[str, Sequence[str]] = {}
    translated, compile_once = DirectConnection._translated, driver_fast_path.compile_once

    def note_places(statement: Any, dialect: Any, keys: Any = None) -> Any:
        compiled = compile_once(statement, dialect, keys)
        if compiled.text not in places:
            names = {} if keys is None else {"column_keys": keys}
            whole = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}, **names)
            places[compiled.text] = whole.positiontup or ()
        return compiled

    def note_direct(self: DirectConnection, execute: Any, *arguments: Any) -> Any:
        text = next(each for each in arguments if isinstance(each, str))
        seen.append(_named(text, places.get(text, ())))
        return translated(self, execute, *arguments)

    def note(_dialect: Any, _cursor: Any, text: str, *rest: Any) -> None:
        seen.append(_named(text, getattr(getattr(rest[-1], "compiled", None), "positiontup", None) or ()))

    def note_begin(dialect: DefaultDialect, _connection: Any) -> None:
        if dialect.name != "sqlite":  # where the statement itself is sent
            # A setting of the transaction is noted before; the driver has begun it for that.
            place = len(seen)
            while place and seen[place - 1].startswith("SELECT set_config(") and seen[place - 1].endswith(", true)"):
                place -= 1
            seen.insert(place, "BEGIN")

    def note_commit(_dialect: Any, _connection: Any) -> None:
        seen.append("COMMIT")

    with ExitStack() as patches:
        patches.enter_context(patch.object(DirectConnection, "_translated", note_direct))
        patches.enter_context(patch.object(driver_fast_path, "compile_once", note_places))
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            patches.enter_context(_noted(DefaultDialect, name, note))
        patches.enter_context(_noted(MySQLDialect_mysqldb, "do_executemany", note))  # which has its own
        patches.enter_context(_noted(DefaultDialect, "do_begin", note_begin))
        patches.enter_context(_noted(DefaultDialect, "do_commit", note_commit))
        yield seen


def _noted(owner: type, name: str, note: Callable[..., None]) -> AbstractContextManager[Any]:
    """Have a method noted before it is called."""
    method = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        note(*arguments)
        return method(*arguments)

    return patch.object(owner, name, noted)


def usual_statements(prepare: Callable[[], Callable[[], Any]]) -> list[str]:
    """Record the statements of a call as it nearly always is.

    Once a second a call also looks whether options have changed, or reads the clock. So it is made several times, and
    the one with the fewest statements counts. None of them advances bounds, as most calls of a busy consumer.

    Parameters
    ----------
    prepare
        Makes the call ready each time.
    """
    tries: list[list[str]] = []
    for _ in range(_TRIES):
        call = prepare()
        with recorded() as seen, patch.multiple(bounded_rows, _ADVANCE_IN_PAIRS_EVERY=60.0, _ADVANCE_IDLE_EVERY=60.0):
            call()
        tries.append([statement for statement in seen if not _LOOKS_AT_TABLES.search(statement)])
    return min(tries, key=len)


def _named(text: str, names: Sequence[str]) -> str:
    parts = text.split("?")
    if len(parts) != len(names) + 1:
        return text
    return "".join(part + name for part, name in zip(parts, [*(f":{name}" for name in names), ""], strict=True))
