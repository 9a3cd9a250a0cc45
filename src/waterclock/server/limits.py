"""Limits on what one caller can make the server hold: bytes of a body, and open streams."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 16 << 20
"""Bytes of a request's body. Twice what an append on MariaDB takes as it is installed."""

MAX_STREAMS = 500
"""Waiting and streaming requests at a time: each holds a socket, and a process may open 1,024 files by default."""

MAX_THREADS = 12
"""Calls of the database at a time. Others wait in the loop. An engine's pool has 15 connections."""

_TOO_LARGE = 413


class LimitedBodies:
    """Refuse bodies that are larger than `MAX_BODY`, also those whose length is not declared."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = MAX_BODY

        async def receive_some() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(_TOO_LARGE, f"the body must have at most {MAX_BODY} bytes")
            return message

        await self._app(scope, receive_some if scope["type"] == "http" else receive, send)


class StreamLimit:
    """Counts the requests that wait or stream."""

    def __init__(self, most: int = MAX_STREAMS) -> None:
        self._most = most
        self._open = 0

    @contextmanager
    def one(self) -> Generator[None]:
        """Count one until the block ends; refuse it if there are too many."""
        if self._open >= self._most:
            raise HTTPException(503, "too many requests are waiting; try again later", {"Retry-After": "5"})
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
