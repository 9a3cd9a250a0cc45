"""A delivery: one message that a consumer has leased."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Self, TypeVar

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.pickling import refuse_pickling
from waterclock._support.quoting import said_of
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import explaining
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of
from waterclock.tables.consumers.undecided import decide, find_out
from waterclock.tables.messages.finishing import acking, extending
from waterclock.tables.messages.finishing.dead_letters import bury_leased, dies_when_given_back, exhausted_reason
from waterclock.tables.messages.putting.putting import MessageId
from waterclock.tables.messages.rows.process_heartbeat import changing
from waterclock.tables.model.attempts import Attempt, AttemptOutcome, Failure, read_attempts, truncated, with_attempt
from waterclock.tables.model.claims.claim import Claimed, Held, Leased
from waterclock.tables.model.claims.epochs import MOST_COUNTED
from waterclock.tables.model.progress import progress_text, read_progress
from waterclock.tables.model.schema import user_column_names
from waterclock.tables.model.values.reading import value_of
from waterclock.tables.model.values.texts import storable
from waterclock.time import Duration, format_duration, format_time, to_duration

_T = TypeVar("_T")
_Verb = Literal["ack", "nack", "snooze", "dead_letter", "close", "elsewhere"]
_ENDED: dict[_Verb | None, str] = {
    "ack": "it was acked",
    "nack": "it was given back",
    "snooze": "it was snoozed",
    "dead_letter": "it was moved to the dead letters",
    "close": "it was given back when its subscription was closed",
    "elsewhere": "it was ended in the process that handled it",
}
_FACTS = (
    "_attempts",
    "_began",
    "_claimed_at",
    "_consumer",
    "_ended_by",
    "_headers",
    "_progress",
    "_undecided",
    "beat_at",
    "cancelled",
    "columns",
    "epoch",
    "expires_at",
    "first_for_consumer",
    "group",
    "id",
    "lease_until",
    "leased",
    "lost",
    "payload",
    "priority",
    "time_created",
    "time_scheduled",
)
"""Attributes of a delivery that can be sent to another process."""


class Claim(NamedTuple):
    """The claim that took a message."""

    # Its number, and who made it.
    id: int
    consumer: str | None
    began: int  # when it began, ns of the monotonic clock


class Delivery:
    """A message that was handed out.

    In a ``with`` statement it is acked at the end of the block, or backs off if the block raises.

    If the block acks it with ``connection=``, the caller's transaction decides: after a rollback the message is sent
    again.

    While the ``with`` block runs, heartbeats extend its lease and the leases of the messages that wait behind it in the
    same subscription.

    Attributes
    ----------
    id
        The message's id.
    payload
        Bytes, text or a JSON value, by the table's option ``payload``.
    group
        Its group; None if it has none.
    first_for_consumer
        Whether it is the first message that this consumer gets since it owns the exclusive group, even if it is sent
        again. Any cache for the group is then out of date.
    epoch
        How often it has been sent: 1 the first time.
    lease_until
        Until when no other consumer gets it, ns. An ack after that still counts unless another consumer has received
        it.
    priority
        Higher priorities are sent first.
    time_created, time_scheduled
        When it was put, and when it was to be sent, ns.
    expires_at
        When it expires and is no longer sent, ns; None: never. An ack after that still counts.
    columns
        The values of the table's further columns.
    lost
        Whether the lease is known to be lost: a heartbeat found out, or the message was acked by its id. Its ack will
        raise a LeaseLostError.
    unanswered
        Whether the lease of an earlier delivery expired: the message may have killed its consumer.
    cancelled
        Whether the message was cancelled (`MessageTable.cancel`) since it was handed out: stop handling it. A heartbeat
        sees it within about a second while the ``with`` block runs. If the block acks the message anyway, it is acked;
        if the block returns it to the table, it is not sent again.
    """

    __slots__ = (*_FACTS, "_callers", "_heartbeat", "_when_cancelled", "_when_over", "context", "unanswered", "waiting")

    def __init__(
        self, context: TableContext, callers: CallerConnections, claimed: Claimed, claim: Claim, beat_at: int
    ) -> None:
        row = claimed.row
        self.context = context
        self._began: int | None = claim.began
        self._claimed_at = 0
        self._consumer: str | None = claim.consumer
        self._attempts: str | None = row.failed_attempts
        self._progress: str | None = row.saved_progress
        self._callers = callers
        self._heartbeat = True
        self.beat_at = beat_at
        self.waiting: Sequence[Delivery] = ()
        self.lost = False
        self.unanswered = row.claim_id is not None
        self.cancelled = False
        self._when_cancelled: Callable[[], None] | None = None
        self._headers: str | None = row.headers
        self._ended_by: _Verb | None = None
        self._undecided = False
        self._when_over: Callable[[], None] | None = None
        self.id: MessageId = row.id
        self.payload: Any = row.message
        self.group: str | None = row.group_id or None
        before: int = row.epoch or 0
        self.epoch = before + (before < MOST_COUNTED)  # as in the claim's statement
        self.lease_until = claimed.lease_until
        self.first_for_consumer = claimed.is_first
        self.priority: int = row.priority
        self.time_created: int = row.time_created
        self.time_scheduled: int = row.time_scheduled
        self.expires_at: int | None = row.expires_at
        self.columns: dict[str, Any] = {name: value_of(row, name) for name in user_column_names(context.rows)}
        self.leased = Leased(row.seq, row.id, claim.id, row.group_id, row.position, row.time_next, self.epoch)

    @classmethod
    def resumed(
        cls, context: TableContext, callers: CallerConnections, leased: Leased, lease_until: int, claimed_at: int
    ) -> Self:
        """Build a delivery from its lease alone, with empty content."""
        delivery = cls.__new__(cls)
        delivery.context = context
        delivery._callers = callers  # noqa: SLF001  # of its own class
        delivery.unanswered = False
        known = {"id": leased.id, "group": leased.group_id, "epoch": leased.epoch, "lease_until": lease_until}
        flags = {"_undecided": False, "cancelled": False, "lost": False, "columns": {}, "beat_at": 0, "leased": leased}
        flags |= {"_claimed_at": claimed_at, "first_for_consumer": False}
        delivery.set_facts(dict.fromkeys(_FACTS) | flags | known)
        return delivery

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by name, parsed on first use."""
        return {} if self._headers is None else json.loads(self._headers)

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Earlier attempts that failed, oldest first: the last ``attempts_kept`` of them."""
        return read_attempts(self._attempts)

    @property
    def progress(self) -> Any:
        """The progress that this delivery or an earlier one saved with `save`; None without any."""
        return read_progress(self._progress)

    def ack(self, *, connection: Any = None) -> None:
        """Ack the message: it is never sent again. Idempotent.

        Parameters
        ----------
        connection
            As in `MessageTable.put`: the ack counts when the caller commits. After a rollback the message can be acked
            again, or given back.

        Raises
        ------
        LeaseLostError
            If the lease ended and the message was redelivered, acked or rescheduled, or if this delivery gave it back.
        OrderError
            If an earlier message of its group is not acked.
        UnavailableError
            Without ``connection``, if a transaction that acked it has not ended; with ``connection``, if its
            transaction began before the message was claimed.
        """
        if self._ended_by is not None and self._is_over("ack"):
            return
        if connection is not None:
            with self._callers.use(connection) as theirs:
                self.leave_to_caller()
                if lost := acking.ack_leased(self.context, theirs, [self.leased]).lost:
                    acking.check_sight(self.context, theirs, lost)
                    raise self._lost_error("ack")
            return
        self._decide("ack")
        if self._ended_by is not None and self._is_over("ack"):
            return
        if self._run(lambda own: acking.ack_leased(self.context, own, [self.leased])).lost:
            raise self._lost("ack")
        self.end("ack")

    def nack(self, delay: Duration | None = None, *, error: str | None = None) -> None:
        """Return the message to the table, to be sent again after ``delay``, by default its exponential back-off.

        In a sequenced group the messages behind it wait too. Leased ones go back with it, without counting an attempt.

        Parameters
        ----------
        error
            The reason; kept in the column ``last_error``, and as one of the message's `attempts`.

        Raises
        ------
        LeaseLostError
            If the lease ended and the message was redelivered, acked or rescheduled.
        """
        self._decide("nack")
        if self._is_over("nack"):
            return
        pause = None if delay is None else to_duration(delay, "delay")
        failure = None if error is None else self.failure("failed", storable(error))
        dies = dies_when_given_back(self.context, self.leased)
        # Messages behind it in its group go back too, and the consumer that claimed them must not hand them out.
        with changing(self.context) if self.context.options.groups else nullcontext():
            kept = self._run(lambda own: self.nack_in(own, pause, failure), whole=dies)
        if not kept:
            raise self._lost("nack")
        self.end("nack")

    def snooze(self, delay: Duration) -> None:
        """Return the message to the table, to be sent after ``delay`` without counting an attempt.

        In a group the messages behind it wait too, as after `nack`.

        Raises
        ------
        LeaseLostError
            If the lease ended and the message was redelivered, acked or rescheduled.
        """
        pause = to_duration(delay, "delay")
        self._decide("snooze")
        if self._is_over("snooze"):
            return
        with changing(self.context) if self.context.options.groups else nullcontext():
            kept = self._run(lambda own: acking.put_off(self.context, own, self.leased, pause))
        if not kept:
            raise self._lost("snooze")
        self.end("snooze")

    def _run(self, work: Callable[[SqlConnection], _T], *, whole: bool = False) -> _T:
        """Run ``work`` as `acking.run` does, or in a ``whole`` transaction if it has several statements."""
        with explaining(self.context):
            return self.context.backend.transact(work) if whole else acking.run(self.context, work)

    def nack_in(self, connection: SqlConnection, delay: int | None, failure: Failure | None) -> bool:
        """Return the message to the table in our transaction; False if the lease was lost. Call `end` afterwards."""
        if dies_when_given_back(self.context, self.leased):
            return bury_leased(self.context, connection, self.leased, exhausted_reason(self.context), failure)
        return acking.back_off(self.context, connection, self.leased, self.retry_delay(delay), failure)

    def failure(self, outcome: AttemptOutcome, error: str) -> Failure:
        """Return the history to store for this attempt. It reads the clock, so call it outside a transaction."""
        last_error = error if outcome == "failed" else None
        if not self.context.options.attempts_kept:
            return Failure(last_error, None)
        kept, consumer = self._attempts, self._consumer
        if self._began is None:
            kept, consumer = self.context.backend.look(self._read_attempts)
        attempt = Attempt(self.epoch, *self.since_claim(), consumer, outcome, truncated(error))
        return Failure(last_error, with_attempt(kept, attempt, self.context.options.attempts_kept))

    def since_claim(self) -> tuple[int, int]:
        """Return the time of its claim by the database's clock, and its age, ns."""
        now = self.context.backend.now_about()
        if self._began is None:
            return self._claimed_at, max(0, now - self._claimed_at)
        duration = moments.monotonic_ns() - self._began
        return now - duration, duration

    def _read_attempts(self, connection: SqlConnection) -> tuple[str | None, str | None]:
        found = connection.execute(_asking_attempts(self.context.rows), {"of": self.leased.seq}).first()
        return (None, None) if found is None else (found.failed_attempts, found.consumer)

    def retry_delay(self, delay: int | None) -> int:
        """Return how long it waits before it is sent again, ns: ``delay``, or the table's back-off if that is None."""
        if delay is not None:
            return delay
        return self.context.options.backoff.delay(self.epoch - 1, random.uniform(-1, 1))  # noqa: S311  # no secret

    def dead_letter(self, why: str) -> None:
        """Move the message to the table's dead-letter table, even if it has attempts left.

        Parameters
        ----------
        why
            Kept in the column ``dead_reason``.

        Raises
        ------
        LeaseLostError
            If the lease ended and the message was redelivered, acked or rescheduled.
        InvalidArgumentError
            If the table has no ``dead_letter``.
        """
        self._decide("dead_letter")
        if self._is_over("dead_letter"):
            return
        reason = storable(why)
        failure = self.failure("dead_letter", reason)
        if not self._run(lambda own: bury_leased(self.context, own, self.leased, reason, failure), whole=True):
            raise self._lost("dead_letter")
        self.end("dead_letter")

    def extend(self, duration: Duration) -> None:
        """Extend the lease to ``duration`` from now, unless it already lasts longer.

        Raises
        ------
        LeaseLostError
            If the lease ended and the message was redelivered, acked or rescheduled.
        """
        length = to_duration(duration, "duration")
        self._decide("extend")
        self._is_over("extend")
        with explaining(self.context):
            held = acking.run(self.context, lambda own: extending.extend(self.context, own, self.leased, length))
        if held is None:
            raise self._lost("extend")
        self.extended(held)

    def save(self, progress: Any) -> None:
        """Save the handler's progress, and extend the lease to ``ack_wait`` from now, in one transaction.

        If this attempt fails, the next one reads it as `progress` and continues from there. Progress stays with a
        message that becomes a dead letter or is redriven.

        Parameters
        ----------
        progress
            JSON of at most 64 kB (65,536 bytes of UTF-8). It replaces earlier progress.

        Raises
        ------
        InvalidArgumentError
            If it is not JSON, or is larger.
        LeaseLostError
            If the lease ended and the message was redelivered, acked or rescheduled. Nothing was saved.
        """
        text = progress_text(progress)
        self._decide("save")
        self._is_over("save the progress of")
        context, wait = self.context, self.context.options.ack_wait
        with explaining(context):
            held = acking.run(context, lambda own: extending.save(context, own, self.leased, text, wait), several=True)
        if held is None:
            raise self._lost("save the progress of")
        self._progress = text
        self.extended(held)

    @property
    def over(self) -> bool:
        """Return whether it was acked or given back. An ack in the caller's transaction counts once committed."""
        return self._ended_by is not None

    @property
    def undecided(self) -> bool:
        """Return whether the caller's transaction acked it and is not known to have ended."""
        return self._undecided

    @property
    def given_back(self) -> bool:
        """Return whether it ended without an ack."""
        return self._ended_by not in (None, "ack", "elsewhere")

    def end(self, verb: _Verb) -> None:
        """Mark it as acked or given back."""
        self._ended_by = verb
        self._undecided = False
        self._nudge()

    def leave_to_caller(self) -> None:
        """Mark it as being acked in a caller's transaction."""
        self._undecided = True
        self._nudge()

    def take_back(self) -> None:
        """Note that the transaction that acked it was rolled back."""
        self._undecided = False

    def lose(self) -> None:
        """Mark the lease as lost."""
        self.lost = True
        self._undecided = False
        self._nudge()

    def _nudge(self) -> None:
        if self._when_over is not None:
            self._when_over()

    def _decide(self, verb: str) -> None:
        if self._undecided:
            decide(self.context, [self], verb)

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when the delivery ends, is lost, or is acked in the caller's transaction."""
        self._when_over = tell

    def behind(self) -> Sequence[Delivery]:
        """Return the deliveries that wait in the same subscription until this one is handled."""
        return tuple(self.waiting)

    def extended(self, held: Held | None) -> None:
        """Update it after a heartbeat: with the new lease, or None if the lease was lost."""
        if held is None:
            self.lost = not (self.over or self._undecided)
            return
        self.lease_until = held.until
        if held.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Mark the message as cancelled, or its handling as stopped, without a query."""
        if self.cancelled or self.over:
            return
        self.cancelled = True
        tell = self._when_cancelled  # which another thread may take back
        if tell is not None:
            tell()

    def when_cancelled(self, tell: Callable[[], None] | None) -> None:
        """Call ``tell`` once, in the thread that notices, when the message is cancelled or already was.

        None: remove the callback.
        """
        self._when_cancelled = tell
        if self.cancelled and tell is not None:
            tell()

    def facts(self) -> dict[str, Any]:
        """Return all facts about it, for another process that handles it while this one keeps its lease."""
        return {name: getattr(self, name) for name in _FACTS}

    def set_facts(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts` from the process that keeps its lease."""
        for name in _FACTS:
            setattr(self, name, facts[name])
        self._heartbeat = False
        self._when_over = self._when_cancelled = None
        self.waiting = ()

    def ended_elsewhere(self, *, over: bool, undecided: bool) -> None:
        """Record how the process that handled it ended it, or that it acked it in a transaction of its own."""
        if undecided:
            self.leave_to_caller()
        elif over and not self.over:
            self.end("elsewhere")

    def without_heartbeat(self) -> None:
        """Stop extending the lease, even in ``with``; only the caller does."""
        self._heartbeat = False

    def _is_over(self, verb: str) -> bool:
        """Return whether this verb was carried out already; raise if another one ended the delivery."""
        if self._ended_by not in (None, verb):
            raise LeaseLostError(
                f"cannot {verb} message {self.id!r} of table {self.context.name!r}: {_ENDED[self._ended_by]}"
            )
        return self.over

    def _lost(self, verb: str) -> LeaseLostError:
        self.lose()
        return self._lost_error(verb)

    def _lost_error(self, verb: str) -> LeaseLostError:
        return LeaseLostError(
            f"cannot {verb} message {self.id!r} of table {self.context.name!r}: its lease until"
            f" {format_time(self.lease_until)} was lost, because the message was redelivered, acked, rescheduled or"
            f" deleted. If the lease had ended, use a longer ack_wait than"
            f" {format_duration(self.context.options.ack_wait)}, or extend the lease"
        )

    def __enter__(self) -> Self:
        if self._heartbeat:
            heartbeat_of(self.context.backend).keep(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._heartbeat:
            heartbeat_of(self.context.backend).release(self)
        if error is None:
            # If it is undecided, the caller's transaction decides.
            if not self._undecided and self._ended_by in (None, "close"):
                self.ack()
            return
        if self.lost and isinstance(error, LeaseLostError):
            return
        find_out(self.context, [self])
        if self._undecided:
            error.add_note(
                f"message {self.id!r} is not given back: the transaction that acked the message has not ended"
            )
            return
        if self.over:
            return
        try:
            self.nack(error=said_of(error))
        except LeaseLostError as lost:
            error.add_note(str(lost))

    def __repr__(self) -> str:
        group = f" of group {self.group!r}" if self.group else ""
        return f"<Delivery {self.id!r}{group}, epoch {self.epoch}, until {format_time(self.lease_until)}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Pickle its payload, or the table and the message's id")


@built_once(maxsize=256)
def _asking_attempts(rows: sa.Table) -> sa.Select[Any, Any]:
    return sa.select(rows.c.failed_attempts, rows.c.consumer).where(rows.c.seq == sa.bindparam("of"))
