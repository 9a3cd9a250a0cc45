"""Shares the answer to a read among identical requests that arrive within a second of its start.

So any number of viewers of one page cost the database as much as one viewer. Requests are identical if they have the
same sender, path, query and accepted formats. The sender's token is checked first, for each request. An answer may be
up to a second old. But it includes every change that this server confirmed before the request arrived, because each
change drops all shared answers. Only routes marked with `shared` take part. Payloads and deliveries are never shared.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, QueryParams
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waterclock._support import moments

SHARED_FOR = 1.0
"""Seconds after the start of a read for which its answer is shared."""

MOST_SHARED = 256
"""Maximum answers in memory: together at most 16 MiB."""

LARGEST_SHARED = 64 << 10
"""Maximum bytes of a shared answer."""

LONGEST_REQUEST = 2_000
"""Maximum bytes of the path, query and headers that tell requests apart. A longer request is not shared."""

_OK = 200
_ASKS_FOR_NEWEST = re.compile(r"no-cache|max-age=0\b", re.IGNORECASE)
"""Values of Cache-Control in requests: programs the first, browsers the second when a page is reloaded."""

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., object])
_shared_endpoints: set[Callable[..., object]] = set()


def shared(endpoint: _Endpoint) -> _Endpoint:
    """Mark the endpoint of a route as one whose answers may be shared."""
    _shared_endpoints.add(endpoint)
    return endpoint


def shared_paths(routers: Iterable[tuple[APIRouter, str]]) -> list[re.Pattern[str]]:
    """Return the patterns of the paths, in routers with their prefixes, whose endpoints are marked with `shared`."""
    return [
        compile_path(prefix + route.path)[0]
        for router, prefix in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.endpoint in _shared_endpoints
    ]


class _Read(NamedTuple):
    """A read and its answer: the messages of the response; None if it is not shared."""

    until: float
    answer: asyncio.Future[list[Message] | None]


class SharedReads:
    """Answer identical reads with one call of the application. Needs the sender in ``state``, as `Access` sets it."""

    def __init__(self, app: ASGIApp, paths: list[re.Pattern[str]]) -> None:
        self._app = app
        self._paths = paths
        self._reads: dict[tuple[object, ...], _Read] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] != "GET":
            await self._change(scope, receive, send)
        elif (key := self._key(scope)) is None:
            await self._app(scope, receive, send)
        else:
            await self._read(key, scope, receive, send)

    def _key(self, scope: Scope) -> tuple[object, ...] | None:
        """Return what identical reads have in common; None if the read is not shared."""
        path, query = scope["path"], scope["query_string"]
        texts = (path, query, Headers(scope=scope).get("accept", ""))
        if sum(map(len, texts)) > LONGEST_REQUEST or not any(each.match(path) for each in self._paths):
            return None
        if query and "payload" in QueryParams(query):
            return None
        state = scope["state"]
        return state["caller"], state["credential"], *texts

    async def _change(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_after_dropping(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._reads.clear()
            await send(message)

        try:
            await self._app(scope, receive, send_after_dropping)
        finally:
            self._reads.clear()

    async def _read(self, key: tuple[object, ...], scope: Scope, receive: Receive, send: Send) -> None:
        now = moments.monotonic()
        found = self._reads.get(key)
        asked = Headers(scope=scope).get("cache-control", "")
        if found is not None and found.until > now and _ASKS_FOR_NEWEST.search(asked) is None:
            if (answer := await asyncio.shield(found.answer)) is not None:
                for message in answer:
                    await send({**message})
                return
            await self._app(scope, receive, send)
            return
        answer = asyncio.get_running_loop().create_future()
        self._keep(key, _Read(now + SHARED_FOR, answer), now)
        try:
            await self._app(scope, receive, _Collected(answer, send))
        finally:
            if not answer.done():
                answer.set_result(None)

    def _keep(self, key: tuple[object, ...], read: _Read, now: float) -> None:
        self._reads.pop(key, None)  # the newest read is the last one
        while self._reads and (len(self._reads) >= MOST_SHARED or next(iter(self._reads.values())).until <= now):
            del self._reads[next(iter(self._reads))]
        self._reads[key] = read


class _Collected:
    """Collects a response before its own client gets it, since that client may read slowly while others wait."""

    def __init__(self, answer: asyncio.Future[list[Message] | None], send: Send) -> None:
        self._answer = answer
        self._send = send
        self._messages: list[Message] = []
        self._size = 0

    async def __call__(self, message: Message) -> None:
        if self._answer.done():
            await self._send(message)
            return
        self._messages.append({**message})
        self._size += len(message.get("body", b""))
        is_shared = self._messages[0]["status"] == _OK and self._size <= LARGEST_SHARED
        if is_shared and (message["type"] == "http.response.start" or message.get("more_body", False)):
            return
        self._answer.set_result(self._messages if is_shared else None)
        for each in self._messages:
            await self._send({**each})
