"""Statements as they reach a driver, for tests that count them, or ask for their plans."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from waterclock.database.backend import Backend
from waterclock.database.direct import Direct

Statement = tuple[str, Any]
"""The text, and its parameters."""


@contextmanager
def statements_of(backend: Backend, *tables: str) -> Generator[list[Statement]]:
    """Collect what is sent while the block runs, by SQLAlchemy or without it; of some tables, or of all."""
    seen: list[Statement] = []
    translated = Direct._translated

    def note(_connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if not tables or any(name in text for name in tables):
            seen.append((text, parameters))

    def note_and_execute(self: Direct, execute: Any, *given: Any) -> Any:
        if isinstance(given[0], str):  # else it begins or ends a transaction
            note(None, None, *given)
        return translated(self, execute, *given)

    event.listen(backend.engine, "before_cursor_execute", note)
    Direct._translated = note_and_execute
    try:
        yield seen
    finally:
        Direct._translated = translated
        event.remove(backend.engine, "before_cursor_execute", note)
