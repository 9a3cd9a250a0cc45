"""A delivery: one message in the hands of a consumer, for as long as the lease lasts."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from waterclock.errors import LeaseLostError, SchemaError
from waterclock.tables import acking
from waterclock.tables.acking import Held
from waterclock.tables.callers import CallerConnections
from waterclock.tables.claiming import Claimed
from waterclock.tables.context import TableContext
from waterclock.tables.putting import MessageId, user_column_names
from waterclock.time import Duration, format_duration, format_time, to_duration


class Delivery:
    """A message that was handed out. In ``with`` it is acked at the end, or backs off where an exception ends it.

    Attributes
    ----------
    id
        The message's id.
    payload
        Bytes, text or a JSON value, as the table's ``payload`` says.
    group
        Its group; None where it names none.
    epoch
        How often it has been sent by now: 1 for the first time.
    lease_until
        Until when nobody else is sent it, ns. Afterwards an ack is still taken, unless somebody else was.
    priority
        Higher ones are sent earlier.
    time_created, time_scheduled
        When it was put and for when, ns.
    columns
        The values of the table's further columns.
    """

    __slots__ = (
        "_callers",
        "_context",
        "_headers",
        "_over",
        "columns",
        "epoch",
        "group",
        "held",
        "id",
        "lease_until",
        "payload",
        "priority",
        "time_created",
        "time_scheduled",
    )

    def __init__(self, context: TableContext, callers: CallerConnections, claimed: Claimed, lease: int) -> None:
        row = claimed.row
        self._context = context
        self._callers = callers
        self._headers: str | None = row.headers
        self._over = False
        self.id: MessageId = row.id
        self.payload: Any = row.message
        self.group: str | None = row.group_id or None
        self.epoch: int = (row.epoch or 0) + 1
        self.lease_until = claimed.lease_until
        self.priority: int = row.priority
        self.time_created: int = row.time_created
        self.time_scheduled: int = row.time_scheduled
        self.columns: dict[str, Any] = {name: getattr(row, name) for name in user_column_names(context.rows)}
        self.held = Held(row.seq, lease, row.group_id, row.position, row.time_next)

    @property
    def headers(self) -> Mapping[str, str]:
        """Text by text; SchemaError where a plain-SQL client wrote something else than a JSON object."""
        if self._headers is None:
            return {}
        try:
            headers = json.loads(self._headers)
        except ValueError:
            headers = None
        if not isinstance(headers, dict):
            raise SchemaError(f"message {self.id!r}: its headers are {self._headers!r}, which is no JSON object")
        return headers

    def ack(self, *, connection: Any = None) -> None:
        """Say that the message is handled: it is never sent again.

        Parameters
        ----------
        connection
            As in `MessageTable.put`: the ack counts when the caller commits.

        Raises
        ------
        LeaseLostError
            Where the lease ended and the message was sent to somebody else, acked or rescheduled.
        OrderError
            Where an earlier message of its group is not acked.
        """
        if self._over:
            return
        if connection is None:
            lost = self._context.backend.transact(lambda own: acking.ack_held(self._context, own, [self.held]))
        else:
            with self._callers.use(connection) as theirs:
                lost = acking.ack_held(self._context, theirs, [self.held])
        if lost:
            raise self._lost("ack")
        self.end()

    def nack(self, delay: Duration | None = None, *, error: str | None = None) -> None:
        """Give the message back, to be sent again after ``delay``; by default after its exponential back-off.

        In a sequenced group those behind it wait with it; what is out of them goes back too, and counts no attempt.

        Parameters
        ----------
        error
            Why; kept in the column ``last_error``.

        Raises
        ------
        LeaseLostError
            Where the lease ended and the message was sent to somebody else, acked or rescheduled.
        """
        if self._over:
            return
        if delay is None:
            pause = self._context.options.backoff.delay(self.epoch - 1, random.uniform(-1, 1))  # noqa: S311  # no secret
        else:
            pause = to_duration(delay, "delay")
        kept = self._context.backend.transact(lambda own: acking.back_off(self._context, own, self.held, pause, error))
        if not kept:
            raise self._lost("nack")
        self.end()

    def extend(self, duration: Duration) -> None:
        """Keep the message for ``duration`` from now on, if that is longer than the lease lasts anyway.

        Raises
        ------
        LeaseLostError
            Where the lease ended and the message was sent to somebody else, acked or rescheduled.
        """
        length = to_duration(duration, "duration")
        until = self._context.backend.transact(lambda own: acking.extend(self._context, own, self.held, length))
        if until is None:
            raise self._lost("extend")
        self.lease_until = until

    @property
    def over(self) -> bool:
        """Whether it was acked or given back."""
        return self._over

    def end(self) -> None:
        """Note that it was acked or given back, so that nothing more is done for it."""
        self._over = True

    def _lost(self, verb: str) -> LeaseLostError:
        self.end()
        return LeaseLostError(
            f"{verb}: message {self.id!r} of {self._context.name!r} is not ours any more: its lease lasted until"
            f" {format_time(self.lease_until)}, and it was sent to somebody else, acked or rescheduled; use a longer"
            f" ack_wait than {format_duration(self._context.options.ack_wait)}, or extend the lease"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
            return
        try:
            self.nack(error=f"{type(error).__name__}: {error}")
        except LeaseLostError as lost:
            error.add_note(str(lost))

    def __repr__(self) -> str:
        group = f" of group {self.group!r}" if self.group else ""
        return f"<Delivery {self.id!r}{group}, epoch {self.epoch}, until {format_time(self.lease_until)}>"
