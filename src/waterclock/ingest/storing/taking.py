"""Makes a process the owner of rows of the catalogue, by inserting or updating them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.errors import ConstraintError

T = TypeVar("T")


def take_rows(backend: Backend, take_row: Callable[[sa.Connection], T]) -> T:
    """Run a transaction that inserts rows that it did not find, and again if another process inserted one meanwhile."""
    try:
        return backend.transact(take_row)
    except ConstraintError:
        return backend.transact(take_row)
