"""Identical reads within a second get one answer, which no change through this server, and no other sender, gets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

import waterclock as wc
from waterclock._support import moments
from waterclock.server import app as application
from waterclock.server import shared_reads
from waterclock.server.rights import Client, Right
from waterclock.server.shared_reads import LARGEST_SHARED, SharedReads, shared_paths

pytestmark = pytest.mark.one_database

ANN = Client("ann", frozenset({Right("read", "table", "orders")}))


class Server:
    """An application that counts its calls; each waits until it may answer."""

    def __init__(self, status: int = 200, size: int = 3) -> None:
        self.calls = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._status, self._size = status, size
        self.reads = SharedReads(self._answer, [re.compile("/page")])

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        text = str(self.calls).zfill(self._size)
        await self.may_answer.wait()
        await PlainTextResponse(text, self._status)(scope, receive, send)

    def ask(
        self, query: str = "", caller: Client = ANN, method: str = "GET", sends: Send | None = None, **headers: str
    ) -> asyncio.Task[int]:
        """Send a request; the task returns the number of the call that answered it."""
        got: list[Message] = []

        async def collect(message: Message) -> None:
            got.append(message)

        async def run() -> int:
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            state = {"caller": caller, "credential": None}
            scope = {"type": "http", "method": method, "path": "/page", "headers": raw, "state": state}
            await self.reads({**scope, "query_string": query.encode()}, None, sends or collect)  # type: ignore[arg-type]
            assert [one["type"] for one in got] == ["http.response.start", "http.response.body"] or sends is not None
            return int(got[1]["body"][-3:]) if got else 0

        return asyncio.ensure_future(run())


async def until_all_wait() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_reads_that_arrive_during_an_identical_one_get_its_answer() -> None:
    async def run() -> None:
        server = Server()
        server.may_answer.clear()
        asked = [server.ask() for _ in range(5)]
        await until_all_wait()
        asked[3].cancel()  # its client goes away
        await until_all_wait()
        server.may_answer.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [one for one in done if not isinstance(one, asyncio.CancelledError)] == [1, 1, 1, 1]
        assert server.calls == 1

    asyncio.run(run())


def test_an_answer_is_shared_for_a_second_from_the_start_of_its_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        now = 10.0
        monkeypatch.setattr(moments, "monotonic", lambda: now)
        server = Server()
        assert await server.ask() == 1
        now = 10.9
        assert await server.ask() == 1
        now = 11.0
        server.may_answer.clear()
        slow = server.ask()
        await until_all_wait()
        now = 12.0
        later = server.ask()  # the answer that is still being made may be too old
        server.may_answer.set()
        assert (await slow, await later) == (2, 3)

    asyncio.run(run())


@pytest.mark.parametrize(
    "other",
    [
        {"query": "a=2"},
        {"accept": "text/html"},
        {"caller": Client("ann", frozenset())},
        {"caller": Client("bob", ANN.rights)},
    ],
    ids=str,
)
def test_a_read_that_differs_gets_its_own_answer(other: dict[str, Any]) -> None:
    async def run() -> None:
        server = Server()
        asked = [await server.ask(), await server.ask(**other), await server.ask(**other), await server.ask()]
        assert asked == [1, 2, 2, 1]

    asyncio.run(run())


@pytest.mark.parametrize(
    "request_",
    [{"query": "payload=true"}, {"query": "%70ayload"}, {"query": "a" * 3_000}],
    ids=["payload", "%", "long"],
)
def test_payloads_and_long_requests_are_not_shared(request_: dict[str, Any]) -> None:
    async def run() -> None:
        server = Server()
        assert [await server.ask(**request_) for _ in range(3)] == [1, 2, 3]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("control", "gets"), [("max-age=1, No-Cache", 2), ("max-age=0", 2), ("max-age=01", 1), ("max-age=60", 1)]
)
def test_a_reader_can_ask_for_the_newest_state(control: str, gets: int) -> None:
    async def run() -> None:
        server = Server()
        controlled = {"cache-control": control}
        assert [await server.ask(), await server.ask(**controlled), await server.ask()] == [1, gets, gets]

    asyncio.run(run())


@pytest.mark.parametrize(("status", "size"), [(404, 3), (503, 3), (200, LARGEST_SHARED + 1)])
def test_errors_and_large_answers_are_not_shared(status: int, size: int) -> None:
    async def run() -> None:
        server = Server(status, size)
        server.may_answer.clear()
        asked = [server.ask() for _ in range(3)]
        await until_all_wait()
        server.may_answer.set()
        assert sorted(await asyncio.gather(*asked)) == [1, 2, 3]

    asyncio.run(run())


def test_a_change_drops_answers_before_it_is_confirmed() -> None:
    async def run() -> None:
        server = Server()
        seen = [await server.ask()]

        async def confirmed(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.append(await server.ask())

        await server.ask(method="POST", sends=confirmed)
        assert seen == [1, 3]

    asyncio.run(run())


def test_a_change_drops_reads_that_began_before_it_even_if_it_fails() -> None:
    async def run() -> None:
        server = Server()
        server.may_answer.clear()
        before = server.ask()
        await until_all_wait()
        changed = server.ask(method="POST")
        await until_all_wait()
        changed.cancel()  # without a response
        await until_all_wait()
        after = server.ask()
        await until_all_wait()
        server.may_answer.set()
        assert (await before, await after) == (1, 3)

    asyncio.run(run())


def test_the_client_that_asked_first_holds_up_no_other_when_it_reads_nothing() -> None:
    async def run() -> None:
        server = Server()

        async def never(_message: Message) -> None:
            await asyncio.Event().wait()

        first = server.ask(sends=never)
        await until_all_wait()
        assert await server.ask() == 1
        first.cancel()

    asyncio.run(run())


def test_the_others_ask_themselves_if_the_first_read_is_cancelled() -> None:
    async def run() -> None:
        server = Server()
        server.may_answer.clear()
        first, second = server.ask(), server.ask()
        await until_all_wait()
        first.cancel()
        await until_all_wait()
        server.may_answer.set()
        assert await second == 2

    asyncio.run(run())


def test_the_oldest_answers_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "MOST_SHARED", 3)

    async def run() -> None:
        server = Server()
        assert [await server.ask(f"n={n}") for n in (1, 2, 3, 4, 4, 3, 2, 1)] == [1, 2, 3, 4, 4, 3, 2, 5]

    asyncio.run(run())


def test_no_route_that_changes_something_or_sends_payloads_or_deliveries_is_shared() -> None:
    modules = (*application._ROUTERS, *application._PAGES)
    routes = [each for module in modules for each in module.router.routes if isinstance(each, APIRoute)]
    marked = [each for each in routes if each.endpoint in shared_reads._shared_endpoints]
    assert all(each.methods == {"GET"} for each in marked)
    apart = {each.path for each in routes if each.methods == {"GET"} and each not in marked}
    assert apart == {
        "/events",
        "/login",
        "/me",
        "/static/{file}",
        "/tables/{table:name}/act/{action}",
        "/tables/{table:name}/dead-letters",
        "/tables/{table:name}/groups/{command}",
        "/tables/{table:name}/messages",
        "/tables/{table:name}/schedules",
        "/tables/{table:name}/stream",
        "/topics/{topic:name}/messages",
    }
    patterns = shared_paths([(module.router, "") for module in modules])
    assert len(patterns) == len(marked)


def test_own_changes_show_at_once_and_those_of_others_after_a_second(
    client: TestClient, database: wc.Database, bearer: Callable[..., dict[str, str]]
) -> None:
    client.headers.pop("Cache-Control")
    path = "/api/tables/orders/groups"
    table = database.create_table("orders", payload="json", groups="sequenced")

    def seen(**headers: str) -> int:
        return len(client.get(path, headers=headers).json())

    assert seen() == 0
    client.post("/api/tables/orders/messages", json={"messages": [{"payload": 1, "group": "a"}]})
    assert seen() == 1
    table.put(2, group="b")
    assert (seen(), seen(**{"Cache-Control": "no-cache"}), seen()) == (1, 2, 2)
    assert client.get(path, headers=bearer("read table:others")).status_code == 403
