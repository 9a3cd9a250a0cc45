"""Wraps drivers' errors in SQLAlchemy's, including errors of statements that SQLAlchemy did not run."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

UNWRITABLE = (UnicodeEncodeError, OverflowError)
"""Errors that drivers raise, instead of their own, for text or an int that their database cannot store."""

MISFITS = (*UNWRITABLE, TypeError)
"""Errors that drivers raise, instead of their own, for any value that they cannot convert."""


def wrapped(
    error: Exception, dialect: sa.Dialect, statement: str | None = None, parameters: Any = None, *, broken: bool = False
) -> exc.DBAPIError:
    """Return a driver's error as SQLAlchemy would raise it.

    ``statement`` is None if the connection was being opened. ``parameters`` are its values in the driver's form.
    ``broken`` says whether the connection broke.
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
    """Enable SQLAlchemy to wrap errors that drivers raise bare for a value that cannot be converted."""
    event.listen(engine, "handle_error", _wrap)


def _wrap(context: Any) -> exc.DataError | None:
    error = context.original_exception
    return exc.DataError(context.statement, context.parameters, error) if isinstance(error, MISFITS) else None
