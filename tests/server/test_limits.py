"""Large responses wait in memory for their clients only up to a limit, and are sent as fast as these read."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from waterclock.server import limits
from waterclock.server.limits import SENT_AT_ONCE, PacedResponses

LARGE = 10 * SENT_AT_ONCE + 7


class Client:
    """A client that reads each part of a response when it is told to."""

    def __init__(self, app: PacedResponses, method: str = "GET") -> None:
        self._app = app
        self._method = method
        self._reads = asyncio.Semaphore(0)
        self.got: list[Message] = []

    async def _send(self, message: Message) -> None:
        self.got.append(message)
        if message["type"] == "http.response.body":
            await self._reads.acquire()

    async def _receive(self) -> Message:
        raise AssertionError("nothing of the request is read")

    def ask(self) -> asyncio.Task[None]:
        scope = {"type": "http", "method": self._method, "headers": []}
        return asyncio.ensure_future(self._app(scope, self._receive, self._send))

    def read(self, parts: int = 1_000) -> None:
        for _ in range(parts):
            self._reads.release()

    @property
    def status(self) -> int:
        return self.got[0]["status"]

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.got[1:])


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("x" * LARGE)(scope, receive, send)


async def until_all_wait() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def test_a_client_that_reads_slowly_gets_the_whole_response_part_by_part() -> None:
    async def run() -> None:
        client = Client(PacedResponses(large))
        task = client.ask()
        await until_all_wait()
        assert len(client.body) == SENT_AT_ONCE
        client.read()
        await task
        assert client.body == b"x" * LARGE
        assert [one["more_body"] for one in client.got[1:]] == [True] * 10 + [False]

    asyncio.run(run())


def test_large_responses_are_refused_while_too_many_bytes_wait_for_their_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_UNSENT", 2 * LARGE)

    async def run() -> None:
        app = PacedResponses(large)
        slow = [Client(app), Client(app)]
        tasks = [each.ask() for each in slow]
        await until_all_wait()
        refused = Client(app)
        refused.read()
        await refused.ask()
        assert (refused.status, [len(each.body) for each in slow]) == (503, [SENT_AT_ONCE] * 2)
        assert b"too many large responses" in refused.body
        tasks[0].cancel()  # its client is gone
        await until_all_wait()
        served = Client(app)
        served.read()
        await served.ask()
        assert (served.status, len(served.body)) == (200, LARGE)
        slow[1].read()
        await tasks[1]

    asyncio.run(run())


def test_small_responses_are_sent_whatever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_UNSENT", 0)

    async def run() -> None:
        client = Client(PacedResponses(PlainTextResponse("x")))
        client.read()
        await client.ask()
        assert (client.status, client.body) == (200, b"x")

    asyncio.run(run())
