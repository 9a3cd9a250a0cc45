"""Message tables with their groups and schedules, for asyncio."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, overload

from waterclock.aio.calling import Awaited, Facade, Plain
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

    list = Awaited(SyncGroups.list)
    info = Awaited(SyncGroups.info)
    purge = Awaited(SyncGroups.purge)
    move = Awaited(SyncGroups.move)
    reroute = Awaited(SyncGroups.reroute)
    pause = Awaited(SyncGroups.pause)
    resume = Awaited(SyncGroups.resume)
    close = Awaited(SyncGroups.close)
    release = Awaited(SyncGroups.release)
    pin = Awaited(SyncGroups.pin)
    unpin = Awaited(SyncGroups.unpin)
    skip_head = Awaited(SyncGroups.skip_head)
    rebalance = Awaited(SyncGroups.rebalance)


class MessageSchedules(Facade[SyncSchedules]):
    """The schedules of a message table: ``await table.schedules()``."""

    _list = Awaited(SyncSchedules.__call__)
    pause = Awaited(SyncSchedules.pause)
    resume = Awaited(SyncSchedules.resume)
    reset = Awaited(SyncSchedules.reset)
    run = Awaited(SyncSchedules.run)
    keep = Awaited(SyncSchedules.keep)

    def __call__(self) -> Any:
        """List the schedules."""
        return self._list()


class _Subscribing(Generic[_P]):
    """The method that subscribes. It makes no query yet, so that ``async for`` can use its result directly."""

    def __init__(self, method: Callable[Concatenate[SyncTable, _P], SyncSubscription]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, table: None, owner: type) -> Self: ...
    @overload
    def __get__(self, table: MessageTable, owner: type) -> Callable[_P, Deliveries]: ...

    def __get__(self, table: MessageTable | None, owner: type) -> Self | Callable[_P, Deliveries]:
        if table is None:
            return self

        def subscribe(*args: _P.args, **kwargs: _P.kwargs) -> Deliveries:
            return table.open_deliveries(partial(self._method, table.sync, *args, **kwargs))

        return subscribe


class MessageTable(Facade[SyncTable]):
    """A queue in a SQL table; see `waterclock.MessageTable`."""

    def __init__(self, sync: SyncTable, threads: CallThreads, waiting: DatabaseWaits) -> None:
        super().__init__(sync, threads)
        self._waiting = waiting

    name = Plain[SyncTable, str](lambda table: table.name)
    options = Plain[SyncTable, TableOptions](lambda table: table.options)
    paused_until = Plain[SyncTable, int | None](lambda table: table.paused_until)

    put = Awaited(SyncTable.put)
    put_many = Awaited(SyncTable.put_many)
    cancel = Awaited(SyncTable.cancel)
    reschedule = Awaited(SyncTable.reschedule)
    retry = Awaited(SyncTable.retry)
    dead_letter = Awaited(SyncTable.dead_letter)
    redrive = Awaited(SyncTable.redrive)
    purge = Awaited(SyncTable.purge)
    peek = Awaited(SyncTable.peek)
    explain = Awaited(SyncTable.explain)
    failures = Awaited(SyncTable.failures)
    stats = Awaited(SyncTable.stats)
    dead_letters = Awaited(SyncTable.dead_letters)
    alter = Awaited(SyncTable.alter)
    pause = Awaited(SyncTable.pause)
    resume = Awaited(SyncTable.resume)
    schedule = Awaited(SyncTable.schedule)
    unschedule = Awaited(SyncTable.unschedule)
    tick = Awaited(SyncTable.tick)
    drop = Awaited(SyncTable.drop)
    subscribe = _Subscribing(SyncTable.subscribe)

    @property
    def groups(self) -> MessageGroups:
        """The groups."""
        return MessageGroups(self.sync.groups, self.threads)

    @property
    def schedules(self) -> MessageSchedules:
        """The schedules."""
        return MessageSchedules(self.sync.schedules, self.threads)

    def open_deliveries(self, subscribe: Callable[[], SyncSubscription]) -> Deliveries:
        """Iterate over the deliveries of a subscription."""
        return Deliveries(subscribe, self.threads, self._waiting)

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
            if await self._waiting.until_due(watched, min(left, math.inf)):
                try:
                    found = await self.threads.call(receive, undo=self.sync.give_back)
                finally:
                    self._waiting.report(watched, found=bool(found))
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
