"""Limits how many unfinished messages each stream of deliveries has sent.

A stream sends no more messages than its consumer can hold. A message counts until it is acked or returned through this
server, or until its lease ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress

from waterclock._support import moments
from waterclock.tables.consumers.delivery import Delivery

Key = tuple[int, int]
"""The claim of a delivery, and its row."""


def key_of(delivery: Delivery) -> Key:
    return delivery.leased.claim_id, delivery.leased.seq


class DeliveryStream:
    """The unfinished deliveries of one stream. Its methods run in the event loop."""

    def __init__(self, streams: DeliveryStreams, limit: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._streams = streams
        self._limit = limit
        self._until: dict[Key, float] = {}
        self._has_room = asyncio.Event()

    async def room(self, longest: float) -> int:
        """Return how many deliveries it may send; waits for some room for at most ``longest`` seconds."""
        now = moments.monotonic()
        for key in [key for key, until in self._until.items() if until <= now]:
            self.end(key)
        if len(self._until) >= self._limit:
            self._has_room.clear()
            left = min(self._until.values()) - now
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0, min(left, longest))):
                    await self._has_room.wait()
        return self._limit - len(self._until)

    def send(self, delivery: Delivery, lease: float) -> None:
        """Record a delivery whose lease lasts for this many seconds."""
        key = key_of(delivery)
        self._until[key] = moments.monotonic() + lease
        self._streams.add(key, self)

    def extend(self, key: Key, lease: float) -> None:
        """Note that a delivery was extended."""
        if key in self._until:
            self._until[key] = moments.monotonic() + lease

    def end(self, key: Key) -> None:
        """Note that a delivery is over."""
        if self._until.pop(key, None) is not None:
            self._streams.remove(key)
        self._has_room.set()

    def close(self) -> None:
        """Forget all."""
        for key in self._until:
            self._streams.remove(key)


class DeliveryStreams:
    """The streams of a server, by the deliveries that they have sent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[Key, DeliveryStream] = {}

    def add(self, key: Key, stream: DeliveryStream) -> None:
        with self._lock:
            self._streams[key] = stream

    def remove(self, key: Key) -> None:
        with self._lock:
            self._streams.pop(key, None)

    def note_ended(self, deliveries: Iterable[Delivery]) -> None:
        """Note that deliveries were acked or given back, or that their leases were lost."""
        for one in deliveries:
            key = key_of(one)
            if (stream := self._find(key)) is not None:
                stream.loop.call_soon_threadsafe(stream.end, key)

    def note_extended(self, deliveries: Iterable[Delivery], lease: float) -> None:
        """Note that leases were extended to so many seconds from now."""
        for one in deliveries:
            key = key_of(one)
            if (stream := self._find(key)) is not None:
                stream.loop.call_soon_threadsafe(stream.extend, key, lease)

    def _find(self, key: Key) -> DeliveryStream | None:
        with self._lock:
            return self._streams.get(key)
