"""Statements as they reach a driver, for tests that count them, or ask for their plans."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from waterclock.database.backend import Backend
from waterclock.database.driver_fast_path import DirectConnection

Statement = tuple[str, Any]
"""The text, and its parameters."""


@contextmanager
def statements_of(backend: Backend, *tables: str) -> Generator[list[Statement]]:
    """Collect what is sent while the block runs; of some tables, or of all."""
    seen: list[Statement] = []

    def note(text: str, parameters: Any) -> None:
        if parameters is not None and (not tables or any(name in text for name in tables)):
            seen.append((text, parameters))

    with noted(backend, note):
        yield seen


@contextmanager
def noted(backend: Backend, note: Callable[[str, Any], None]) -> Generator[None]:
    """Note each statement with its parameters, whether it goes by SQLAlchemy or without it.

    Without it, what begins or ends a transaction has the parameters None.
    """
    translated = DirectConnection._translated

    def note_execution(_connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        note(text, parameters)

    def note_and_execute(self: DirectConnection, execute: Any, *given: Any) -> Any:
        if isinstance(given[0], str):
            is_one_run = isinstance(given[1], list) and not any(isinstance(one, list | dict) for one in given[1])
            note(given[0], tuple(given[1]) if is_one_run else given[1])  # SQLAlchemy would take a list for several runs
        else:
            note(given[1], None)
        return translated(self, execute, *given)

    event.listen(backend.engine, "before_cursor_execute", note_execution)
    DirectConnection._translated = note_and_execute
    try:
        yield
    finally:
        DirectConnection._translated = translated
        event.remove(backend.engine, "before_cursor_execute", note_execution)
