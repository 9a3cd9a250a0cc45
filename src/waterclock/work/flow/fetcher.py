"""The intake of one table: claims messages for free slots, and waits where there is nothing to do."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from waterclock._support import moments
from waterclock.database.deadlines import answers_within
from waterclock.errors import LeaseLostError, WaterclockError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import discard
from waterclock.tables.consumers.heartbeat import heartbeat_of
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.time import Duration
from waterclock.work.flow.dispatch_queue import Handling, Lanes
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.handlers import Handlers

if TYPE_CHECKING:
    from waterclock.work.flow.outcome_writer import Recorder

_SECOND = 1_000_000_000
_SHORTEST_PATIENCE, _LONGEST_PATIENCE = 5.0, 30.0  # s
_AT_ONCE = 500  # messages that one claim takes at the most

_APART, _LONGEST_APART = 2 * _SECOND, 60 * _SECOND
"""With ``max_attempts``: ns between the beginnings of messages whose last lease ran out, and how long one waits for its
turn at most. One of them may end the process whenever it is handled, and must not take the same others along again."""

UNKNOWN_FOR = "5s"
"""For how long a message of a kind that is not known is left to others, where a claim cannot pass over it."""

_log = logging.getLogger(__name__)


class Intake:
    """Takes one table's messages into the lanes of a worker.

    Attributes
    ----------
    table
        The table.
    handlers
        What handles its messages.
    subscription
        What claims them.
    recorder
        What tells its database what became of them.

    Parameters
    ----------
    here
        Whether this process handles the messages, so that a handler that ends it ends them all.
    """

    def __init__(
        self,
        table: MessageTable,
        handlers: Handlers,
        subscription: TableSubscription,
        lanes: Lanes,
        recorder: Recorder,
        counter: WorkCounts,
        failed: Callable[[BaseException], object],
        *,
        here: bool = True,
    ) -> None:
        self.table = table
        self.handlers = handlers
        self.subscription = subscription
        self.recorder = recorder
        self._lanes = lanes
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
        """For how many seconds it waits for an answer: a claim that takes longer has little of its lease left."""
        lease = self.table.context.options.ack_wait / _SECOND
        return min(max(lease / 3, _SHORTEST_PATIENCE), _LONGEST_PATIENCE)

    def start(self) -> None:
        """Begin to claim."""
        moments.start(self._thread)

    def stop(self) -> None:
        """Claim no more. What a claim under way brings is given back at once."""
        self.subscription.stop()

    def join(self, seconds: float) -> bool:
        """Wait for the end of a claim under way; say whether there is none."""
        if self._thread.ident is not None:
            moments.join(self._thread, seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._is_there() and (room := self._lanes.reserve(_AT_ONCE, ahead=not self._counts)):
                with answers_within(self.patience):
                    if not self._take(room):
                        self._wait()
        except BaseException as error:  # noqa: BLE001  # the worker says it, and ends
            self._failed(error)

    @property
    def _counts(self) -> bool:
        """Whether a message dies after so many claims: then none is claimed before a slot is free for it."""
        return self.table.context.options.max_attempts is not None

    def _is_there(self) -> bool:
        """Wait for a database that is away before there is room: other tables may be in others."""
        with answers_within(self.patience):
            self.subscription.wait_until_back()
        return True

    def _wait(self) -> None:
        """Wait for something to do: while nothing happens, a look costs less than a claim would."""
        until = moments.monotonic() + self.subscription.claims_every
        while not self.subscription.wait() and moments.monotonic() < until:
            pass

    def _take(self, room: int) -> bool:
        found: list[Delivery] = []
        ours: list[Handling] = []
        self._give_back_left()
        begun = moments.monotonic_ns()
        try:
            found = self.subscription.take(room)
            ours = [Handling(each, self, begun) for each in self._to_handle(found)]
            for one in ours:
                self._heartbeat.keep(one.delivery)
        finally:
            late = self._lanes.add(self, ours, room, begun)
        self.give_back(late)
        # Where one comes now and then, the next one is waited for at once.
        if found and (self._found_before or self._lanes.is_full):
            self.subscription.need_no_notifications()
        self._found_before = bool(found)
        return bool(found)

    def _to_handle(self, found: Sequence[Delivery]) -> Sequence[Delivery]:
        """Put off messages that are not to be handled now, and with them those behind them in their groups."""
        ours: list[Delivery] = []
        passed: set[str | None] = set()
        for each in found:
            in_group = each.leased.position is not None
            if in_group and each.group in passed:
                continue
            delay = self._delay(each)
            if not delay:
                ours.append(each)
                continue
            if in_group:
                passed.add(each.group)
            try:
                each.snooze(delay)
            except LeaseLostError as error:
                _log.info("%s", error)
        return ours

    def _delay(self, one: Delivery) -> Duration:
        """Return how long a message is left to others, or to later, without counting an attempt."""
        if self.handlers.kinds is not None and self.handlers.find(one) is None:
            return UNKNOWN_FOR
        if not (one.unanswered and self._counts and self._here):
            return 0
        now = moments.monotonic_ns()
        begins = min(max(now, self._next_unanswered), now + _LONGEST_APART)
        self._next_unanswered = begins + _APART
        return begins - now

    def check(self, one: Handling) -> None:
        """See whether a message is still ours that has waited behind others of its group for long."""
        with suppress(WaterclockError):  # its ack will find out
            discard([one.delivery], extended=True)

    def give_back(self, handlings: Sequence[Handling]) -> None:
        """Give messages back, due at once and uncounted.

        What cannot be given back now is so before the next claim, which may bring what follows it in its group. Where
        there is none any more, it returns when its lease ends.
        """
        if not handlings:
            return
        try:
            self.subscription.give_back([one.delivery for one in handlings])
        except WaterclockError as error:
            _log.warning("cannot give %d messages of %r back now: %s", len(handlings), self.table.name, error)
            self._lanes.not_given_back(handlings)
            self._left.append(handlings)
        else:
            self._lanes.given_back(handlings)
            self._counter.note("given_back", len(handlings))
        self.release(handlings)

    def _give_back_left(self) -> None:
        for _ in range(len(self._left)):
            self.give_back(self._left.popleft())

    def release(self, handlings: Sequence[Handling]) -> None:
        """Extend the leases of messages no more."""
        for one in handlings:
            self._heartbeat.release(one.delivery)
