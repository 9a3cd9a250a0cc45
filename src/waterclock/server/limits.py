"""Limits the server's resources: bytes of bodies, open streams, requests per token, and checks of invalid tokens."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waterclock.server.errors import http_error

MAX_BODY = 16 << 20
"""Maximum bytes of a request's body: twice the largest append on MariaDB by default."""

MAX_HELD = 256 << 20
"""Maximum bytes of all bodies in memory. Parsed JSON takes several times as much."""

MAX_UNSENT = 256 << 20
"""Maximum bytes of large responses that wait until their clients read them: without it, slow clients took gigabytes."""

SENT_AT_ONCE = 64 << 10
"""Bytes of a large response that are handed to its connection at once, as much as that buffers while it waits."""

MAX_STREAMS = 500
"""Maximum waiting and streaming requests at a time: each has a socket, and by default a process may open 1,024 files.
"""

MAX_THREADS = 12
"""Maximum concurrent calls of the database. Others wait in the event loop. An engine's pool has 15 connections.

Some are set apart for requests that wait for messages, and for large reads, so that neither occupies all of them.
"""

MAX_WRONG_TOKENS = 20
"""Maximum wrong tokens of an address in a minute: each costs a query. No one types as many."""

MAX_REQUESTS = 500
"""Maximum requests per second of each token, unless the operator sets another limit: half of what one core answers.

So a token that is used in an endless loop leaves time for others. A second's worth may come at once.
"""

_TOO_LARGE = 413
_MINUTE = 60.0
_MOST_ADDRESSES = 10_000
_MOST_TOKENS = 10_000


class LimitedBodies:
    """Refuse bodies larger than `MAX_BODY`, as declared or as received, and all bodies while too many are in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        size = int(declared[:20]) if declared.isascii() and declared.isdecimal() else 0
        held = 0

        async def receive_some() -> Message:
            nonlocal held
            message: Message = {} if size > MAX_BODY else await receive()
            held += len(message.get("body", b""))
            self._held += len(message.get("body", b""))
            if max(size, held) > MAX_BODY:
                raise HTTPException(_TOO_LARGE, f"the body must have at most {MAX_BODY} bytes")
            if held and self._held > MAX_HELD:
                raise HTTPException(503, "too many large requests; try again later", {"Retry-After": "5"})
            return message

        try:
            await self._app(scope, receive_some, send)
        finally:
            self._held -= held


class PacedResponses:
    """Send a large response in parts, as fast as its client reads, and refuse it while too many bytes wait for that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._unsent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = False

        async def send_in_parts(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                size = int(Headers(raw=message["headers"]).get("content-length", 0))
                refused = size > SENT_AT_ONCE and self._unsent + size > MAX_UNSENT
                if refused:
                    await _too_many_responses()(scope, receive, send)
            if refused:
                return
            body = message.get("body", b"")
            if len(body) <= SENT_AT_ONCE:
                await send(message)
                return
            self._unsent += len(body)
            try:
                for first in range(0, len(body), SENT_AT_ONCE):
                    after = first + SENT_AT_ONCE
                    more = after < len(body) or message.get("more_body", False)
                    await send({**message, "body": body[first:after], "more_body": more})
            finally:
                self._unsent -= len(body)

        await self._app(scope, receive, send_in_parts)


def _too_many_responses() -> Response:
    text = "too many large responses wait for slow clients; try again later"
    return http_error(HTTPException(503, text, {"Retry-After": "5"}))


class StreamLimit:
    """Counts the requests that wait or stream."""

    def __init__(self, most: int = MAX_STREAMS) -> None:
        self._most = most
        self._open = 0

    @contextmanager
    def one(self) -> Generator[None]:
        """Count a request until the block ends; refuse it if there are too many."""
        if self._open >= self._most:
            raise HTTPException(503, "too many requests are waiting; try again later", {"Retry-After": "5"})
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class RequestRates:
    """The request rate of each token. Used in the event loop alone.

    Parameters
    ----------
    most
        Maximum requests per second.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free_at: dict[str, float] = {}

    def check(self, name: str, now: float) -> None:
        """Count a request of the token of this name, and refuse it if there are too many; ``now`` in seconds."""
        ahead = max(self._free_at.get(name, now) - now, 0.0)
        if ahead * self._most > self._most - 1:
            text = f"the token exceeds its rate limit of {self._most}/s; try again later"
            raise HTTPException(429, text, {"Retry-After": "1"})
        if len(self._free_at) >= _MOST_TOKENS:
            self._free_at = {each: at for each, at in self._free_at.items() if at > now}
        self._free_at[name] = now + ahead + 1 / self._most


class WrongTokens:
    """The wrong tokens that each address has sent in this minute. Used in the event loop alone.

    A browser sends an expired one with every request, so each counts once, and is not looked up again.
    """

    def __init__(self) -> None:
        self._sent: dict[str, set[str]] = {}
        self._until = -1.0

    def is_known(self, address: str, text: str, now: float) -> bool:
        """Return whether the address has sent it in this minute; ``now`` in seconds."""
        return now < self._until and text in self._sent.get(address, ())

    def check(self, address: str, now: float) -> None:
        """Refuse an address that has sent too many in this minute."""
        if now < self._until and len(self._sent.get(address, ())) >= MAX_WRONG_TOKENS:
            left = {"Retry-After": str(int(self._until - now) + 1)}
            raise HTTPException(429, "too many invalid tokens; try again later", left)

    def note(self, address: str, text: str, now: float) -> None:
        """Count a wrong token."""
        if now >= self._until or len(self._sent) >= _MOST_ADDRESSES:
            self._sent.clear()
            self._until = now + _MINUTE
        self._sent.setdefault(address, set()).add(text)
