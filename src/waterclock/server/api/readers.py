"""Holds the state of a subscription's reader between two requests.

The position is in the database. This module holds only the messages that were sent but not committed yet. If a server
ends, these messages are read again.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException

from waterclock._support import moments
from waterclock._support.quoting import unknown_name
from waterclock.errors import LeaseLostError, NotFoundError, WaterclockError
from waterclock.message import Message
from waterclock.time import format_time
from waterclock.topics.subscription import Subscription
from waterclock.topics.topic import Topic

LEASE = 30.0
"""Seconds for which a subscription stays with a reader that sends no requests."""

_MOST = 1_000


@dataclass(slots=True)
class _Reader:
    place: tuple[str, str]
    subscription: Subscription
    used_at: float
    cursor: str = ""
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    lock: threading.Lock = field(default_factory=threading.Lock)


class Readers:
    """The readers of a server. Thread-safe.

    A cursor names a reader and its last answer. A reader that missed an answer sends an older cursor, and begins again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}

    def read(self, topic: Topic, name: str, cursor: str | None, limit: int) -> tuple[str, list[Message]]:
        """Continue reading, without ``cursor`` at the committed position; return the next cursor and the messages."""
        reader = self._open(topic, name) if cursor is None else self._find(topic, name, cursor)
        with reader.lock:
            if cursor is not None:
                self._check(reader, cursor)
            messages = reader.subscription.read(limit)
            reader.cursor = following = f"{reader.key}.{secrets.token_hex(8)}"
            reader.used_at = moments.monotonic()
            if cursor is None:
                with self._lock:
                    self._readers[reader.key] = reader
        return following, messages

    def commit(self, topic: Topic, name: str, cursor: str) -> None:
        """Commit all messages up to the answer with this cursor, the last one."""
        reader = self._find(topic, name, cursor)
        with reader.lock:
            self._check(reader, cursor)
            reader.subscription.commit()

    def release(self, topic: Topic, name: str, cursor: str) -> None:
        """Release the subscription to other readers."""
        reader = self._find(topic, name, cursor)
        with reader.lock:
            self._check(reader, cursor)
            self._forget(reader)

    def close(self) -> None:
        """Release all subscriptions."""
        for reader in self._all():
            self._forget(reader)

    def _all(self) -> list[_Reader]:
        with self._lock:
            return [*self._readers.values()]

    def _open(self, topic: Topic, name: str) -> _Reader:
        now = moments.monotonic()
        for reader in [one for one in self._all() if now - one.used_at > LEASE]:
            self._forget(reader)
        if len(self._readers) >= _MOST:
            raise HTTPException(503, "too many subscriptions are being read; try again later", {"Retry-After": "30"})
        known = {one.name: one for one in topic.subscriptions()}
        if name not in known:
            remedy = "create it first"
            raise NotFoundError(unknown_name("subscription", name, known, remedy, f"topic {topic.name!r}"))
        until = known[name].held_until
        if until is not None and until > topic.storage.backend.now():
            raise HTTPException(409, f"another reader holds the subscription until {format_time(until)}")
        return _Reader((topic.name, name), topic.subscribe(name, lease=f"{LEASE:g}s"), now)

    def _find(self, topic: Topic, name: str, cursor: str) -> _Reader:
        with self._lock:
            reader = self._readers.get(cursor.partition(".")[0])
        if reader is None or reader.place != (topic.name, name):
            raise LeaseLostError(
                "cursor must be the cursor of the last response, got an unknown cursor. Read without a cursor"
            )
        return reader

    def _check(self, reader: _Reader, cursor: str) -> None:
        """Check a cursor.

        The reader is locked, so that a repeat of a running request does not read further messages.
        """
        if reader.cursor != cursor:
            self._forget(reader)
            raise LeaseLostError(
                "cursor must be the cursor of the last response, got an older cursor. Read without a cursor"
            )
        reader.used_at = moments.monotonic()

    def _forget(self, reader: _Reader) -> None:
        with self._lock:
            self._readers.pop(reader.key, None)
        with suppress(WaterclockError):  # otherwise its lease ends
            reader.subscription.close()
