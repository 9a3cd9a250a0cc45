"""Converts errors of drivers and of SQLAlchemy to errors of Waterclock. No other module does this.

Within our transactions, statements fail with SQLAlchemy's errors, which the code in the transaction may handle.
`Backend` converts errors that leave the transaction, including errors of the commit, to a `WaterclockError`. On a
caller's connection, errors of our statements are converted, and the caller's own errors are unchanged.
"""

from __future__ import annotations

from sqlalchemy import exc

from waterclock.database.engines.engine_dialect import EngineDialect
from waterclock.database.statement_size import largest_value
from waterclock.database.wrapping import UNWRITABLE
from waterclock.errors import (
    ConstraintError,
    ForbiddenError,
    InvalidArgumentError,
    RefusedError,
    TimedOutError,
    UnavailableError,
    WaterclockError,
)


def failure(error: Exception, dialect: EngineDialect, name: str, said: str, unavailable: str) -> WaterclockError:
    """Return our error for a driver's error that SQLAlchemy has wrapped, or for one of SQLAlchemy's own.

    ``name`` is the name of the database, without secrets. ``said`` is the driver's text, without secrets.
    ``unavailable`` is the beginning of the text if the database is unavailable.
    """
    limit = dialect.too_large(error) if isinstance(error, exc.DBAPIError) else None
    if limit is not None:
        size = largest_value(getattr(error, "params", None))
        what = f"a value of {size} bytes" if size else "a value"
        return InvalidArgumentError(f"cannot write {what} to {name}: it is too large ({said}). {limit}")
    if isinstance(error, (*UNWRITABLE, exc.DataError)):
        return InvalidArgumentError(f"cannot store a value in {name}: {said}")
    if isinstance(error, exc.TimeoutError):  # the pool's
        return UnavailableError(f"{unavailable}: all connections are in use ({said})")
    if isinstance(error, exc.DBAPIError):
        return _of_database(error, dialect, name, said, unavailable)
    if isinstance(error, exc.StatementError):  # a value that its type could not convert
        return InvalidArgumentError(f"cannot write a value to {name}: {said}")
    return RefusedError(f"cannot run a statement on {name}: {said}")


def _of_database(
    error: exc.DBAPIError, dialect: EngineDialect, name: str, said: str, unavailable: str
) -> WaterclockError:
    reason = dialect.refusal(error)
    if reason is not None:
        return UnavailableError(f"{unavailable}: {reason} ({said})")
    if dialect.timed_out(error):
        return TimedOutError(f"{unavailable}: a statement took longer than the database allows ({said})")
    if dialect.is_transient(error):
        return UnavailableError(f"{unavailable}: {said}")
    if dialect.is_forbidden(error):
        return ForbiddenError(f"permission denied by {name}: {said}. Grant the privilege to the user of this URL")
    if dialect.violates_constraint(error):
        return ConstraintError(f"{name} refused a statement that violates a constraint: {said}")
    return RefusedError(f"{name} refused a statement: {said}")
