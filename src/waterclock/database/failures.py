"""Errors of drivers and of SQLAlchemy become errors of Waterclock. This is the only place that does it.

Within a transaction of ours, statements fail with SQLAlchemy's errors, which the work in it may handle. An error that
leaves the transaction, the commit's included, leaves it as a `WaterclockError`: `Backend` sees to that. On a connection
of the caller's, that is so for our statements, and for those of the caller's own nothing changes.
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
    """Give the error of ours for one of a driver's that SQLAlchemy has wrapped, or of SQLAlchemy's own.

    Parameters
    ----------
    name
        The database's, as it may be shown.
    said
        What the driver said, as it may be shown.
    unavailable
        What cannot be done where the database is away: the beginning of the text.
    """
    limit = dialect.too_large(error) if isinstance(error, exc.DBAPIError) else None
    if limit is not None:
        size = largest_value(getattr(error, "params", None))
        what = f"a value of {size} bytes" if size else "a value"
        return InvalidArgumentError(f"cannot write {what} to {name}: it is too large ({said}). {limit}")
    if isinstance(error, (*UNWRITABLE, exc.DataError)):
        return InvalidArgumentError(f"{name} cannot keep a value: {said}")
    if isinstance(error, exc.TimeoutError):  # the pool's
        return UnavailableError(f"{unavailable}: all connections are in use ({said})")
    if isinstance(error, exc.DBAPIError):
        return _of_database(error, dialect, name, said, unavailable)
    if isinstance(error, exc.StatementError):  # a value that its type could not write
        return InvalidArgumentError(f"a value cannot be written to {name}: {said}")
    return RefusedError(f"{name} was not asked: {said}")


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
        return ForbiddenError(f"{name} denies it: {said}; grant its user the privilege")
    if isinstance(error, exc.IntegrityError):
        return ConstraintError(f"{name} refused what breaks a constraint: {said}")
    return RefusedError(f"{name} refused a statement: {said}")
