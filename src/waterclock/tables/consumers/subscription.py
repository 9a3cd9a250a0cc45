"""The subscription: an iterator that yields deliveries as they become due."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, Self

from waterclock._support import moments
from waterclock._support.closing import Closing
from waterclock._support.pickling import refuse_pickling
from waterclock.errors import (
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    TimedOutError,
    UnavailableError,
    WaterclockError,
)
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.selection import select_on
from waterclock.tables.catalogue.table_row import LOOK_EVERY, TableRow
from waterclock.tables.consumers.claim_failures import RETRY_EVERY, ClaimFailures
from waterclock.tables.consumers.consumer_purge import PURGE_EVERY, ConsumerPurge
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import LOOK_AGAIN_AFTER, discard
from waterclock.tables.consumers.heartbeats.consumer_heartbeat import keep_alive
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of
from waterclock.tables.consumers.heartbeats.leaving import PATIENCE, leave_behind, leaving
from waterclock.tables.consumers.heartbeats.ticking import Ticking
from waterclock.tables.consumers.idling import LEADS_FOR, idle_consumers
from waterclock.tables.consumers.many_deliveries import give_back
from waterclock.tables.consumers.receiving import Request, Watched, pause, receive, seconds_until_own_due
from waterclock.tables.consumers.undecided import find_out, see_committed
from waterclock.tables.consumers.waiting_deliveries import WaitingDeliveries
from waterclock.tables.databases.changes import Changes, Stop
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat
from waterclock.tables.model.timing.rate import Rate

_SECOND = 1_000_000_000

_MOST = 1024  # messages in one claim; halved after each claim that the database refuses
_IN_VAIN_EVERY = 1.0  # s until an idle consumer claims again after a claim of due messages returned none
_CLAIMS_EVERY = 10.0  # s without any change
_FULL_FOR = 0.05  # s after which a full subscription checks whether some of its messages are finished

_CLAIM_ENDS_WITHIN = 5.0
"""Seconds that `close` waits for a claim of another thread. The claim may wait for a lock of the closing thread's own
transaction, or call back into code that waits for the closing thread."""

_log = logging.getLogger(__name__)


class TableSubscription(Closing):
    """An iterator over deliveries that waits for the next one to become due. Close it, or use it in ``with``.

    It holds at most ``cache_size`` unfinished messages. Closing it at once returns to the table the messages that it
    claimed and did not hand out, without counting an attempt. In a table with groups it also returns unfinished
    messages that it handed out, so that the groups can proceed: ack before closing. On SQLite it waits a second for
    another writer; then the rest returns when the leases end, and a warning is logged. While in use it purges the
    table, if the database allows it to delete, once a second or, if there was nothing to purge, every half a minute. It
    also puts the due messages of the table's schedules.

    Any thread and any signal handler may close it. If another thread is claiming, closing waits for the claim, and
    returns its messages too: `take` then returns none, and the iteration ends. If the claim takes longer than five
    seconds (on SQLite, one), or a signal handler interrupted it, its own thread returns the messages when it ends.

    If the database refuses a claim or a claim times out, the subscription logs a warning and retries after pauses that
    grow to half a minute. While its claims fail, `stats` and `explain` say so. After half a minute, other consumers get
    its exclusive groups.

    A waiting message that is acked, rescheduled, moved or removed elsewhere is not handed out. The subscription notices
    changes by this process at once, and others after a second.
    """

    def __init__(
        self,
        row: TableRow,
        callers: CallerConnections,
        changes: Callable[[], Changes],
        request: Request,
        limit: int | None,
        *,
        rate: Rate | None = None,
        heartbeat: bool = True,
    ) -> None:
        self._row = row
        self._callers = callers
        self._watch_changes = changes
        self._changes_seen: Changes | None = None
        self._request = request
        self._limit = limit
        self._heartbeat = heartbeat
        self._rate = rate
        self._rate_due = 0
        self._handed_out: list[Delivery] = []
        self._stop = Stop()
        self._waits = True
        self._pause = 0.0
        self._closed = False
        self._closer: int | None = None  # the thread that closes it
        self._using = threading.Lock()  # held while a thread claims, hands out or leaves
        self._user: int | None = None  # the thread that claims or hands out
        self._leaves_late = False  # whether that thread has to leave, because `close` could not wait for it
        self._has_left = False
        self._in_vain = 0
        self._changed = True  # whether something has changed, or become due, since the last claim
        self._claimed_at = -math.inf
        self._most = _MOST
        self.consumer = request.consumer  # name of the consumer
        self.patience = 60.0  # for how many seconds it retries while the database is unavailable or refuses its claims
        # Called after each claim with its seconds, and how many messages it returned; None: no measurement.
        self.when_claimed: Callable[[float, int], object] | None = None
        self._looked_at = 0
        self._saw_at = 0
        self._in_doubt = False
        self._claims = False
        self._consumer_heartbeat = keep_alive(row, request.consumer)
        self._process_heartbeat = process_heartbeat(row.last_seen)
        self._waiting = WaitingDeliveries(lambda expired: self._process_heartbeat.note_sent(-expired))
        self._process_heartbeat.join(self)
        self._is_exclusive = row.last_seen.options.groups == "exclusive"
        self._idle = idle_consumers(row.last_seen.backend, (row.last_seen.table_id, *request.what))
        self._purging = ConsumerPurge(self.consumer, self._idle)
        self._failures = ClaimFailures(self, self.consumer, self._process_heartbeat, self._consumer_heartbeat)
        self._ticking = Ticking(row)
        for beating in (self._process_heartbeat, self._ticking):
            heartbeat_of(row.last_seen.backend).add(beating)

    @property
    def _changes(self) -> Changes:
        if self._changes_seen is None:
            self._changes_seen = self._watch_changes()
        return self._changes_seen

    @property
    def watched(self) -> Watched:
        """Describes the changes that it waits for."""
        return Watched(self._row, self._request)

    @property
    def is_failing(self) -> bool:
        """Return whether its last claim failed."""
        return self._failures.since is not None

    def stop(self) -> None:
        """End the iteration after the current delivery; safe to call from other threads and signal handlers.

        The current delivery is finished; those that wait behind it are given back when the subscription is closed.
        """
        self._stop.set()

    def close(self) -> None:
        """Return to the table all messages that were not handed out, at once and without counting an attempt."""
        self._stop.set()
        me = threading.get_ident()
        if self._has_left or self._closer == me:  # a signal handler interrupted `close` of this thread
            return
        self._closed, self._closer = True, me
        try:
            self._close(me)
        finally:
            self._closer = None

    def _close(self, me: int) -> None:
        self._idle.pass_on(self)
        self._ticking.close()
        self._process_heartbeat.leave(self)
        if self._user != me:  # otherwise a signal handler interrupted a claim of this thread
            patience = PATIENCE if self._row.last_seen.sql.one_writer else _CLAIM_ENDS_WITHIN
            if moments.acquire(self._using, patience):
                try:
                    self._leave()
                finally:
                    self._using.release()
                return
        self._leaves_late = True
        self._leave_late()

    @contextmanager
    def _in_use(self) -> Generator[None]:
        """Keep `close` from leaving during the block. If it stopped waiting for the block, leave at the end."""
        me = threading.get_ident()
        try:
            with moments.holding(self._using):
                self._user = me  # directly after the lock, so that no signal handler runs in between
                try:
                    yield
                finally:
                    self._user = None
        finally:
            if self._leaves_late:
                self._leave_late()

    def _leave_late(self) -> None:
        """Leave in place of a `close` that could not wait, unless a block of `_in_use` is running."""
        if not self._using.acquire(blocking=False):
            return
        try:
            self._leave()
        except WaterclockError as error:
            _log.warning(
                "consumer %s cannot give back its messages of table %r, which return when their leases end: %s",
                self.consumer,
                self._row.last_seen.name,
                error,
            )
        finally:
            self._using.release()

    def _leave(self) -> None:
        if self._has_left:
            return
        self._has_left = True
        try:
            with ExitStack() as leaving:
                if self._changes_seen is not None:
                    leaving.callback(self._changes_seen.close)
                leaving.callback(self._consumer_heartbeat.close)
                try:
                    self._give_back(self._row.last_seen)
                except RefusedError as error:
                    with suppress(NotFoundError):  # messages cannot go back to a dropped table
                        self._row.check(error)
        except Exception:
            raise
        except BaseException:  # of a signal handler, such as KeyboardInterrupt: `close` may be called again
            self._has_left = False
            raise

    def _give_back(self, context: TableContext) -> None:
        with leaving(context, self.consumer):
            self._write_back(context)

    def _write_back(self, context: TableContext) -> None:
        unstarted = [delivery.leased for delivery in self._waiting]
        begun: list[Delivery] = []
        try:
            if context.options.groups:
                # The next consumer need not wait for the leases of unfinished messages in groups.
                find_out(context, self._handed_out)
                begun = [one for one in self._handed_out if not (one.over or one.undecided)]
            if unstarted or begun:
                leave_behind(context, self.consumer, unstarted, [one.leased for one in begun])
        except Exception:  # unlike after an interrupt, they are not returned again
            self._waiting.clear()
            raise
        self._waiting.clear()
        self._process_heartbeat.note_sent(-len(unstarted))
        for delivery in begun:
            delivery.end("close")

    def put_back(self, delivery: Delivery) -> None:
        """Take back a delivery whose handling has not begun: it comes next, or returns to the table on close."""
        self._handed_out = [one for one in self._handed_out if one is not delivery]
        self._waiting.appendleft(delivery)

    def take(self, most: int) -> list[Delivery]:
        """Claim up to ``most`` due messages without waiting, for a caller that handles several.

        The caller gets the messages of one claim and extends the leases itself. It returns messages that it does not
        handle (`give_back`).
        """
        if self._stop.is_set():
            return []
        try:
            with self._leading():
                found = self._take(most)
        except (UnavailableError, RefusedError, InvalidArgumentError) as error:
            self._wait_after(error)
            return []
        self._failures.end(self._row.last_seen.name)
        return found

    def _take(self, most: int) -> list[Delivery]:
        context = self._row.now()
        self._purge(context, 2 * PURGE_EVERY)
        now = context.backend.now_about()
        self._handed_out = [one for one in self._handed_out if self._is_out(one, now)]
        room, _ = self._allowed(min(most, context.options.cache_size - len(self._handed_out)))
        with self._in_use():
            found = self._claim(room) if room > 0 and not self._closed else []
            if self._closed:  # meanwhile; leaving returns them
                self._waiting.extend(found)
                return []
            self._handed_out += found
        return found

    def wait(self) -> bool:
        """Wait until `take` may get something, at most for about a second, or until nudged.

        Returns whether `take` may find something; False if nothing happened.
        """
        try:
            with self._leading():
                self._purge(self._row.now(), PURGE_EVERY)
                _, rate_pause = self._allowed(1)
                if len(self._handed_out) >= self._row.last_seen.options.cache_size:
                    rate_pause = max(rate_pause, _FULL_FOR)
                if not rate_pause:
                    return self._wait_for_more() or self._stop.is_set()
            self._idle.pass_on(self)
            self._stop.wait(min(rate_pause, LOOK_EVERY / 2))
        except (UnavailableError, RefusedError, InvalidArgumentError) as error:
            self._wait_after(error)
        return True

    @property
    def was_due(self) -> bool:
        """Return whether something was due already when the last `wait` began."""
        return self._in_vain > 0

    def wait_until_back(self) -> None:
        """If the database was unavailable, wait until it answers again or the subscription is stopped."""
        while self._failures.since is not None and not self._stop.is_set():
            try:
                self._row.last_seen.backend.now()
            except UnavailableError:
                self._stop.wait(RETRY_EVERY)
            else:
                return

    @contextmanager
    def _leading(self) -> Generator[None]:
        """Pass the lead to another consumer if this one fails."""
        try:
            yield
        except BaseException:
            self._idle.pass_on(self)
            raise

    def _wait_for_more(self) -> bool:
        has_messages = bool(self._waiting or self._handed_out)
        if has_messages:  # its own messages may change, too
            self._idle.pass_on(self)
        elif not self._lead():
            self._changed = True
            return True
        # No longer than the table's options are known, so that later messages need not wait for a reload.
        changes = self._changes
        is_watched = not (has_messages or self._is_exclusive)
        longest = self._row.known_for(changes.row_unchanged_since) if is_watched else self._row.fresh_for
        self._in_vain, self._changed = pause(self._row, changes, self._stop, longest, self._request, self._in_vain)
        if is_watched:
            self._row.keep(changes.row_unchanged_since)
        return self._changed

    def _lead(self) -> bool:
        """Sleep while another consumer of this process watches the database; return False once nudged."""
        due_in = None
        while True:
            if self._idle.leads(self):
                if not self._is_exclusive or self._look_for_others():
                    return True
                continue
            patience = LEADS_FOR
            if self._is_exclusive:
                is_first, due_in = due_in is None, self._idle.due_in(self) or self._own_due_in()
                if not (due_in or is_first):
                    return False
                patience = min(patience, due_in or _IN_VAIN_EVERY)  # the last claim of due messages returned none
            if self._stop.wait(patience):
                return False

    def _own_due_in(self) -> float:
        if self.consumer is None:
            return 0
        due_in = seconds_until_own_due(self._row.last_seen, [self.consumer], self._request)[self.consumer].seconds
        if due_in:
            self._idle.expect(self, self.consumer, due_in)
        return due_in

    def _look_for_others(self) -> bool:
        """Wake the others that have to claim.

        Return False if one of them leads from now on, because this one gets no groups.
        """
        names = self._idle.to_look_for(changed=self._changed and self._in_vain <= 1)
        if not names or self.consumer is None:
            return True
        found = seconds_until_own_due(self._row.last_seen, sorted({*names, self.consumer}), self._request)
        other = self._idle.note_due(found)
        if other is None or found[self.consumer].has_room:
            return True
        self._idle.pass_on(self, other)
        return False

    @property
    def claims_every(self) -> float:
        """Seconds after which it claims although nothing changed: a claim also repairs faults that no change shows."""
        return min(_CLAIMS_EVERY, self._row.last_seen.options.poll_interval / _SECOND)

    def need_no_notifications(self) -> None:
        """Stop writers' notifications until the next `wait`: a busy consumer polls by itself."""
        if self._changes_seen is not None:
            self._changes_seen.disarm()

    def nudge(self) -> None:
        """End a `wait`; called by other threads."""
        self._stop.nudge()

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return messages from `take` to the table, due at once and uncounted, including those in handling."""
        give_back(self._row.last_seen, deliveries)

    def let_go(self, delivery: Delivery | None = None) -> None:
        """Return all waiting messages to the table, and a delivery whose handling has not begun. Stays open."""
        with self._in_use():  # `close` of another thread would drop a delivery that is put back meanwhile
            if delivery is not None:
                self.put_back(delivery)
            self.give_back(tuple(self._waiting))  # if that fails, they still wait: later ones must not overtake them
            self._waiting.clear()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        while not self._stop.is_set():
            try:
                with self._leading():
                    delivery = self._next()
            except (UnavailableError, RefusedError, InvalidArgumentError) as error:
                self._wait_after(error)
                continue
            self._failures.end(self._row.last_seen.name)
            if delivery is not None:
                return delivery
        raise StopIteration

    def poll(self) -> Delivery | float:
        """Return the next delivery; if none is ready, the seconds to wait before the next call.

        It never waits, so one thread can poll many subscriptions. Infinity means until one of the changes that
        `watched` describes, or forever if the subscription was stopped.
        """
        self._waits = False
        while not self._stop.is_set():
            self._pause = 0.0
            try:
                delivery = self._next()
            except (UnavailableError, RefusedError, InvalidArgumentError) as error:
                self._wait_after(error)
                return self._pause
            self._failures.end(self._row.last_seen.name)
            if delivery is not None:
                return delivery
            if self._pause:
                return self._pause
        return math.inf

    def _next(self) -> Delivery | None:
        """Return the next delivery, or None after a wait."""
        context = self._row.now()
        self._purge(context, 2 * PURGE_EVERY)
        now = context.backend.now_about()
        self._look(now)
        with self._in_use():
            if self._closed:
                return None
            before = len(self._waiting)
            following = self._waiting.take(context, now)
            self._changed |= len(self._waiting) < before - (following is not None)  # it has dropped some
            if following is not None:
                return self._hand_out(following)
        self._handed_out = [one for one in self._handed_out if self._is_out(one, now)]
        self._see_committed(context, now)
        in_hand = sum(not one.undecided for one in self._handed_out) + len(self._waiting)
        usual = context.options.batch_size if context.options.max_attempts is None else 1  # each uses an attempt
        room = min(self._limit or usual, context.options.cache_size - in_hand)
        room, rate_pause = self._allowed(room)
        if rate_pause:
            self._idle.pass_on(self)
            self._sleep(min(rate_pause, LOOK_EVERY))
            self._changed = True
            return None
        if room <= 0:
            # The end of a delivery nudges; that of a lease does not.
            ends = min((one.lease_until for one in (*self._handed_out, *self._waiting)), default=now)
            self._sleep(min(LOOK_EVERY, max(_FULL_FOR, (ends - now) / _SECOND)))
            self._changed = True
            return None
        # While nothing changes, a look costs less than a claim.
        if self._changed or moments.monotonic() - self._claimed_at >= self.claims_every:
            with self._in_use():
                found = [] if self._closed else self._claim(room)
                self._waiting.extend(found)
            self._looked_at = now
            if found:
                self.need_no_notifications()
                return None
        self._purge(context, PURGE_EVERY)
        if self._waits:
            self._wait_for_more()
        else:
            self._pause = math.inf
        return None

    def _claim(self, room: int) -> list[Delivery]:
        self._claims = True
        self._claimed_at = moments.monotonic()
        self._changed = True
        found = receive(self._row, self._callers, min(room, self._most), self._request)
        if self.when_claimed is not None:
            self.when_claimed(moments.monotonic() - self._claimed_at, len(found))
        self._claims = False
        self._most = min(2 * self._most, _MOST)
        if found:
            self._in_vain = 0
            self._idle.pass_on(self)
        if self._rate is not None:
            self._rate_due = self._rate.taken(self._rate_due, moments.monotonic_ns(), len(found))
        return found

    def _hand_out(self, delivery: Delivery) -> Delivery:
        delivery.when_over(self._stop.nudge)
        self._handed_out.append(delivery)
        if self._heartbeat:
            delivery.waiting = self._waiting
        else:
            delivery.without_heartbeat()
        return delivery

    def _is_out(self, delivery: Delivery, now: int) -> bool:
        return not (delivery.over or delivery.lost) and delivery.lease_until > now

    def _look(self, now: int) -> None:
        """Check whether waiting deliveries are still ours, if that may have changed or after a second."""
        if self._waiting and (self._in_doubt or not 0 <= now - self._looked_at < LOOK_AGAIN_AFTER):
            self._in_doubt = False
            discard(tuple(self._waiting), extended=any(self._is_out(one, now) for one in self._handed_out))
            self._looked_at = now

    def _see_committed(self, context: TableContext, now: int) -> None:
        """Drop deliveries that callers' transactions acked; at most once a second."""
        if not 0 <= now - self._saw_at < LOOK_AGAIN_AFTER and any(one.undecided for one in self._handed_out):
            see_committed(context, self._handed_out)
            self._saw_at = now
            self._handed_out = [one for one in self._handed_out if self._is_out(one, now)]

    def note_acked(self, ids: Collection[Any]) -> None:
        """Note that these messages were acked by their ids; called by other threads."""
        for delivery in (*self._waiting, *self._handed_out):
            if delivery.id in ids:
                delivery.lost = not delivery.over
        self._in_doubt |= self._claims
        self._stop.nudge()

    def note_changes(self) -> None:
        """Note that waiting messages may be gone; called by other threads."""
        self._in_doubt = True

    def _allowed(self, room: int) -> tuple[int, float]:
        """Return how many messages the subscriber's own rate limit allows, and the seconds to wait if none."""
        if self._rate is None or room <= 0:
            return room, 0
        now = moments.monotonic_ns()
        allowed = self._rate.allowed(self._rate_due, now, room)
        return allowed, 0 if allowed else (self._rate.free_at(self._rate_due) - now) / _SECOND

    def _wait_after(self, error: UnavailableError | RefusedError | InvalidArgumentError) -> None:
        """Wait before the next claim. Raise the error if waiting cannot help, or if `patience` has run out.

        Raises `NotFoundError` or `SchemaError` if the message table was dropped or lost a column, and
        `InvalidArgumentError` if the table lost a column by which messages are selected.
        """
        if not isinstance(error, UnavailableError):
            context = self._row.read()
            if isinstance(error, ForbiddenError):
                raise error
            select_on(context, self._request.selection)  # another invalid value comes from a row
            self._most = max(1, self._most // 2)  # one row that a trigger refuses must not block the rows before it
        pause = self._failures.note(self._row.last_seen.name, error)
        is_timeout = isinstance(error, TimedOutError)  # the database answers, and its limits may be changed
        if not is_timeout and moments.monotonic() - (self._failures.since or 0) > self.patience:
            raise error
        self._sleep(pause)

    def _purge(self, context: TableContext, after: float) -> None:
        self._ticking.see(context)
        self._purging.purge(context, after, has_messages=bool(self._waiting or self._handed_out))

    def _sleep(self, seconds: float) -> None:
        if self._waits:
            self._stop.wait(seconds)
        else:
            self._pause = max(seconds, 0.0)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Pickle the table, and subscribe in the other process")
