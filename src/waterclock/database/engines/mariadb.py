"""The engine for MariaDB. Writes run at READ COMMITTED, and reads run in one snapshot.

At REPEATABLE READ, the gap locks of writes would block enqueues.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import event, exc

from waterclock.database.engines.engine_dialect import (
    BROKEN,
    FULL,
    LONGEST_LOCK_WAIT,
    LONGEST_SILENCE,
    OURS,
    READ_ONLY,
    EngineDialect,
)
from waterclock.database.engines.mariadb_packets import PACKET_TOO_LARGE, refuse_oversized
from waterclock.database.engines.pool import ping_after_idling
from waterclock.errors import UnavailableError

NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)"
"""The start of the statement in SQL, ns, to the microsecond.

NOW() would return the session's local time, in which an hour repeats in autumn.
"""

_TRANSIENT = {
    1927,  # killed
    1020,  # record has changed since last read
    1040,  # too many connections
    1053,  # server shutdown in progress
    1205,  # lock wait timeout
    1213,  # deadlock
    2002,  # cannot connect through a socket
    2003,  # cannot connect
    2006,  # server has gone away
    2013,  # lost the connection
}
_OUT_OF_TIME = {
    1205,  # lock wait timeout
    1317,  # interrupted
    1969,  # max_statement_time
}
_OPTION = 1290
_ENGINE_ERROR = 1030
_CHECK_FAILED = 4025
_REFUSALS = {
    1021: FULL,  # disk full
    1024: BROKEN,  # error reading a file
    1026: BROKEN,  # error writing a file
    _ENGINE_ERROR: BROKEN,  # error from the storage engine
    1036: READ_ONLY,  # table is read-only
    1114: FULL,  # table full
    _OPTION: "a server option forbids it",
    1792: READ_ONLY,  # transaction that only reads
    1836: READ_ONLY,  # server in read-only mode
}
_ROW_TOO_LARGE = re.compile(r"\b139\b")
_TOO_LARGE = {
    1118,  # row too large
    PACKET_TOO_LARGE,
    1301,  # result of a function larger than max_allowed_packet
}
_NO_SPACE_LEFT = re.compile(r"\b28\b")
_FORBIDDEN = {
    1044,  # denied for the database
    1045,  # denied for the user, with this password or without one
    1142,  # denied for the table
    1143,  # denied for a column
    1227,  # lacks a privilege of the server
    1370,  # denied for a routine
    1698,  # denied for the user, who must be authenticated differently
}
_NOW = sa.literal_column(NOW, sa.BigInteger)
_ESCAPED = "\0\n\r\x1a\"'\\"
_REST_OF_PACKET = 65_536  # bytes for the rest of the statement
_READS = "waterclock_reads"
_MIGRATION_LOCK = "waterclock_migrations"
_MIGRATION_LOCK_SECONDS = 60


# To the server, a transaction that has locked rows but changed none is read-only. So snapshots, which hold no locks,
# end after the same silence: distinguishing them would cost a round trip at each change.
_SILENCES = ("idle_write_transaction_timeout", "idle_readonly_transaction_timeout")
_LOCK_WAITS = ("innodb_lock_wait_timeout", "lock_wait_timeout")
_SILENCE = "SET SESSION " + ", ".join(
    (
        *(f"{name} = {LONGEST_SILENCE}" for name in _SILENCES),
        *(f"{name} = LEAST(@@GLOBAL.{name}, {LONGEST_LOCK_WAIT})" for name in _LOCK_WAITS),
    )
)
_ANY_SILENCE = "SET SESSION " + ", ".join(f"{name} = DEFAULT" for name in (*_SILENCES, *_LOCK_WAITS))
# An operator can change the default of each of these, and then our statements would be changed or refused.
_SESSION = {
    "sql_mode": "'TRADITIONAL'",
    "time_zone": "'+00:00'",
    "sql_select_limit": "18446744073709551615",
    "sql_safe_updates": "0",
    "sql_big_selects": "1",
    "completion_type": "'NO_CHAIN'",
    "default_storage_engine": "'InnoDB'",
}
_INIT = "SET " + ", ".join(f"{name}={value}" for name, value in _SESSION.items())


class MariadbDialect(EngineDialect):
    """MariaDB's `EngineDialect`."""

    name = "mysql"
    longest_pause = 0.05
    frame = None  # switching to autocommit and back costs more round trips than the commit
    commits_each = False
    outlives_errors = True

    def create_engine(self, url: sa.URL) -> sa.Engine:
        """Create an engine whose sessions are strict and in UTC, and which survives a restart of the server."""
        engine = sa.create_engine(
            url.update_query_dict({"charset": "utf8mb4"}),
            connect_args={} if "init_command" in url.query else {"init_command": _INIT},
        )
        if "init_command" in url.query:  # the caller's runs first
            event.listen(engine, "connect", _init)
        event.listen(engine, "connect", _set_up)
        event.listen(engine, "begin", _begin)
        ping_after_idling(engine)
        return engine

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """READ COMMITTED, as every session is configured: locks only the rows it touches."""
        return engine.execution_options(**{OURS: True})

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """REPEATABLE READ: the first read fixes the snapshot."""
        return engine.execution_options(**{_READS: "REPEATABLE READ"})

    def uncommitted_reader(self, engine: sa.Engine) -> sa.Engine:
        """READ UNCOMMITTED: reads the newest version of each row."""
        return engine.execution_options(**{_READS: "READ UNCOMMITTED"})

    def now(self) -> sa.ColumnElement[int]:
        """Return `NOW`, the start of the statement."""
        return _NOW

    def is_transient(self, error: exc.DBAPIError) -> bool:
        """Deadlock, a lock wait timeout, or a broken connection."""
        return error.connection_invalidated or _code(error) in _TRANSIENT

    def too_large(self, error: exc.DBAPIError) -> str | None:
        """Return the remedy for max_allowed_packet, or for a row that InnoDB cannot store."""
        code = _code(error)
        if code in _TOO_LARGE:
            return "Store large data elsewhere and its address here, or raise max_allowed_packet"
        if code == _ENGINE_ERROR and _ROW_TOO_LARGE.search(str(error.orig)):
            return "A row of InnoDB may take up to half a page. Store large data in columns of type text or bytes"
        return None

    def refusal(self, error: exc.DBAPIError) -> str | None:
        """Check for a full disk or table, a read-only server, or a failing disk."""
        reason = _REFUSALS.get(cast("int", _code(error)))
        # Only the server's text has the operating system's error, and why it is read-only.
        if reason == BROKEN and _NO_SPACE_LEFT.search(str(error.orig)):
            return FULL
        if _code(error) == _OPTION and "read-only" in str(error.orig).replace("_", "-"):
            return READ_ONLY
        return reason

    def timed_out(self, error: exc.DBAPIError) -> bool:
        """max_statement_time, a killed statement, or a lock wait timeout."""
        return _code(error) in _OUT_OF_TIME

    # InnoDB shows times of the server's machine, whatever the time zone of the session.
    long_transactions = sa.text("""
        SELECT trx.id AS process, TIMESTAMPDIFF(SECOND, trx.started, NOW()) AS seconds, list.user AS user, '' AS program
        FROM (
            SELECT trx_mysql_thread_id AS id, CONVERT_TZ(trx_started, 'SYSTEM', @@time_zone) AS started
            FROM information_schema.innodb_trx
        ) AS trx LEFT JOIN information_schema.processlist AS list ON list.id = trx.id
        WHERE trx.started < NOW() - INTERVAL :longest SECOND AND trx.id <> CONNECTION_ID()
        ORDER BY trx.started""")

    stored_size = sa.text("""
        SELECT sum(data_length + index_length), sum(data_free),
            (SELECT variable_value FROM information_schema.global_status
                WHERE variable_name = 'INNODB_HISTORY_LIST_LENGTH')
        FROM information_schema.tables WHERE table_schema = DATABASE()""")

    stored_tables = sa.text("""
        SELECT table_name, table_rows, NULL, data_length, index_length, NULL FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND (table_name LIKE 'waterclock\\_%'
            OR table_name IN (SELECT name FROM waterclock_message_tables))
        ORDER BY data_length + index_length DESC LIMIT :most""")

    def is_forbidden(self, error: exc.DBAPIError) -> bool:
        """Denied for the user, the database, a table, a column or a routine, or because of a server's privilege."""
        return _code(error) in _FORBIDDEN

    def violates_constraint(self, error: exc.DBAPIError) -> bool:
        """Return whether a constraint refused the statement; the driver reports a CHECK as an operational error."""
        return super().violates_constraint(error) or _code(error) == _CHECK_FAILED

    @contextmanager
    def lock_wait(self, connection: sa.Connection, seconds: float) -> Generator[None]:
        """Set innodb_lock_wait_timeout, which counts seconds and belongs to the session, and reset it."""
        wait = max(1, round(seconds))
        connection.exec_driver_sql(
            f"SET @waterclock_lock_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = {wait}"
        )
        back = "SET innodb_lock_wait_timeout = @waterclock_lock_wait"
        try:
            yield
        except BaseException:
            with suppress(exc.SQLAlchemyError):  # its session has ended, and the setting with it
                connection.exec_driver_sql(back)
            raise
        connection.exec_driver_sql(back)

    def largest_value(self, connection: sa.Connection) -> int:
        """Half of max_allowed_packet, because the driver writes bytes as hexadecimal digits."""
        packet = connection.execute(sa.select(sa.literal_column("@@max_allowed_packet"))).scalar_one()
        return (packet - _REST_OF_PACKET) // 2

    def size_in_statement(self, value: str | bytes) -> int:
        """Count text half, because it is sent unchanged except for escapes."""
        if isinstance(value, bytes):
            return len(value)
        return (len(value.encode()) + sum(map(value.count, _ESCAPED))) // 2

    def lock_migrations(self, connection: sa.Connection) -> None:
        """Take a named lock: DDL commits on its own here, so no transaction can hold one."""
        got = connection.execute(sa.select(sa.func.get_lock(_MIGRATION_LOCK, _MIGRATION_LOCK_SECONDS))).scalar()
        if got != 1:
            raise UnavailableError(
                f"another process has been migrating the catalogue for more than {_MIGRATION_LOCK_SECONDS} s. Check"
                " whether that process hangs, then try again"
            )

    def unlock_migrations(self, connection: sa.Connection) -> None:
        """Commit, then release the named lock, which belongs to the pooled session.

        In this order, so that the next process sees the new version and does not migrate again.
        """
        if connection.invalidated:  # its session has ended, and the lock with it
            return
        connection.exec_driver_sql("COMMIT")
        connection.execute(sa.select(sa.func.release_lock(_MIGRATION_LOCK)))


def _code(error: exc.DBAPIError) -> object:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None


def _init(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INIT)


def _set_up(connection: Any, _record: Any) -> None:
    version: str = connection.get_server_info()
    if "MariaDB" not in version:
        raise UnavailableError(
            f"the server must be MariaDB 10.6 or later, got version {version!r}. Waterclock needs features that only"
            " MariaDB has"
        )
    refuse_oversized(connection)
    # For the session: setting it for each transaction would cost four round trips.
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(_SILENCE)


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if reads := options.get(_READS):
        connection.exec_driver_sql(f"SET TRANSACTION ISOLATION LEVEL {reads}, READ ONLY")
        return
    # Set for the session, which is usually ours, so it is rarely needed.
    ours = bool(options.get(OURS))
    if connection.info.get(OURS, True) != ours:
        connection.exec_driver_sql(_SILENCE if ours else _ANY_SILENCE)
        connection.info[OURS] = ours
