"""The batching producer: accepts one message at a time, and appends many as one entry."""

from __future__ import annotations

import logging
import threading
from typing import NoReturn

from waterclock._support import moments
from waterclock._support.closing import Closing
from waterclock._support.log_events import event
from waterclock._support.pickling import refuse_pickling
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.message import Message
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.entries import encode_entry
from waterclock.topics.model.producer_state import ProducerAppend, check_sequence
from waterclock.topics.writing.appending import append_entry
from waterclock.topics.writing.producers import take_over

_log = logging.getLogger(__name__)

_OVERHEAD = 64  # approximate bytes of a message in addition to its payload


class Producer(Closing):
    """Collects messages and appends them as entries, in the background. Made by `Topic.producer`; safe between threads.

    Messages are numbered from 0, or by the caller, who can then resend messages that may have arrived. Opening a
    producer fences every earlier one of the same name.

    Parameters
    ----------
    storage
        The topic.
    name
        The producer's name in the topic.
    linger
        How long a message waits for others, ns.
    max_bytes
        Size of the waiting messages at which they are appended at once.

    Attributes
    ----------
    last_sequence
        Number of the last message that is stored, or was rejected; None before the first. Continue after it.
    rejected
        How many messages the topic rejected since this producer was opened; each is a warning in the log.
    """

    def __init__(self, storage: Storage, name: str, linger: int, max_bytes: int) -> None:
        self._storage = storage
        self._name = name
        self._linger = linger / 1e9
        self._max_bytes = max_bytes
        self._producer_epoch, self.last_sequence, self._before = take_over(storage, name)
        self.rejected = 0
        self._stored_before = -1 if self.last_sequence is None else self.last_sequence
        self._next = self._stored_before + 1
        self._changed = threading.Condition()
        self._waiting: list[Message] = []
        self._bytes = 0
        self._due = 0.0  # monotonic time at which the oldest waiting message is due
        self._in_flight = False
        self._hurry = False
        self._closed = False
        self._failure: WaterclockError | None = None
        self._worker = threading.Thread(target=self._work, name=f"producer {name}", daemon=True)
        moments.start(self._worker)

    def send(self, message: Message, sequence: int | None = None) -> bool:
        """Add a message to the next entry; it is stored when `flush` or `close` returns.

        Waits while twice ``max_bytes`` are waiting: a producer is not faster than its database.

        Parameters
        ----------
        message
            The message. publish_time and receive_time are filled in when its entry is written.
        sequence
            Its number, larger than the one before; gaps are allowed. None: the next one.

        Returns
        -------
        bool
            False if the topic held the message already when this producer was opened.

        Raises
        ------
        InvalidArgumentError
            If the number is smaller than one before, and the topic does not hold that message, or has forgotten its
            number.
        WaterclockError
            The error of an earlier append, for example `ProducerFencedError`: later messages are not stored.
        """
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
            raise InvalidArgumentError(f"message must be a Message, got a {type(message).__name__}")
        with self._changed:
            self._check()
            if sequence is not None:
                if check_sequence(sequence, 1) <= self._stored_before:
                    self._insist_on(sequence)
                    return False
                self._skip_to(sequence)
            moments.wait_for(self._changed, lambda: self._bytes < 2 * self._max_bytes or self._failure)
            self._check()
            if not self._waiting:
                self._due = moments.monotonic() + self._linger
            self._waiting.append(message)
            self._next += 1
            self._bytes += len(message.payload) + _OVERHEAD
            self._changed.notify_all()
            return True

    def flush(self) -> None:
        """Wait until everything that was sent is stored.

        Raises
        ------
        WaterclockError
            The error of an append: later messages are not stored.
        """
        with self._changed:
            self._drain()

    def close(self) -> None:
        """Flush, and end the background thread. A later `send` raises an error."""
        with self._changed:
            try:
                if not self._closed:
                    self._drain()
            finally:
                self._closed = True
                self._changed.notify_all()
        moments.join(self._worker)

    def _is_busy(self) -> bool:
        return bool(self._waiting) or self._in_flight

    def _insist_on(self, sequence: int) -> None:
        """Raise unless a message with an earlier number is known to be stored."""
        if not self._before.holds(sequence):
            known = "was never appended" if self._before.holds(sequence) is False else "may never have been appended"
            raise InvalidArgumentError(
                f"sequence of producer {self._name!r} must be greater than {self._stored_before} (the last one stored),"
                f" got {sequence}: that number {known}"
            )

    def _skip_to(self, sequence: int) -> None:
        if sequence < self._next:
            raise InvalidArgumentError(
                f"sequence must be greater than {self._next - 1} (the last number sent), got {sequence}"
            )
        if sequence > self._next:
            self._drain()  # an entry's messages are numbered without a gap
            self._next = sequence

    def _drain(self) -> None:
        self._check()
        self._hurry = True
        self._changed.notify_all()
        moments.wait_for(self._changed, lambda: not self._is_busy() or self._failure)
        self._hurry = False
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise InvalidArgumentError(f"cannot send with producer {self._name!r}: it is closed. Open a new producer")

    def _work(self) -> None:
        while True:
            with self._changed:
                batch = self._next_batch()
                if batch is None:
                    return
                first = self._next - len(batch)
            try:
                self._append(batch, first)
            except WaterclockError as error:
                self._fail(error)
                return
            except Exception as error:  # noqa: BLE001  # a thread has no caller to raise to: the next caller gets it
                self._fail(WaterclockError(f"producer {self._name!r} cannot append: {error!r}"))
                return

    def _next_batch(self) -> list[Message] | None:
        """Wait until an entry is due, and take it; None when the producer is closed."""
        while not self._is_due():
            if self._closed:
                return None
            moments.wait(self._changed, max(self._due - moments.monotonic(), 0) if self._waiting else None)
        batch, self._waiting, self._bytes = self._waiting, [], 0
        self._in_flight = True
        self._changed.notify_all()
        return batch

    def _is_due(self) -> bool:
        if not self._waiting:
            return False
        return self._hurry or self._closed or self._bytes >= self._max_bytes or moments.monotonic() >= self._due

    def _append(self, batch: list[Message], first: int) -> None:
        entry = encode_entry(batch, self._storage.backend.now_about, self._storage.ahead_limit(), with_checksum=True)
        last = first + len(batch) - 1
        append = ProducerAppend(self._name, first, last, self._producer_epoch, entry.checksum)
        rejected = append_entry(self._storage, entry, append).rejected
        if rejected:
            _log.warning(
                "producer %r: %d of %d messages were rejected, the first: %s",
                self._name,
                len(rejected),
                len(batch),
                rejected[0].reason,
                extra=event("messages_rejected", producer=self._name, count=len(rejected)),
            )
        with self._changed:
            self.rejected += len(rejected)
            self.last_sequence = last
            self._in_flight = False
            self._changed.notify_all()

    def _fail(self, error: WaterclockError) -> None:
        with self._changed:
            self._failure = error
            self._waiting, self._bytes, self._in_flight = [], 0, False
            self._changed.notify_all()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Pickle the topic, and open the producer in the other process")
