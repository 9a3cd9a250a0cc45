"""Who waits for a lock, as each database says it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

_TRANSACTION = re.compile(r"^---TRANSACTION", re.MULTILINE)
_THREAD = re.compile(r"thread id (\d+)")


class NoWaits:
    """SQLite: who finds another writer is refused at once, and the scheduler knows who writes."""

    has_server = False

    def number(self, connection: Any) -> int:
        del connection
        return 0

    def is_blocked(self, number: int) -> bool:
        del number
        return False

    def end(self, number: int) -> None:
        """Nothing is open on a server."""

    def close(self) -> None:
        """Nothing to give back."""


class PostgresqlWaits:
    """Asks ``pg_blocking_pids``."""

    has_server = True

    def __init__(self, engine: sa.Engine) -> None:
        self._connection: Any = engine.raw_connection()
        self._driver = self._connection.driver_connection
        self._driver.rollback()
        self._driver.autocommit = True
        database = engine.url.database
        # Real time, which the clock of a run does not know: found soon, it holds up no run.
        self._driver.execute(f"ALTER DATABASE \"{database}\" SET deadlock_timeout = '10ms'")

    def number(self, connection: Any) -> int:
        return 0 if connection.closed else connection.info.backend_pid

    def is_blocked(self, number: int) -> bool:
        question = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        return bool(self._driver.execute(question, (number,)).fetchone()[0])

    def end(self, number: int) -> None:
        """End a connection, as the server does where a client says nothing in a transaction."""
        self._driver.execute("SELECT pg_terminate_backend(%s, 5000)", (number,))

    def close(self) -> None:
        """Give the connection back."""
        self._driver.close()
        self._connection.detach()


class MariadbWaits:
    """Reads InnoDB's own account, because ``innodb_trx`` is refreshed too late."""

    has_server = True

    def __init__(self, engine: sa.Engine) -> None:
        self._connection: Any = engine.raw_connection()
        self._connection.detach()
        self._gone = engine.dialect.loaded_dbapi.Error

    def number(self, connection: Any) -> int:
        return connection.thread_id() if connection.open else 0

    def is_blocked(self, number: int) -> bool:
        cursor = self._connection.cursor()
        cursor.execute("SHOW ENGINE INNODB STATUS")
        account = str(cursor.fetchone()[2])
        for transaction in _TRANSACTION.split(account)[1:]:
            found = _THREAD.search(transaction)
            if found is not None and int(found[1]) == number:
                return "LOCK WAIT" in transaction.split(found[0])[0]
        return False

    def end(self, number: int) -> None:
        """End a connection, as the server does where a client says nothing in a transaction."""
        with suppress(self._gone):
            self._connection.cursor().execute(f"KILL {number}")

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


def waits_of(engine: sa.Engine) -> Any:
    """Choose by the database."""
    kinds: dict[str, Any] = {"postgresql": PostgresqlWaits, "mysql": MariadbWaits, "mariadb": MariadbWaits}
    made = kinds.get(engine.dialect.name)
    return NoWaits() if made is None else made(engine)
