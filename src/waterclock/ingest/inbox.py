"""The inbox, which holds messages that were received but not appended yet.

It is bounded, so that a slow or unavailable database does not fill the memory.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

from waterclock._support import moments

MOST_BYTES = 32 << 20
"""Maximum bytes of waiting messages. With Python's overhead, an ingest stays within 120 MB."""

MOST_WAITING = 40_000
"""Maximum waiting messages: each takes about half a kilobyte in addition to its payload."""

MOST_AT_ONCE = 4_000
"""Maximum messages of one append: beyond it, an entry costs no less per message."""

MOST_BYTES_AT_ONCE = 4 << 20
"""Maximum bytes of one append: by default, MariaDB takes entries of up to 8 MiB."""

ENOUGH_AT_ONCE = 1_000
"""With this many messages, an append does not wait for more."""

LONGEST_GATHERING = 0.05
"""Seconds that a message waits for others of its entry; it should be readable within 250 ms."""

QUIET = 0.005
"""Seconds without another message after which an append stops waiting: the broker may have reached its maximum in
flight, and sends no more until these are acked.
"""


class Receivable(Protocol):
    """A message that waits for its append."""

    @property
    def size(self) -> int:
        """Approximate bytes that it takes."""
        ...

    @property
    def qos(self) -> int:
        """0 if the sender would not send it again."""
        ...


T = TypeVar("T", bound=Receivable)


class Inbox(Generic[T]):
    """Messages of all connections, in the order of their receipt.

    Messages at QoS 0 may fill half of it: the broker does not keep them, so above that they are dropped, to leave room
    for messages that it keeps.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_waiting: int = MOST_WAITING) -> None:
        self._most_bytes = most_bytes
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._bytes = 0
        self._first_at = self._last_at = 0.0
        self._is_wanted = True

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def bytes(self) -> int:
        """Bytes of the waiting messages."""
        return self._bytes

    def put(self, received: T) -> bool:
        """Add a message; False if the inbox is full.

        Never waits, because the caller's thread also answers the broker.
        """
        share = 1 if received.qos else 2
        with self._changed:
            if self._waiting and (
                self._bytes + received.size > self._most_bytes // share
                or len(self._waiting) >= self._most_waiting // share
            ):
                return False
            now = moments.monotonic()
            if not self._waiting:
                self._first_at = now
                self._changed.notify_all()
            elif len(self._waiting) + 1 == ENOUGH_AT_ONCE:
                self._changed.notify_all()
            self._last_at = now
            self._waiting.append(received)
            self._bytes += received.size
            return True

    def take(self) -> list[T]:
        """Wait for messages, gather those that follow closely, and take them in order; none once it is closed."""
        with self._changed:
            moments.wait_for(self._changed, lambda: self._waiting or not self._is_wanted)
            while (left := self._gathering_left()) > 0:
                moments.wait(self._changed, left)
            return self._taken()

    def wait_for_take(self, seconds: float) -> None:
        """Wait until messages are taken, at most this long."""
        with self._changed:
            moments.wait(self._changed, seconds)

    def close(self) -> None:
        """Close the inbox: `take` then returns the remaining messages without waiting."""
        with self._changed:
            self._is_wanted = False
            self._changed.notify_all()

    def _gathering_left(self) -> float:
        if not self._waiting or not self._is_wanted or len(self._waiting) >= ENOUGH_AT_ONCE:
            return 0
        now = moments.monotonic()
        return min(self._first_at + LONGEST_GATHERING, self._last_at + QUIET) - now

    def _taken(self) -> list[T]:
        taken: list[T] = []
        size = 0
        while self._waiting and len(taken) < MOST_AT_ONCE:
            size += self._waiting[0].size
            if taken and size > MOST_BYTES_AT_ONCE:
                break
            received = self._waiting.popleft()
            self._bytes -= received.size
            taken.append(received)
        self._first_at = moments.monotonic()
        self._changed.notify_all()
        return taken
