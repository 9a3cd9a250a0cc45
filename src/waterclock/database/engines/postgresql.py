"""The engine for PostgreSQL. Writes run at READ COMMITTED, and reads run in one REPEATABLE READ snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import methodcaller
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from waterclock._support.quoting import quoted
from waterclock.database.driver_fast_path import Frame
from waterclock.database.engines.engine_dialect import (
    BROKEN,
    FULL,
    LONGEST_LOCK_WAIT,
    LONGEST_SILENCE,
    OURS,
    READ_ONLY,
    EngineDialect,
)
from waterclock.database.engines.pool import ping_after_idling
from waterclock.database.engines.postgresql_sign_in import state_of_refusal
from waterclock.database.sql_connection import SqlConnection
from waterclock.database.statement_size import largest_set
from waterclock.errors import UnavailableError

# The driver is not installed if only other databases are used.
_IDLE = 0  # psycopg's TransactionStatus.IDLE
_NOT_TOGETHER = 0  # its PipelineStatus.OFF
_MIGRATION_LOCK = 0x57A7E2C10C4  # any number, the same for every Waterclock
_MIGRATION_LOCK_SECONDS = 60
_INDEXED = "waterclock_indexed"
# Planning costs as much as a claim, so plans are cached. But a queue that was empty when its plan was made has a
# million rows a moment later, so no cached plan may scan or sort a table because it was small. Nor may a plan be
# JIT-compiled or run in parallel: if an estimate is far off, that takes a hundred times as long as the statement.
_INDEXES_ONLY: Mapping[str, str] = {
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "'off'"),
    "max_parallel_workers_per_gather": "'0'",
}
_KEEP_ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Detect a vanished server within a minute; in seconds, and a count."""
_LIMIT = f"least(nullif(current_setting('lock_timeout')::interval, '0'), '{LONGEST_LOCK_WAIT}s')"
_PATIENCE: dict[str, str] = {
    "idle_in_transaction_session_timeout": f"'{LONGEST_SILENCE}s'",
    "lock_timeout": f"(1000 * extract(epoch FROM {_LIMIT}))::int::text",  # ms
}
"""How long the server waits for us, and how long we wait for others; less if its operator has set less."""
_ANY_PLAN = f"SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name IN {(*_INDEXES_ONLY,)}"  # noqa: S608  # ours
_DIRECT = {
    **_INDEXES_ONLY,
    # Statements of groups take long to plan and little to run: planned each time, an ack took a third longer.
    "plan_cache_mode": "'force_generic_plan'",
}
_PREPARE_AFTER = 1
"""Runs of a statement on a connection after which the driver prepares it: to plan a claim takes twice as long as to
run it, and to prepare it takes a round trip.
"""
_SESSION = {
    # Autocommit statements run at the session's isolation level, whose default a server may change.
    "default_transaction_isolation": "'read committed'",
    # With quotes, SQLAlchemy does not recognise the types of columns that it reflects.
    "quote_all_identifiers": "'off'",
}
# Otherwise an autocommit statement that waits for a lock would continue after its process has died, and claim messages
# for no consumer. Servers before 14, and those on some systems, cannot check.
_LOOK_FOR_CLIENT = (
    "CASE WHEN current_setting('client_connection_check_interval', true) IS NOT NULL AND version() LIKE '%linux%'"
    " THEN set_config('client_connection_check_interval', '1s', false) END"
)
_TRANSIENT = {
    "25P03",  # idle_in_transaction_session_timeout
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
}
_OUT_OF_TIME = {
    "55P03",  # lock_not_available
    "57014",  # query_canceled
}
_FORBIDDEN = {
    "28000",  # invalid_authorization_specification
    "28P01",  # invalid_password
    "42501",  # insufficient_privilege
}
# date_part, because EXTRACT returns a numeric, whose arithmetic takes five times as long. Exact to the microsecond.
_MICROSECONDS = sa.func.date_part(
    sa.literal_column("'epoch'"), sa.func.statement_timestamp(), type_=sa.Double
) * sa.literal_column("1000000", sa.Integer)
_NOW = sa.cast(_MICROSECONDS, sa.BigInteger) * sa.literal_column("1000", sa.BigInteger)
_UNKNOWN_STATEMENT = "26000"  # invalid_sql_statement_name
_POOLED = "a pooler uses another session for each transaction; append ?prepare_threshold=none to the URL"
_LIMIT_EXCEEDED = "54000"  # program_limit_exceeded: a row of an index, or a text longer than 1 GB
_INTERNAL_ERROR = "XX000"
_ALLOCATION = "invalid memory alloc request size"
_LARGEST_MESSAGE = (1 << 30) - (1 << 20)
"""Bytes of values that the server takes with a statement, less their descriptions: it closes the connection of a client
that sends more than 1 GB.
"""
_REFUSALS = {
    "25006": READ_ONLY,  # read_only_sql_transaction
    "53100": FULL,  # disk_full
    _UNKNOWN_STATEMENT: _POOLED,  # it was prepared in another session
    "42P05": _POOLED,  # duplicate_prepared_statement
    "58030": BROKEN,  # io_error
}


def is_pooled(url: sa.URL) -> bool:
    """Return whether a URL says that each transaction may get another session."""
    return url.query.get("prepare_threshold") == "none"


class PostgresqlDialect(EngineDialect):
    """PostgreSQL's `EngineDialect`."""

    name = "postgresql"
    longest_pause = 0.05
    commits_each = True
    # psycopg counts a statement as prepared even if the server skipped it because an earlier one failed.
    outlives_errors = False

    def __init__(self) -> None:
        self.frame = _framed("BEGIN")

    def create_engine(self, url: sa.URL) -> sa.Engine:
        """Create an engine that survives a restart of the server."""
        options: dict[str, int | None] = {name: value for name, value in _KEEP_ALIVE.items() if name not in url.query}
        pooled = is_pooled(url)
        if pooled:  # a URL has strings, and the driver takes None
            options["prepare_threshold"] = None
            url = url.difference_update_query(["prepare_threshold"])
            # Session settings would leak to the pooler's next client.
            self.frame, self.commits_each = (
                _framed("BEGIN ISOLATION LEVEL READ COMMITTED", _setting(_DIRECT | _PATIENCE, for_session=False)),
                False,
            )
        # The environment, the role or the database may set another encoding. SQLAlchemy converts hstore itself, also on
        # callers' connections, whose driver may not know the type; looking it up would cost each engine a round trip.
        engine = sa.create_engine(url, connect_args={**options, "client_encoding": "utf8"}, use_native_hstore=False)
        event.listen(engine, "connect", _check_encoding)
        if not pooled:
            event.listen(engine, "connect", _set_up)
        event.listen(engine, "begin", _begin_pooled if pooled else _begin)
        event.listen(engine, "handle_error", _discard_stale)
        ping_after_idling(engine)
        return engine

    def writer(self, engine: sa.Engine) -> sa.Engine:
        """READ COMMITTED: a claim that waited for a row sees the other transaction's commit instead of failing."""
        return engine.execution_options(isolation_level="READ COMMITTED", **{OURS: True})

    def set_up_direct(self, connection: Any) -> None:
        """Cache plans, but only those that stay valid."""
        connection.autocommit = True
        if connection.prepare_threshold is not None:
            connection.prepare_threshold = _PREPARE_AFTER
        if self.commits_each:  # else each transaction does
            connection.execute(f"{_setting(_DIRECT | _PATIENCE, for_session=True)}, {_LOOK_FOR_CLIENT}")
        # All with one cursor: the driver's method makes a new one each time, a fifth of its processor time.
        connection.execute = connection.cursor().execute

    def is_whole(self, connection: Any) -> bool:
        """Ask the driver, which knows about transactions, running statements and lost connections."""
        info = connection.info
        return info.transaction_status == _IDLE and info.pipeline_status == _NOT_TOGETHER

    def indexed(self, engine: sa.Engine) -> sa.Engine:
        """Force plans to use indexes, whatever the planner's statistics."""
        return engine.execution_options(**{_INDEXED: True})

    def reader(self, engine: sa.Engine) -> sa.Engine:
        """REPEATABLE READ is one snapshot in PostgreSQL."""
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def now(self) -> sa.ColumnElement[int]:
        """Return the start of the statement: now() is the transaction's, and clock_timestamp() is volatile."""
        return _NOW

    def is_transient(self, error: exc.DBAPIError) -> bool:
        """Deadlock, serialization, a lock that is not available, or a broken connection."""
        state = getattr(error.orig, "sqlstate", None)
        # Without a server there is no SQLSTATE, and the same is true of errors that the driver raises itself.
        unreachable = isinstance(error, exc.OperationalError) and state is None and error.statement is None
        return error.connection_invalidated or unreachable or state in _TRANSIENT or self.has_stale_plan(error)

    def has_stale_plan(self, error: exc.DBAPIError) -> bool:
        """Check which function of the server failed, because its text may be translated."""
        return _has_stale_plan(error.orig)

    def too_large(self, error: exc.DBAPIError) -> str | None:
        """program_limit_exceeded, more memory than one value may take, or a message after which the server hung up."""
        state = getattr(error.orig, "sqlstate", None)
        if state == _LIMIT_EXCEEDED:
            return "Store large data elsewhere and its address here"
        # The server has no SQLSTATE for it, and does not translate its text.
        if (state == _INTERNAL_ERROR and _ALLOCATION in str(error.orig)) or (
            error.connection_invalidated and largest_set(error.params) > _LARGEST_MESSAGE
        ):
            return f"PostgreSQL takes at most {_LARGEST_MESSAGE} bytes. Store large data elsewhere and its address here"
        return None

    def refusal(self, error: exc.DBAPIError) -> str | None:
        """disk_full, a read-only server, or a failing disk."""
        return _REFUSALS.get(getattr(error.orig, "sqlstate", None) or "")

    def timed_out(self, error: exc.DBAPIError) -> bool:
        """query_canceled, which statement_timeout raises, or lock_not_available, which lock_timeout does."""
        return getattr(error.orig, "sqlstate", None) in _OUT_OF_TIME

    # The times of other roles' processes are NULL to a role without the privileges of pg_read_all_stats. Processes of
    # the server have no role. Parallel workers share the snapshot of their leader.
    long_transactions = sa.text("""
        SELECT process, CAST(extract(epoch FROM clock_timestamp() - began) AS BIGINT) AS seconds, "user", program
        FROM (
            SELECT pid AS process, xact_start AS began, usename AS "user", application_name AS program
            FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename IS NOT NULL
                AND (query = '<insufficient privilege>' OR backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
                AND coalesce(backend_type, '') <> 'parallel worker'
            UNION ALL SELECT 0, prepared, owner, gid FROM pg_prepared_xacts WHERE database = current_database()
        ) AS held
        WHERE began IS NULL OR began < clock_timestamp() - make_interval(secs => :longest)
        ORDER BY began""")

    stored_size = sa.text("SELECT pg_database_size(current_database()), NULL, NULL")

    # Partitioned tables first: the catalogue does not count their pages.
    stored_tables = sa.text("""
        WITH ours AS (
            SELECT class.oid, class.relname FROM pg_class AS class
                JOIN pg_namespace AS space ON space.oid = class.relnamespace
            WHERE space.nspname = current_schema() AND class.relkind IN ('r', 'p') AND NOT class.relispartition
                AND (starts_with(class.relname, 'waterclock_')
                    OR class.relname IN (SELECT name FROM waterclock_message_tables))
            ORDER BY class.relkind = 'p' DESC, class.relpages DESC LIMIT :most
        )
        SELECT ours.relname, sum(stat.n_live_tup), sum(stat.n_dead_tup), sum(pg_table_size(stat.relid)),
            sum(pg_indexes_size(stat.relid)),
            CAST(1000000000 * extract(epoch FROM max(greatest(stat.last_vacuum, stat.last_autovacuum))) AS BIGINT)
        FROM ours LEFT JOIN LATERAL pg_partition_tree(ours.oid) AS part ON true
            JOIN pg_stat_user_tables AS stat ON stat.relid = coalesce(part.relid, ours.oid)
        GROUP BY ours.relname""")

    def is_forbidden(self, error: exc.DBAPIError) -> bool:
        """insufficient_privilege, or a failed login."""
        state = getattr(error.orig, "sqlstate", None)
        if state is None and isinstance(error, exc.OperationalError) and error.statement is None:
            state = state_of_refusal(error.orig)
        return state in _FORBIDDEN

    def keeps_to_a_snapshot(self, connection: SqlConnection) -> bool:
        """Check whether the transaction is REPEATABLE READ or SERIALIZABLE."""
        level = sa.select(sa.func.current_setting("transaction_isolation"))
        return connection.execute(level).scalar() in ("repeatable read", "serializable")

    def lock_wait(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[object]:
        """Set lock_timeout until the transaction ends."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {max(1, round(seconds * 1000))}")
        return nullcontext()

    def largest_value(self, connection: sa.Connection) -> int:  # noqa: ARG002  # others have to ask
        """Return a gigabyte, less the rest of the row."""
        return _LARGEST_MESSAGE

    def lock_migrations(self, connection: sa.Connection) -> None:
        """Take an advisory lock that ends with the transaction, with a longer timeout for the migration."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_MIGRATION_LOCK_SECONDS}s'")
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))


def _framed(*begin: str) -> Frame:
    return Frame(begin, "COMMIT", "ROLLBACK", "", "", _run, methodcaller("pipeline"))


def _setting(values: Mapping[str, str], *, for_session: bool) -> str:
    """Return the SQL that sets these to the values of SQL expressions, for the session or the transaction."""
    local = "false" if for_session else "true"
    return "SELECT " + ", ".join(f"set_config('{name}', {value}, {local})" for name, value in values.items())


def _run(connection: Any, text: str) -> Any:
    return connection.execute(text, prepare=False)


def _check_encoding(connection: Any, _record: Any) -> None:
    encoding: str = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise UnavailableError(
            f"cannot use database {quoted(connection.info.dbname)}: its encoding {encoding} cannot store all of"
            " Unicode. Create a database with ENCODING 'UTF8'"
        )


def _set_up(connection: Any, _record: Any) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(_setting(_SESSION, for_session=True))
    connection.autocommit = False


def _has_stale_plan(error: Any) -> bool:
    # "cached plan must not change result type"
    diagnosis = getattr(error, "diag", None)
    return getattr(diagnosis, "source_function", None) == "RevalidateCachedQuery"


def _discard_stale(context: Any) -> None:
    """Replace a pooled connection whose prepared statements are stale, or differ from psycopg's record of them."""
    error = context.original_exception
    if _has_stale_plan(error) or getattr(error, "sqlstate", None) == _UNKNOWN_STATEMENT:
        context.is_disconnect = True


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    indexed = bool(options.get(_INDEXED))
    if bool(connection.info.get(_INDEXED)) != indexed:
        # Outside the transaction, to survive a rollback; for the session, so it is rarely needed.
        driver: Any = connection.connection.driver_connection
        driver.autocommit = True
        connection.exec_driver_sql(_setting(_INDEXES_ONLY, for_session=True) if indexed else _ANY_PLAN)
        driver.autocommit = False
        connection.info[_INDEXED] = indexed
    if options.get(OURS):
        connection.exec_driver_sql(_setting(_PATIENCE, for_session=False))


def _begin_pooled(connection: sa.Connection) -> None:
    """Set the same as `_begin`, for the transaction only: the session is another client's next."""
    options = connection.get_execution_options()
    if options.get(_INDEXED):
        connection.exec_driver_sql(_setting(_INDEXES_ONLY, for_session=False))
    if options.get(OURS):
        connection.exec_driver_sql(_setting(_PATIENCE, for_session=False))
