"""Writes the outcomes of handled messages to the database, many at once under load."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.quoting import in_a_line
from waterclock.database.deadlines import answers_within
from waterclock.errors import (
    InvalidArgumentError,
    LeaseLostError,
    OrderError,
    RefusedError,
    UnavailableError,
    WaterclockError,
)
from waterclock.tables.consumers.discarding import return_lost
from waterclock.tables.messages.finishing.dead_letters import dies_when_given_back
from waterclock.time import format_duration
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling, MessageOrigin
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.outcomes import Outcome
from waterclock.work.ground.tracebacks import warn_with_traceback

_MILLISECOND = 1_000_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # s
_TRIES_FOR = 300.0
"""Seconds after which an outcome that cannot be written is dropped, so that its message is sent again. Later outcomes
of its table must not wait forever.
"""
_log = logging.getLogger(__name__)

Handled = tuple[Handling, Outcome, Sequence[Handling]]
"""A handled message, its outcome, and the messages behind it in its group that go back with it."""


class OutcomeWriter:
    """A thread that writes a table's outcomes for a worker. It retries failed writes; heartbeats keep the leases."""

    def __init__(self, queue: DispatchQueue, counter: WorkCounts) -> None:
        self._queue = queue
        self._counter = counter
        self._changed = threading.Condition()
        self._handled: deque[Handled] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="waterclock-work-record", daemon=True)

    def start(self) -> None:
        moments.start(self._thread)

    def put(self, handling: Handling, outcome: Outcome, dropped: Sequence[Handling] = ()) -> None:
        """Queue the outcome of a message, and of those that go back with it."""
        with self._changed:
            self._handled.append((handling, outcome, dropped))
            self._changed.notify()

    def close(self, seconds: float) -> bool:
        """Write all queued outcomes, in at most so many seconds; return whether that is done."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            moments.join(self._thread, seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while handled := self._next():
            fetcher = handled[0][0].fetcher
            with answers_within(fetcher.patience):
                self._record(fetcher, handled)
            self._queue.recorded([each[0] for each in handled])
            del handled  # do not hold a reference while waiting

    def _next(self) -> list[Handled]:
        with self._changed:
            moments.wait_for(self._changed, lambda: self._handled or self._closing)
            handled = list(self._handled)
            self._handled.clear()
            return handled

    def _record(self, fetcher: MessageOrigin, ours: Sequence[Handled]) -> None:
        acked = [each for each in ours if each[1].verb in ("ack", "discard")]
        if acked:
            self._ack(fetcher, acked)
        others = [each for each in ours if each[1].verb not in ("ack", "discard")]
        for each in others:
            self._apart(fetcher, each)
        fetcher.release([each[0] for each in ours])
        if others or fetcher.table.context.options.groups:
            fetcher.subscription.nudge()  # its group may proceed, and messages that went back may be due soon

    def _ack(self, fetcher: MessageOrigin, handled: Sequence[Handled]) -> None:
        # Messages acked in a handler's transaction are left to it.
        deliveries = [one.delivery for one, _, _ in handled if not (one.delivery.over or one.delivery.undecided)]
        try:
            if deliveries:
                self._try(lambda: fetcher.table.ack(deliveries))
        except LeaseLostError as error:
            _log.warning("%s", error)
        except (OrderError, RefusedError, InvalidArgumentError) as error:
            self._ack_apart(fetcher, handled, error)
            return
        except Exception as error:  # noqa: BLE001  # an error of one table must not stop the others
            self._say_unrecorded(fetcher, len(deliveries), error)
            return
        self._note_acked(fetcher, handled)

    def _ack_apart(self, fetcher: MessageOrigin, handled: Sequence[Handled], error: WaterclockError) -> None:
        """Ack messages one by one, so that one that fails does not affect others."""
        if len(handled) > 1:
            for each in handled:
                self._ack(fetcher, [each])
        elif isinstance(error, OrderError):
            self._say_lost(error, handled[0][0].delivery.id)
            self._counter.note("lost", handled[0][0].delivery)
        else:
            self._say_unrecorded(fetcher, 1, error)

    def _note_acked(self, fetcher: MessageOrigin, handled: Sequence[Handled]) -> None:
        for one, outcome, _ in handled:
            if one.delivery.lost or one.delivery.given_back:
                self._counter.note("lost", one.delivery)
            elif outcome.verb == "ack":
                self._counter.note("done", one.delivery)
            else:
                self._counter.note("discarded", one.delivery)
                _log.info(
                    "message %r of table %r is discarded: %s",
                    one.delivery.id,
                    fetcher.table.name,
                    in_a_line(outcome.why),
                    extra=event("message_discarded", table=fetcher.table.name, id=one.delivery.id),
                )

    def _apart(self, fetcher: MessageOrigin, each: Handled) -> None:
        one, outcome, dropped = each
        try:
            self._try(lambda: self._give_up(fetcher, one, outcome))
        except LeaseLostError as error:
            self._say_lost(error, one.delivery.id)
            self._counter.note("lost", one.delivery)
        except Exception as error:  # noqa: BLE001  # an error of one message must not stop the others
            self._say_unrecorded(fetcher, 1, error)
        fetcher.give_back(dropped)

    def _give_up(self, fetcher: MessageOrigin, one: Handling, outcome: Outcome) -> None:
        delivery, name = one.delivery, fetcher.table.name
        if delivery.over or delivery.undecided:
            # The handler has ended the delivery itself.
            if outcome.verb == "back_off":
                warn_with_traceback(
                    _log,
                    outcome.traceback,
                    "message %r of table %r failed after its handler had ended the delivery: %s",
                    delivery.id,
                    name,
                    in_a_line(outcome.why),
                )
            return
        options = delivery.context.options
        if outcome.verb in ("skip", "skip_group"):
            if outcome.verb == "skip_group":
                return_lost(delivery)
            self._counter.note("lost", delivery)
            return
        if outcome.verb == "give_back":
            fetcher.give_back([one])
            return
        if outcome.verb == "snooze":
            delivery.snooze(outcome.delay or 0)
            self._counter.note("snoozed", delivery)
            return
        if outcome.verb == "dead_letter" and options.dead_letter is not None:
            delivery.dead_letter(outcome.why or "")
            self._counter.note("dead", delivery)
            _log.warning(
                "message %r of table %r becomes a dead letter: %s",
                delivery.id,
                name,
                in_a_line(outcome.why),
                extra=event("message_dead", table=name, id=delivery.id),
            )
            return
        delay = delivery.retry_delay(outcome.delay)
        dies = dies_when_given_back(delivery.context, delivery.leased)
        delivery.nack(delay, error=outcome.last_error)
        self._counter.note("failed", delivery)
        if dies:
            then = "it is now a dead letter"
        elif options.max_attempts is not None and delivery.epoch >= options.max_attempts:
            then = "no attempts left"
        else:
            then = f"next try in {format_duration(delay // _MILLISECOND * _MILLISECOND)}"
        warn_with_traceback(
            _log,
            outcome.traceback,
            "message %r of table %r failed, attempt %d; %s: %s",
            delivery.id,
            name,
            delivery.epoch,
            then,
            in_a_line(outcome.why),
            extra=event("message_failed", table=name, id=delivery.id, attempt=delivery.epoch),
        )

    def _try(self, work: Callable[[], object]) -> None:
        """Retry while the database is unavailable, for at most `_TRIES_FOR`; heartbeats keep the leases."""
        pause, until = _FIRST_PAUSE, moments.monotonic() + _TRIES_FOR
        while True:
            try:
                work()
            except UnavailableError as error:
                if self._closing or moments.monotonic() > until:
                    raise
                _log.warning("cannot write the outcomes of messages yet: %s", error, extra=event("outcomes_delayed"))
            else:
                return
            moments.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _say_lost(self, error: WaterclockError, message_id: object) -> None:
        _log.warning(
            "message %r was handled, but its outcome is lost: %s",
            message_id,
            error,
            extra=event("outcome_lost", id=message_id),
        )

    def _say_unrecorded(self, fetcher: MessageOrigin, count: int, error: BaseException) -> None:
        _log.error(
            "the outcomes of %d messages of table %r were not written, so the messages will be redelivered: %s",
            count,
            fetcher.table.name,
            error,
            extra=event("outcomes_not_written", table=fetcher.table.name, count=count),
        )
