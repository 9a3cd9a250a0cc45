"""Limits the number of connections, and the time in which clients must send requests and read responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 900
"""Maximum connections: by default a process may open 1,024 files, which include the database's connections."""

HEADERS_WITHIN = 10.0
"""Seconds for the headers of a request.

Otherwise a client that sends a byte now and then would keep its connection forever.
"""

BODY_WITHIN = 60.0
"""Seconds for the body of a request: enough for 16 MiB at 2.5 Mbit/s."""

READS_WITHIN = 30.0
"""Seconds within which a client must read some of a response that is waiting for it."""

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class ClientConnection(H11Protocol):
    """The connection of one client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sending = _Timer(self.loop)
        self._sends_body = False
        self._reading = _Timer(self.loop)
        self._unread = 0

    def connection_made(self, transport: Any) -> None:
        """Refuse it if there are too many; the others continue."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(_FULL)
            transport.close()
        else:
            self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Take data, and wait for the rest of an incomplete request."""
        super().data_received(data)
        self._expect_request()

    def _expect_request(self) -> None:
        sends_body = self.conn.their_state is h11.SEND_BODY
        if not sends_body and self.conn.their_state is not h11.IDLE:
            self._sending.stop()
        elif not self._sending.runs or sends_body != self._sends_body:
            self._sends_body = sends_body
            self._sending.start(BODY_WITHIN if sends_body else HEADERS_WITHIN, self.transport.close)

    def pause_writing(self) -> None:
        """Watch whether the client reads."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """End the watch."""
        super().resume_writing()
        self._reading.stop()

    def _watch_reading(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reading.start(READS_WITHIN, self._check_reading)

    def _check_reading(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:
            self._watch_reading()
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the watches."""
        self._sending.stop()
        self._reading.stop()
        super().connection_lost(exc)


class _Timer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, function: Callable[[], object]) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, function)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
