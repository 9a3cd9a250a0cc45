"""Random steps of producers, consumers, operators and plain SQL in a table whose keys take turns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any

import sqlalchemy as sa
from tests.support.clocks import MovableClock
from tests.tables.keys.key_rows import contradictions

from waterclock.database.schema.table_catalogue import message_keys
from waterclock.errors import LeaseLostError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.schema import MESSAGE_KEY

SECOND = 1_000_000_000
KEYS = ("a", "b", "c", None)
DEAD = {"max_attempts": 3, "on_exhausted": "dead_letter", "dead_letter": "orders_dead"}
OPTIONS: tuple[dict[str, Any], ...] = (
    {"fair_by": "customer"},
    {"limit": {"customer": 2}},
    {"rate": {"customer": "20/s"}},
    {"limit": {"customer": 1}, "rate": {"customer": "1/s"}},
    {"limit": {"customer": 3}, "weights": {"a": 2}},
    {"fair_by": "customer", "limit": {"customer": 3}, "weights": {"a": 2}},
    {"fair_by": "customer", "rate": {"customer": "1/s"}, "weights": {"a": 3}},
)


def reset(tables: Iterable[MessageTable]) -> None:
    """Delete the messages and rows of a table, and let each process forget what it knows about them."""
    for nth, table in enumerate(tables):
        context = table.context
        if not nth:
            assert context.dead is not None
            with context.backend.engine.begin() as connection:
                for rows in (context.rows, context.dead.rows, message_keys):
                    connection.execute(sa.delete(rows))
        for field in fields(context):
            if field.default_factory is not MISSING:
                getattr(context, field.name).__init__()


class Caller:
    """A caller's transaction, with the ids of messages that it has locked."""

    def __init__(self, table: MessageTable) -> None:
        self.connection = table.context.backend.engine.connect()
        self.ids: set[Any] = set()

    def end(self, *, commits: bool) -> None:
        if commits:
            self.connection.commit()
        self.connection.close()


class RandomRun:
    """Takes random steps; after each of them, the rows of all keys must be right about the messages."""

    def __init__(self, tables: Sequence[MessageTable], clock: MovableClock, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # no secret
        self._tables, self._clock = tables, clock
        self._context = self._tables[0].context
        self._rows = self._context.rows
        self._callers: list[Caller] = []
        self._most_callers = 0 if self._context.sql.one_writer else 2
        self._held: list[tuple[MessageTable, Delivery]] = []
        self._moves_keys = self._random.random() < 0.5  # so that a key may exceed its limit
        # With bounds, a claim notices that the clock was set back after up to half a minute.
        self._sets_back = self._random.random() < 0.3 and not self._context.sql.is_bounded
        self.log: list[str] = []
        self._steps: list[tuple[Callable[[], None], int]] = [
            (self._put, 6),
            (self._receive, 8),
            (self._receive_selected, 1),
            (self._finish, 6),
            (self._extend, 2),
            (self._move_clock, 4),
            (self._operate, 3),
            (self._change_by_sql, 4),
            (self._redrive, 1),
            (self._purge, 1),
            (self._undo_ack, 1),
            (self._roll_back, 1),
            (self._call, 5 if self._most_callers else 0),
            (self._drain, 1),
        ]

    def take(self, count: int) -> None:
        """Take so many steps, and then deliver all messages."""
        steps, weights = zip(*self._steps, strict=True)
        for step in self._random.choices(steps, weights, k=count):
            self.log.append(step.__name__)
            step()
            self._check()
        self._deliver_all()

    def close(self) -> None:
        for caller in self._callers:
            caller.end(commits=False)

    def _note(self, *what: object) -> None:
        self.log[-1] += f" {what}"

    def _check(self) -> None:
        found = contradictions([table.context for table in self._tables], self._clock.now)
        assert not found, "\n".join([*self.log, *found])

    # Messages

    def _row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"payload": "x", "customer": self._random.choice(KEYS)}
        row["priority"] = self._random.choice((0, 0, 0, 1, 2, 3))
        if self._random.random() < 0.4:
            row["at"] = self._a_time()
        if self._random.random() < 0.1:
            row["expires_at"] = max(self._clock.now, row.get("at", 0)) + 60 * SECOND
        return row

    def _a_time(self) -> int:
        return self._clock.now + self._random.choice((-100, -10, -1, 0, 1, 5, 30, 31, 100, 1000)) * SECOND

    def _new(self) -> list[dict[str, Any]]:
        return [self._row() for _ in range(self._random.choice((1, 1, 2, 5)))]

    def _unlocked(self) -> list[Any]:
        locked = set(chain.from_iterable(caller.ids for caller in self._callers))
        found = sa.select(self._rows.c.id).where(self._rows.c.time_acked.is_(None)).order_by(self._rows.c.seq)
        with self._context.backend.engine.connect() as connection:
            return [one for one in connection.execute(found).scalars() if one not in locked]

    def _some(self) -> list[Any]:
        ids = self._unlocked()
        return self._random.sample(ids, min(len(ids), self._random.choice((1, 1, 2))))

    @property
    def _table(self) -> MessageTable:
        return self._random.choice(self._tables)

    # Steps

    def _put(self) -> None:
        rows = self._new()
        self._note([(row["customer"], row["priority"], row.get("at", 0)) for row in rows])
        self._table.put_many(rows)

    def _receive(self, **more: Any) -> None:
        table, before = self._table, self._in_flight()
        deliveries = table.receive(self._random.choice((1, 1, 2, 5, 20)), **more)
        self._note([one.id for one in deliveries])
        self._held += [(table, one) for one in deliveries]
        limit = self._context.options.limit_of_a_key
        if limit is None:
            return
        for key, count in self._in_flight().items():
            assert not key or count <= max(limit, before[key]), "\n".join([*self.log, f"{key}: {count}"])

    def _receive_selected(self) -> None:
        self._receive(where=self._random.choice(("priority = 0", "id > 3")))

    def _in_flight(self) -> Counter[str]:
        rows = self._rows
        found = sa.select(rows.c[MESSAGE_KEY]).where(rows.c.time_acked.is_(None), rows.c.claim_id.is_not(None))
        with self._context.backend.engine.connect() as connection:
            return Counter(connection.execute(found).scalars())

    def _a_held(self) -> tuple[MessageTable, list[Delivery]]:
        """Return some deliveries of a process that no caller's transaction has locked."""
        locked = set(chain.from_iterable(caller.ids for caller in self._callers))
        free = [one for one in self._held if one[1].id not in locked]
        if not free:
            return self._table, []
        table, first = self._random.choice(free)
        own = [one for of, one in free if of is table and one is not first]
        return table, [first, *self._random.sample(own, min(len(own), self._random.choice((0, 0, 1, 4))))]

    def _finish(self) -> None:
        table, some = self._a_held()
        self._held = [one for one in self._held if one[1] not in some]
        how = self._random.choice(("ack", "ack", "nack", "later", "retry", "give_back"))
        self._note(how, [one.id for one in some])
        try:
            if how == "ack":
                table.ack(some)
            elif how == "nack":
                table.nack(some)
            elif how == "later":
                table.nack(some, delay=f"{self._random.choice((0, 1, 10, 30, 60, 600))}s")
            elif how == "retry":
                for one in some:
                    one.nack(error="failed")
            else:
                table.give_back(some)
        except LeaseLostError:
            self._note("lost")

    def _extend(self) -> None:
        table, some = self._a_held()
        duration = self._random.choice((1, 5, 30, 60, 600))
        self._note([one.id for one in some], duration)
        table.extend(some, f"{duration}s")

    def _move_clock(self) -> None:
        by = self._random.choice((0.001, 1, 1, 5, 29, 31, 60, 600))
        if self._sets_back and self._random.random() < 0.3:
            by = -by
        self._note(by)
        self._clock.now += int(by * SECOND)

    def _operate(self) -> None:
        ids, table = self._some(), self._table
        if not ids:
            return
        how = self._random.choice(("reschedule", "reschedule", "cancel", "retry", "dead_letter", "ack"))
        at = self._a_time()
        self._note(how, ids, at)
        if how == "reschedule":
            table.reschedule(ids, at)
        elif how == "cancel":
            table.cancel(ids)
        elif how == "retry":
            table.retry(ids)
        elif how == "dead_letter":
            table.dead_letter(ids, "an operator")
        else:
            table.ack(ids)

    def _change_by_sql(self) -> None:
        ids = self._some()
        if ids:
            with self._context.backend.engine.begin() as connection:
                self._change(connection, ids)

    def _change(self, connection: sa.Connection, ids: Sequence[Any]) -> None:
        rows = self._rows
        key = self._random.choice(KEYS) if self._moves_keys else rows.c.customer
        by = self._random.choice((-1000, -31, -5, -1, 1, 5, 31, 1000)) * SECOND
        values: dict[str, Any] = self._random.choice(
            (
                {"time_next": self._a_time()},
                {"time_next": rows.c.time_next + by},
                {"priority": self._random.choice((0, 1))},
                {"customer": key},
                {"customer": key, "priority": 1, "time_next": self._a_time()},
                {"time_acked": self._clock.now, "time_next": None},
                {"claim_id": None},
                {"message": "y"},
            )
        )
        self._note(ids, {name: str(value) for name, value in values.items()}, by)
        connection.execute(sa.update(rows).where(rows.c.id.in_(ids)).values(values))

    def _undo_ack(self) -> None:
        if self._callers:
            return
        rows = self._rows
        acked = sa.select(rows.c.id).where(rows.c.time_acked.is_not(None)).order_by(rows.c.seq)
        with self._context.backend.engine.begin() as connection:
            ids = connection.execute(acked).scalars().all()
            if ids:
                one, at = self._random.choice(ids), self._a_time()
                self._note(one, at)
                values = {"time_acked": None, "time_next": at, "claim_id": None}
                connection.execute(sa.update(rows).where(rows.c.id == one).values(values))

    def _redrive(self) -> None:
        if not self._callers:  # whose locks may be in its way
            self._table.redrive()

    def _purge(self) -> None:
        if not self._callers:
            self._table.purge()

    def _roll_back(self) -> None:
        table = self._table
        ids = self._some()
        with table.context.backend.engine.connect() as connection:
            table.put_many(self._new(), connection=connection)
            if ids:
                table.ack(ids, connection=connection)
            connection.rollback()

    def _call(self) -> None:
        """Do something in a caller's transaction, begin one or end one."""
        if len(self._callers) < self._most_callers and self._random.random() < 0.4:
            self._callers.append(Caller(self._table))
        if not self._callers:
            return
        caller = self._random.choice(self._callers)
        how = self._random.choice(("put", "ack", "cancel", "change", "change", "commit", "commit", "roll back"))
        self._note(self._callers.index(caller), how)
        if how in ("commit", "roll back"):
            self._callers.remove(caller)
            caller.end(commits=how == "commit")
            return
        table, ids = self._table, self._some()
        caller.ids.update(ids)
        if how == "put":
            table.put_many(self._new(), connection=caller.connection)
        elif how == "change" and ids:
            self._change(caller.connection, ids)
        elif ids:
            end = table.ack if how == "ack" else table.cancel
            end(ids, connection=caller.connection)

    # Nothing is left

    def _drain(self) -> None:
        """Receive until nothing comes; then no message that nobody has locked is due."""
        if self._callers:
            return
        table = self._table
        empty = 0
        while empty < 12:
            deliveries = table.receive(20)
            self._held += [(table, one) for one in deliveries]
            self._note([one.id for one in deliveries])
            empty = 0 if deliveries else empty + 1
        if self._context.options.rate_of_a_key is not None:
            return
        left = [one for one in self._due() if self._is_free(one)]
        assert not left, "\n".join([*self.log, "left", *map(str, left), *map(str, self._all_rows())])

    def _due(self) -> Sequence[Any]:
        rows = self._rows
        due = sa.select(rows).where(rows.c.time_acked.is_(None), rows.c.time_next <= self._clock.now)
        with self._context.backend.engine.connect() as connection:
            return connection.execute(due).all()

    def _all_rows(self) -> Sequence[Any]:
        with self._context.backend.engine.connect() as connection:
            return connection.execute(sa.select(message_keys)).all()

    def _is_free(self, one: Any) -> bool:
        """Return whether the limit lets a consumer have a due message."""
        limit, key = self._context.options.limit_of_a_key, one.message_key
        return limit is None or not key or self._in_flight()[key] < limit

    def _deliver_all(self) -> None:
        for caller in self._callers:
            caller.end(commits=self._random.random() < 0.5)
        self._callers = []
        self._check()
        for nth in range(300):
            self._clock.now += 2000 * SECOND if nth % 20 == 0 else 2 * SECOND
            table = self._tables[nth % len(self._tables)]
            deliveries = table.receive(20)
            self._check()
            self.log.append(f"at the end: {[one.id for one in deliveries]}")
            table.ack(deliveries)
            self._check()
            if nth > 3 and not self._unlocked():
                return
        raise AssertionError("\n".join([*self.log, f"left: {self._due()}", *map(str, self._all_rows())]))
