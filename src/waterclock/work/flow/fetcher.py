"""Claims messages of one table for the free slots of a worker, and waits if there is nothing to do."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.database.deadlines import answers_within
from waterclock.errors import LeaseLostError, WaterclockError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import discard, replace_first_for_consumer
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import RunningHandler, process_heartbeat
from waterclock.time import Duration
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.handlers import Handlers
from waterclock.work.ground.outcomes import Outcome

_SECOND = 1_000_000_000
_SHORTEST_PATIENCE, _LONGEST_PATIENCE = 5.0, 30.0  # s
_AT_ONCE = 500  # maximum messages of one claim

_APART, _LONGEST_APART = 2 * _SECOND, 60 * _SECOND
"""With ``max_attempts``: ns between the starts of messages whose last lease ran out, and the maximum wait for a turn.
One of them may kill the process whenever it is handled, and must not affect the same other messages again.
"""

UNKNOWN_FOR = "5s"  # for how long a message of an unknown kind is left to other workers, if a claim cannot skip it

_log = logging.getLogger(__name__)


class Fetcher:
    """Feeds one table's messages into the dispatch queue of a worker.

    ``here`` says whether this process handles the messages, so that a handler that kills it affects all of them.
    """

    def __init__(
        self,
        table: MessageTable,
        handlers: Handlers,
        subscription: TableSubscription,
        queue: DispatchQueue,
        put_outcome: Callable[[Handling, Outcome, Sequence[Handling]], None],
        counter: WorkCounts,
        failed: Callable[[BaseException], object],
        *,
        here: bool = True,
    ) -> None:
        self.table = table
        self.handlers = handlers  # the handlers of its messages
        self.subscription = subscription  # the subscription that claims them
        # Queues the outcome of a message, and the messages behind it in its group that go back with it.
        self.put_outcome = put_outcome
        self._queue = queue
        self._counter = counter
        self._failed = failed
        self._here = here
        self._next_unanswered = 0
        self._left: deque[Sequence[Handling]] = deque()
        self._found_before = False
        self._heartbeat = heartbeat_of(table.context.backend)
        self._thread = threading.Thread(target=self._run, name=f"waterclock-work-{table.name}", daemon=True)

    @property
    def patience(self) -> float:
        """Return the seconds that it waits for an answer: a slower claim has little of its lease left."""
        lease = self.table.context.options.ack_wait / _SECOND
        return min(max(lease / 3, _SHORTEST_PATIENCE), _LONGEST_PATIENCE)

    def start(self) -> None:
        """Start claiming."""
        observer, name = self._counter.observer, self.table.name
        if observer is not None:
            self.subscription.when_claimed = lambda seconds, count: observer.note_claim(name, seconds, count)
        moments.start(self._thread)

    def report_handlers(self, running: Callable[[Fetcher], Sequence[RunningHandler]]) -> None:
        """Show in the process's heartbeat which handlers run for this table."""
        process_heartbeat(self.table.context).report_handlers(self.subscription, lambda: running(self))

    def stop(self) -> None:
        """Stop claiming. Messages of a running claim are given back at once."""
        self.subscription.stop()

    def join(self, seconds: float) -> bool:
        """Wait for a running claim; return whether it has ended."""
        if self._thread.ident is not None:
            moments.join(self._thread, seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._is_there() and (room := self._queue.reserve(self, _AT_ONCE, ahead=not self._counts)):
                with answers_within(self.patience):
                    if not self._take(room):
                        self._wait()
        except BaseException as error:  # noqa: BLE001  # the worker says it, and ends
            self._failed(error)

    @property
    def _counts(self) -> bool:
        """Return whether claims of a message are limited: then none is claimed before a slot is free for it."""
        return self.table.context.options.max_attempts is not None

    def _is_there(self) -> bool:
        """Wait for an unavailable database before reserving room, which other tables may use."""
        with answers_within(self.patience):
            self.subscription.wait_until_back()
        return True

    def _wait(self) -> None:
        """Wait for messages: while idle, a check costs less than a claim."""
        until = moments.monotonic() + self.subscription.claims_every
        while not self.subscription.wait() and moments.monotonic() < until:
            pass
        self._found_before &= self.subscription.was_due

    def _take(self, room: int) -> bool:
        found: list[Delivery] = []
        ours: list[Handling] = []
        left: list[Delivery] = []
        self._give_back_left()
        begun = moments.monotonic_ns()
        try:
            found = self.subscription.take(room)
            kept, left = self._to_handle(found)
            ours = [Handling(each, self, begun) for each in kept]
            for one in ours:
                self._heartbeat.keep(one.delivery)
        finally:
            late = self._queue.add(self, ours, begun)
        self.give_back([*late, *(Handling(each, self, begun) for each in left)])
        # Claim again at once while messages come without a pause; otherwise a check costs less than an empty claim.
        is_busy = bool(found) and (self._found_before or self._queue.is_full)
        if is_busy:
            self.subscription.need_no_notifications()
        self._found_before = bool(found)
        return is_busy or len(found) == room

    def _to_handle(self, found: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Postpone messages that must not be handled now, with those behind them in their groups.

        Returns the messages to handle, and those to give back: they could not be postponed, or wait behind one that
        was not.
        """
        ours: list[Delivery] = []
        left: list[Delivery] = []
        postponed: set[str | None] = set()
        for number, each in enumerate(found):
            in_group = each.leased.position is not None
            if in_group and each.group in postponed:
                continue
            delay = self._delay(each)
            if not delay:
                ours.append(each)
                continue
            if in_group:
                postponed.add(each.group)
            try:
                each.snooze(delay)
            except WaterclockError as error:
                _log.info("%s", error)
                behind = [one for one in found[number + 1 :] if in_group and _is_behind(one, each)]
                if isinstance(error, LeaseLostError):
                    with suppress(WaterclockError):
                        replace_first_for_consumer([each], behind)
                else:
                    left.append(each)
                left += behind
        return ours, left

    def _delay(self, one: Delivery) -> Duration:
        """Return how long a message is left to other workers, or for later, without counting an attempt."""
        if self.handlers.kinds is not None and self.handlers.find(one) is None:
            return UNKNOWN_FOR
        if not (one.unanswered and self._counts and self._here):
            return 0
        now = moments.monotonic_ns()
        begins = min(max(now, self._next_unanswered), now + _LONGEST_APART)
        self._next_unanswered = begins + _APART
        return begins - now

    def check(self, one: Handling) -> None:
        """Check whether a message is still ours after a long wait behind others of its group."""
        with suppress(WaterclockError):  # its ack will detect that
            discard([one.delivery], extended=True)

    def give_back(self, handlings: Sequence[Handling]) -> None:
        """Return messages to their tables, due at once, without counting an attempt.

        If that fails, it is retried before the next claim, which may bring later messages of their groups. Without a
        further claim, they return when their leases end.
        """
        if not handlings:
            return
        try:
            self.subscription.give_back([one.delivery for one in handlings])
        except WaterclockError as error:
            _log.warning(
                "cannot give back %d messages of table %r now: %s",
                len(handlings),
                self.table.name,
                error,
                extra=event("messages_not_given_back", table=self.table.name, count=len(handlings)),
            )
            self._queue.not_given_back(handlings)
            self._left.append(handlings)
        else:
            self._queue.given_back(handlings)
            self._counter.note("given_back", *(one.delivery for one in handlings))
        self.release(handlings)

    def _give_back_left(self) -> None:
        for _ in range(len(self._left)):
            self.give_back(self._left.popleft())

    def release(self, handlings: Sequence[Handling]) -> None:
        """Stop extending the leases of messages."""
        for one in handlings:
            self._heartbeat.release(one.delivery)


def _is_behind(one: Delivery, other: Delivery) -> bool:
    return one.leased.position is not None and one.group == other.group
