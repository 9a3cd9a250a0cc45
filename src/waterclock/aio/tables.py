"""Message tables with their groups and schedules, for asyncio."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Concatenate, ParamSpec

from waterclock.aio.calling import Facade, FacadeMethod, Plain, awaited
from waterclock.aio.deliveries import Deliveries, Delivery
from waterclock.aio.threads import CallThreads
from waterclock.aio.waiting import DatabaseWaits
from waterclock.tables.consumers.delivery import Delivery as SyncDelivery
from waterclock.tables.consumers.subscription import TableSubscription as SyncSubscription
from waterclock.tables.message_groups import MessageGroups as SyncGroups
from waterclock.tables.message_schedules import MessageSchedules as SyncSchedules
from waterclock.tables.message_table import MessageTable as SyncTable
from waterclock.tables.messages.putting.putting import MessageId
from waterclock.tables.model.options import TableOptions
from waterclock.time import Duration, to_duration

_P = ParamSpec("_P")
_SECOND = 1_000_000_000


class MessageGroups(Facade[SyncGroups]):
    """The groups of a message table; see `waterclock.tables.message_groups`."""

    list = awaited(SyncGroups.list)
    info = awaited(SyncGroups.info)
    purge = awaited(SyncGroups.purge)
    move = awaited(SyncGroups.move)
    reroute = awaited(SyncGroups.reroute)
    pause = awaited(SyncGroups.pause)
    resume = awaited(SyncGroups.resume)
    close = awaited(SyncGroups.close)
    release = awaited(SyncGroups.release)
    pin = awaited(SyncGroups.pin)
    unpin = awaited(SyncGroups.unpin)
    skip_head = awaited(SyncGroups.skip_head)
    rebalance = awaited(SyncGroups.rebalance)


class MessageSchedules(Facade[SyncSchedules]):
    """The schedules of a message table: ``await table.schedules()``."""

    _list = awaited(SyncSchedules.__call__)
    pause = awaited(SyncSchedules.pause)
    resume = awaited(SyncSchedules.resume)
    reset = awaited(SyncSchedules.reset)
    run = awaited(SyncSchedules.run)
    keep = awaited(SyncSchedules.keep)

    def __call__(self) -> Any:
        """List the schedules."""
        return self._list()


def _subscribing(method: Callable[Concatenate[SyncTable, _P], SyncSubscription]) -> FacadeMethod[_P, Deliveries]:
    """Build the method that subscribes. It makes no query yet, so that ``async for`` can use its result directly."""

    def bind(table: MessageTable) -> Callable[_P, Deliveries]:
        def subscribe(*args: _P.args, **kwargs: _P.kwargs) -> Deliveries:
            return Deliveries(partial(method, table.sync, *args, **kwargs), table.threads, table.waiting)

        return subscribe

    return FacadeMethod(method, bind)


class MessageTable(Facade[SyncTable]):
    """A queue in a SQL table; see `waterclock.MessageTable`."""

    def __init__(self, sync: SyncTable, threads: CallThreads, waiting: DatabaseWaits) -> None:
        super().__init__(sync, threads)
        self.waiting = waiting

    name = Plain[SyncTable, str](lambda table: table.name)
    options = Plain[SyncTable, TableOptions](lambda table: table.options)
    paused_until = Plain[SyncTable, int | None](lambda table: table.paused_until)

    put = awaited(SyncTable.put)
    put_many = awaited(SyncTable.put_many)
    cancel = awaited(SyncTable.cancel)
    reschedule = awaited(SyncTable.reschedule)
    retry = awaited(SyncTable.retry)
    dead_letter = awaited(SyncTable.dead_letter)
    redrive = awaited(SyncTable.redrive)
    purge = awaited(SyncTable.purge)
    peek = awaited(SyncTable.peek)
    explain = awaited(SyncTable.explain)
    failures = awaited(SyncTable.failures)
    stats = awaited(SyncTable.stats)
    dead_letters = awaited(SyncTable.dead_letters)
    alter = awaited(SyncTable.alter)
    pause = awaited(SyncTable.pause)
    resume = awaited(SyncTable.resume)
    schedule = awaited(SyncTable.schedule)
    unschedule = awaited(SyncTable.unschedule)
    tick = awaited(SyncTable.tick)
    drop = awaited(SyncTable.drop)
    subscribe = _subscribing(SyncTable.subscribe)

    @property
    def groups(self) -> MessageGroups:
        """The groups."""
        return MessageGroups(self.sync.groups, self.threads)

    @property
    def schedules(self) -> MessageSchedules:
        """The schedules."""
        return MessageSchedules(self.sync.schedules, self.threads)

    async def receive(
        self,
        limit: int | None = None,
        wait: Duration | None = None,
        consumer: str | None = None,
        *,
        where: str | None = None,
        order: str | None = None,
        parameters: Mapping[str, object] | None = None,
        max_groups: int | None = None,
    ) -> list[Delivery]:
        """Take messages that are due; see `waterclock.MessageTable.receive`. Waiting takes no extra thread."""
        chosen: dict[str, Any] = {"where": where, "parameters": parameters, "max_groups": max_groups}
        receive = partial(self.sync.receive, limit, None, consumer, order=order, **chosen)
        seconds = 0.0 if wait is None else to_duration(wait, "wait") / _SECOND
        found = await self.threads.call(receive, undo=self.sync.give_back)
        if not found and seconds > 0:
            found = await self._receive_waiting(receive, self.sync.watched(consumer, **chosen), seconds)
        return [Delivery(each, self.threads) for each in found]

    async def _receive_waiting(self, receive: Callable[[], Any], watched: Any, seconds: float) -> list[SyncDelivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        found: list[SyncDelivery] = []
        while not found and (left := until - loop.time()) > 0:
            if await self.waiting.until_due(watched, min(left, math.inf)):
                try:
                    found = await self.threads.call(receive, undo=self.sync.give_back)
                finally:
                    self.waiting.report(watched, found=bool(found))
        return found

    async def ack(self, ids: MessageId | Delivery | Iterable[MessageId | Delivery], *, connection: Any = None) -> int:
        """Ack messages; see `waterclock.MessageTable.ack`."""
        return await self.call(SyncTable.ack, (_synchronous(ids),), {"connection": connection})

    async def extend(self, deliveries: Iterable[Delivery], duration: Duration) -> int:
        """Extend the leases of deliveries; see `waterclock.MessageTable.extend`."""
        return await self.call(SyncTable.extend, (_synchronous(deliveries), duration), {})

    async def nack(self, deliveries: Iterable[Delivery], delay: Duration | None = None) -> int:
        """Return deliveries to the table; see `waterclock.MessageTable.nack`."""
        return await self.call(SyncTable.nack, (_synchronous(deliveries), delay), {})


def _synchronous(given: Any) -> Any:
    """Replace deliveries by synchronous ones; the method that gets them checks everything else."""
    if isinstance(given, Delivery):
        return given.sync
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return [each.sync if isinstance(each, Delivery) else each for each in given]
    return given
