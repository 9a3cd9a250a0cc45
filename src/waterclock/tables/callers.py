"""Working inside a transaction of the caller's: through SQLAlchemy, or through a bare DB-API connection."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError
from waterclock.quoting import quoted

_VERBS = ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate")


class CallerConnections:
    """Makes what callers pass as ``connection=`` a SQLAlchemy connection, without ending their transaction."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lent = threading.local()
        self._engine: sa.Engine | None = None

    @contextmanager
    def use(self, connection: Any) -> Generator[sa.Connection]:
        """Lend the caller's connection to us.

        Parameters
        ----------
        connection
            A SQLAlchemy Connection or Session, or a DB-API connection of the driver that the database's URL names.

        Raises
        ------
        InvalidArgumentError
            For anything else, and for a connection to another kind of database.
        WaterclockError
            Where a statement of ours fails there; the driver's error is its cause. What that does to the caller's
            transaction is as the database has it.
        """
        with self._backend.translated("use the caller's connection to"), self._lend(connection) as lent:
            yield lent

    @contextmanager
    def _lend(self, connection: Any) -> Generator[sa.Connection]:
        if isinstance(connection, sa.Connection):
            yield self._checked(connection)
        elif callable(getattr(connection, "connection", None)):  # a Session, or what stands for one
            yield self._checked(connection.connection())
        elif callable(getattr(connection, "cursor", None)):
            self._lent.connection = connection
            with self._borrowing_engine().connect() as borrowed:
                yield borrowed
        else:
            raise InvalidArgumentError(
                f"connection: {quoted(connection)} is no connection; give a SQLAlchemy Connection or Session, or a"
                " DB-API connection"
            )

    def _checked(self, connection: Any) -> sa.Connection:
        if not isinstance(connection, sa.Connection) or connection.dialect.name != self._backend.engine.dialect.name:
            raise InvalidArgumentError(f"connection: {quoted(connection)} is not a connection to {self._backend.name}")
        return connection

    def _borrowing_engine(self) -> sa.Engine:
        if self._engine is None:
            engine = sa.create_engine(
                self._backend.url, creator=lambda: self._lent.connection, poolclass=sa.pool.NullPool
            )
            # Beginning, ending and closing stay the caller's business.
            for verb in _VERBS:
                setattr(engine.dialect, verb, _leave)
            self._engine = engine
        return self._engine


def _leave(_connection: object) -> None:
    return
