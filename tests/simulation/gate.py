"""The gate: each statement and each commit of the product, on SQLAlchemy's connections and on its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from tests.simulation.scheduler import Killed, Scheduler

from waterclock.database.driver_fast_path import DirectConnection
from waterclock.database.wrapping import wrapped

_FREE = re.compile(
    r"SET |PRAGMA|SELECT set_config|SELECT @@|BEGIN$|ROLLBACK|SAVEPOINT|RELEASE|SHOW "
    r"|SELECT (?:(?!FROM).)*FROM (?:pg_|information_schema|pragma_)",
    re.IGNORECASE | re.DOTALL,
)
"""What says something to a connection, or looks at a schema: nothing depends on when."""

_NAMES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM|FROM)\s+[\"`]?(\w+)", re.IGNORECASE)

_CHANGE = re.compile(r"INSERT|UPDATE|DELETE", re.IGNORECASE)

_IDLE = 0  # psycopg's TransactionStatus.IDLE

_LOST = "the answer to COMMIT got lost"

Rewrite = Callable[[str], str]


def label_of(text: str) -> str:
    """Say in some words what a statement does."""
    verb = text.split(None, 1)[0].upper()
    found = _NAMES.search(text)
    how = " SKIP LOCKED" if "SKIP LOCKED" in text else " FOR UPDATE" if "FOR UPDATE" in text else ""
    return f"{verb} {found[1]}{how}" if found else " ".join(text.split()[:2])


@contextmanager
def gates(scheduler: Scheduler, engine: sa.Engine, rewrite: Rewrite = str) -> Generator[None]:
    """Let statements and commits pass the scheduler's gate until the block ends; ``rewrite`` may change them first."""
    dialect = type(engine.dialect)
    with ExitStack() as patched:
        patched.enter_context(patch.object(DirectConnection, "_translated", _direct(scheduler, rewrite)))
        patched.enter_context(patch.object(DirectConnection, "together", new=False))
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            execute = _executing(scheduler, getattr(dialect, name), rewrite)
            patched.enter_context(patch.object(dialect, name, execute))
        patched.enter_context(patch.object(dialect, "do_commit", _committing(scheduler, dialect.do_commit)))
        patched.enter_context(patch.object(dialect, "is_disconnect", _disconnecting(dialect.is_disconnect)))
        yield


def _direct(scheduler: Scheduler, rewrite: Rewrite) -> Callable[..., Any]:
    original = DirectConnection._translated

    def translated(direct: DirectConnection, execute: Callable[..., Any], *given: Any) -> Any:
        text = next(one for one in given if isinstance(one, str))
        changed = rewrite(text)
        given = tuple(changed if one is text else one for one in given)
        connection = direct._connection

        def lost() -> Exception:
            return wrapped(direct.dialect.loaded_dbapi.OperationalError(_LOST), direct.dialect, changed, broken=True)

        def run() -> Any:
            if changed == "COMMIT" and scheduler.leaves_commit(connection, lambda: original(direct, execute, *given)):
                raise lost()
            found = original(direct, execute, *given)
            _note_writer(scheduler, changed, connection)
            if _has_committed(changed, connection) and _loses_answer(scheduler):
                with suppress(Exception):
                    connection.close()
                raise lost()
            return found

        if connection in scheduler.left:
            raise lost()
        return _pass(scheduler, changed, connection, run)

    return translated


def _executing(scheduler: Scheduler, original: Callable[..., Any], rewrite: Rewrite) -> Callable[..., Any]:
    def execute(dialect: Any, cursor: Any, statement: str, *rest: Any, **named: Any) -> Any:
        text = rewrite(statement)

        def run() -> Any:
            found = original(dialect, cursor, text, *rest, **named)
            _note_writer(scheduler, text, cursor.connection)
            return found

        return _pass(scheduler, text, cursor.connection, run)

    return execute


def _committing(scheduler: Scheduler, original: Callable[..., Any]) -> Callable[..., Any]:
    def do_commit(dialect: Any, connection: Any) -> None:
        driver = getattr(connection, "driver_connection", connection)

        def lost() -> Exception:
            error = dialect.loaded_dbapi.OperationalError
            return error(2013, _LOST) if dialect.name in ("mysql", "mariadb") else error(_LOST)

        def run() -> None:
            if scheduler.leaves_commit(driver, lambda: original(dialect, driver)):
                raise lost()
            original(dialect, connection)
            if _loses_answer(scheduler):
                with suppress(Exception):
                    driver.close()
                raise lost()

        _pass(scheduler, "COMMIT", driver, run)

    return do_commit


def _disconnecting(original: Callable[..., bool]) -> Callable[..., bool]:
    def is_disconnect(dialect: Any, error: Exception, *rest: Any) -> bool:
        return _LOST in str(error) or original(dialect, error, *rest)

    return is_disconnect


def _has_committed(text: str, connection: Any) -> bool:
    """Say that a statement has ended a transaction, or was one by itself."""
    by_itself = getattr(connection, "autocommit", False) is True and _CHANGE.search(text) is not None
    return text == "COMMIT" or (by_itself and connection.info.transaction_status == _IDLE)


def _pass(scheduler: Scheduler, text: str, connection: Any, run: Callable[[], Any]) -> Any:
    actor = scheduler.actor()
    if actor is None:
        return run()
    if actor.dead and not text.startswith(("ROLLBACK", "SET", "PRAGMA")):
        raise Killed
    if _FREE.match(text) and "IMMEDIATE" not in text:
        return run()
    scheduler.gate(label_of(text), connection, _may_go(scheduler, text, connection))
    if "SKIP LOCKED" in text and any(one.label == "COMMIT" and one.state == "ready" for one in scheduler.actors):
        scheduler.seen["others' locks"] += 1  # what another one has locked, and is about to commit, is skipped
    try:
        return run()
    finally:
        scheduler.passed()


def _may_go(scheduler: Scheduler, text: str, connection: Any) -> Callable[[], bool] | None:
    """Say what a statement has to wait for at its gate, if anything."""
    if _begins_to_write(scheduler, text, connection):
        return _may_begin(scheduler)
    if text.endswith("UPDATE") and "FROM waterclock_topics" in text:
        # What every append does first. Of two that wait for the topic's row PostgreSQL lets either have it, as they
        # find that it has changed; so the second one waits here until the first has it.
        label = label_of(text)
        return lambda: not any(one.is_blocked and one.label == label for one in scheduler.actors)
    return None


def _begins_to_write(scheduler: Scheduler, text: str, connection: Any) -> bool:
    """Say whether SQLite gives a connection its only lock for writing: plain SQL takes it with its first change."""
    has_it = scheduler.has_server or scheduler.writer is connection
    return "IMMEDIATE" in text or (not has_it and _CHANGE.match(text) is not None)


def _may_begin(scheduler: Scheduler) -> Callable[[], bool]:
    def may_begin() -> bool:
        writer = scheduler.writer
        try:
            return writer is None or not writer.in_transaction
        except Exception:  # noqa: BLE001  # it was closed
            return True

    return may_begin


def _note_writer(scheduler: Scheduler, text: str, connection: Any) -> None:
    if _begins_to_write(scheduler, text, connection):
        scheduler.writer = connection


def _loses_answer(scheduler: Scheduler) -> bool:
    actor = scheduler.actor()
    if actor is None or not actor.loses_answer or not scheduler.has_server:
        return False
    for one in scheduler.actors:
        if one.process == actor.process:
            one.loses_answer = False
    scheduler.seen["answer lost"] += 1
    return True
