"""Errors of drivers as SQLAlchemy wraps them, also where it would not or where it did not run the statement."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

UNWRITABLE = (UnicodeEncodeError, OverflowError)
"""What drivers raise, instead of an error of their own, for a text or an int that their database cannot keep."""

MISFITS = (*UNWRITABLE, TypeError)
"""What drivers raise, instead of an error of their own, for any value that they cannot write."""


def wrapped(
    error: Exception, dialect: sa.Dialect, statement: str | None = None, parameters: Any = None, *, broken: bool = False
) -> exc.DBAPIError:
    """Give a driver's error as SQLAlchemy would raise it.

    Parameters
    ----------
    statement
        What was run; None where the connection was opened.
    parameters
        With which values, as the driver took them.
    broken
        Whether the connection broke.
    """
    made = exc.DBAPIError.instance(
        statement,
        parameters,
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=broken,
        dialect=dialect,
    )
    assert isinstance(made, exc.DBAPIError)  # noqa: S101  # as for each error of the driver's
    return made


def wrap_unwritable(engine: sa.Engine) -> None:
    """Let SQLAlchemy wrap what drivers raise bare for a value that cannot be written."""
    event.listen(engine, "handle_error", _wrap)


def _wrap(context: Any) -> exc.DataError | None:
    error = context.original_exception
    return exc.DataError(context.statement, context.parameters, error) if isinstance(error, MISFITS) else None
