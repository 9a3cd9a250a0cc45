"""Runs the periodic tasks of all topics and message tables of a database. Readers and writers do not wait for tasks.

Each task of each topic and table has a row in the catalogue. A runner leases the row, does the task, and writes its
outcome. So only one of many runners does each task, runners do not wait for each other, and a dead runner delays a task
only until its lease ends. All tasks are safe to run concurrently; the lease only saves work. If a task fails, the row
records the reason, and the other tasks continue.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.pickling import refuse_pickling
from waterclock._support.quoting import in_a_line, said_of
from waterclock._support.urls import redacted
from waterclock.connection import Database
from waterclock.database.schema.upkeep_catalogue import Kind, upkeep
from waterclock.errors import NotFoundError, WaterclockError
from waterclock.tables.catalogue.context import table_dialect
from waterclock.tables.messages.upkeep.reconcile import heal_all
from waterclock.time import format_duration

LEASE = 600_000_000_000  # how long a silent runner keeps others from its task, ns

_MINUTE = 60_000_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _RegularTask:
    """A task for every topic or table: its interval, ns, and a function that returns how many items it processed."""

    every: int
    run: Callable[[Database, str], int]


_TASKS: Mapping[Kind, Mapping[str, _RegularTask]] = {
    "topic": {
        "seal": _RegularTask(_MINUTE, lambda database, name: database.topic(name).seal()),
        "compact": _RegularTask(60 * _MINUTE, lambda database, name: database.topic(name).compact()),
    },
    "table": {
        "tick": _RegularTask(_MINUTE, lambda database, name: database.table(name).tick()),
        "release": _RegularTask(_MINUTE, lambda database, name: heal_all(database.table(name).context)),
        "purge": _RegularTask(_MINUTE, lambda database, name: database.table(name).purge()),
    },
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task of upkeep of one topic or table. Times in ns.

    Attributes
    ----------
    kind, name
        ``"topic"`` or ``"table"``, and its name.
    task
        ``seal`` closes the open ledger if that is due, enforces retention and writes files; ``compact`` joins them.
        ``tick`` puts due messages of schedules, ``release`` releases groups of dead consumers, ``purge`` deletes
        messages that were acked or expired long enough ago.
    ran_at, took
        When it ended last, and how long it took; None: it never ran.
    did
        How many ledgers, files, messages or groups it processed; None: it failed, or never ran.
    error
        Why it failed last; None: it did not fail.
    due_at
        When it is due; None: at once.
    owner
        The runner that is running it; None: none.
    """

    kind: Kind
    name: str
    task: str
    ran_at: int | None = None
    took: int | None = None
    did: int | None = None
    error: str | None = None
    due_at: int | None = None
    owner: str | None = None

    def __str__(self) -> str:
        what = f"{self.task} of {self.kind} {self.name!r}"
        if self.error is not None:
            return f"{what} failed: {self.error}"
        return f"{what}: {self.did}, in {format_duration((self.took or 0) // 1_000_000 * 1_000_000)}"


class Upkeep:
    """Runs the upkeep of a database. Safe to run concurrently in several processes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._backend = database.backend
        self._owner = f"{socket.gethostname()}:{os.getpid()}/{self._backend.session:x}"
        self._stopped = threading.Event()

    def status(self) -> list[Task]:
        """Return when each task of each topic and table ran last, when it is due, and why it failed."""
        with self._backend.snapshot() as connection:
            rows = {(row.kind, row.name, row.task): row for row in connection.execute(sa.select(upkeep))}
            now = self._backend.now(connection)
        return [_seen(kind, name, task, rows.get((kind, name, task)), now) for kind, name, task in self._all()]

    def run(self, *, only_due: bool = False) -> Iterator[Task]:
        """Run all tasks that no other runner has leased; yield each when it is done or has failed.

        Parameters
        ----------
        only_due
            Only those that are due.
        """
        known, now = self.status(), self._backend.now()
        self._forget_others(known)
        for one in known:
            if self._stopped.is_set():
                return
            is_due = one.owner is None and (not only_due or one.due_at is None or one.due_at <= now)
            every = _TASKS[one.kind][one.task].every if only_due else 0
            if is_due and self._take(one, every) and (done := self._do(one.kind, one.name, one.task)):
                yield done

    def run_for_ever(self, every: int, tell: Callable[[Task], object]) -> None:
        """Run due tasks repeatedly, with a pause in between (ns), until stopped; report each task.

        It waits for an unavailable database.
        """
        while not self._stopped.is_set():
            try:
                for done in self.run(only_due=True):
                    tell(done)
            except WaterclockError as error:
                _log.warning(
                    "upkeep failed, retrying in %s: %s",
                    format_duration(every),
                    in_a_line(str(error)),
                    extra=event("upkeep_delayed"),
                )
            moments.wait(self._stopped, every / 1_000_000_000)

    def stop(self) -> None:
        """Start no further task. Safe to call from any thread or signal handler."""
        self._stopped.set()

    def _all(self) -> Iterator[tuple[Kind, str, str]]:
        for name in self._database.topics():
            for task in _TASKS["topic"]:
                yield "topic", name, task
        for name in self._database.tables():
            for task in _TASKS["table"]:
                yield "table", name, task

    def _do(self, kind: Kind, name: str, task: str) -> Task | None:
        began = moments.monotonic_ns()
        did: int | None = None
        error: str | None = None
        try:
            did = int(_TASKS[kind][task].run(self._database, name))
        except NotFoundError as gone:
            if name not in (self._database.topics() if kind == "topic" else self._database.tables()):
                return None  # it was removed meanwhile
            error = redacted(gone)
        except WaterclockError as failure:
            error = redacted(failure)
        except Exception as failure:  # noqa: BLE001  # a fault in one task stops no other
            _log.exception(
                "%s of %s %r failed", task, kind, name, extra=event("upkeep_failed", kind=kind, name=name, task=task)
            )
            error = redacted(in_a_line(said_of(failure)))
        took = moments.monotonic_ns() - began
        done = {"owner": None, "lease_until": None, "took": took, "did": did, "error": error}
        self._backend.transact(
            lambda own: own.execute(
                sa.update(upkeep)
                .where(*_this(kind, name, task), upkeep.c.owner == self._owner)
                .values(**done, ran_at=self._backend.now_sql())
            )
        )
        return Task(kind, name, task, took=took, did=did, error=error)

    def _take(self, one: Task, every: int) -> bool:
        """Lease a task; return False if another runner has it, or has just done it."""
        now = self._backend.now_sql()
        key = {"kind": one.kind, "name": one.name, "task": one.task}

        def take_turn(own: sa.Connection) -> bool:
            table_dialect(self._backend).insert_missing(own, upkeep, [key])
            taken = own.execute(
                sa.update(upkeep)
                .where(
                    *_this(one.kind, one.name, one.task),
                    sa.func.coalesce(upkeep.c.lease_until, 0) <= now,
                    sa.func.coalesce(upkeep.c.ran_at, 0) <= now - every,
                )
                .values(owner=self._owner, lease_until=now + LEASE)
            )
            return taken.rowcount == 1

        return self._backend.transact(take_turn)

    def _forget_others(self, known: Sequence[Task]) -> None:
        """Delete the rows of topics and tables that were removed."""
        with self._backend.snapshot() as connection:
            noted = connection.execute(sa.select(upkeep.c.kind, upkeep.c.name, upkeep.c.task)).all()
        for row in {tuple(each) for each in noted} - {(one.kind, one.name, one.task) for one in known}:
            self._backend.transact(lambda own, row=row: own.execute(sa.delete(upkeep).where(*_this(*row))))

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Pickle the database, and create it in the other process")


def _seen(kind: Kind, name: str, task: str, row: Any, now: int) -> Task:
    if row is None:
        return Task(kind, name, task)
    due_at = None if row.ran_at is None else row.ran_at + _TASKS[kind][task].every
    is_taken = row.lease_until is not None and row.lease_until > now
    return Task(kind, name, task, row.ran_at, row.took, row.did, row.error, due_at, row.owner if is_taken else None)


def _this(kind: str, name: str, task: str) -> tuple[sa.ColumnElement[bool], ...]:
    return upkeep.c.kind == kind, upkeep.c.name == name, upkeep.c.task == task
