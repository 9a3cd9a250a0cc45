"""Who may do what: every route with every right, without a token, from other hosts and sites, and read-only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.routing import Route
from tests.server.browsing import sign_in

import waterclock as wc
from waterclock.server.access import Policy
from waterclock.server.app import create_app
from waterclock.server.limits import MAX_BODY, MAX_WRONG_TOKENS, RequestRates
from waterclock.server.rights import VERBS, Right
from waterclock.server.tokens import add_token, find_token, remove_token

pytestmark = pytest.mark.one_database

RIGHTS = """
-               GET    /livez
-               GET    /readyz
any             GET    /openapi.json
any             GET    /api/me
any             GET    /api/topics
any             GET    /api/tables
manage topic    PUT    /api/topics/{topic}
read topic      GET    /api/topics/{topic}
manage topic    PATCH  /api/topics/{topic}
manage topic    DELETE /api/topics/{topic}
read topic      GET    /api/topics/{topic}/ledgers
manage topic    POST   /api/topics/{topic}/roll
manage topic    POST   /api/topics/{topic}/seal
manage topic    POST   /api/topics/{topic}/compact
manage topic    POST   /api/topics/{topic}/expire
manage topic    POST   /api/topics/{topic}/truncate
append topic    POST   /api/topics/{topic}/messages
append topic    POST   /api/topics/{topic}/arrow
read topic      GET    /api/topics/{topic}/messages
read topic      GET    /api/topics/{topic}/find
read topic      GET    /api/topics/{topic}/newest
read topic      GET    /api/topics/{topic}/subscriptions
manage topic    PUT    /api/topics/{topic}/subscriptions/{subscription}
read topic      GET    /api/topics/{topic}/subscriptions/{subscription}
manage topic    DELETE /api/topics/{topic}/subscriptions/{subscription}
receive topic   POST   /api/topics/{topic}/subscriptions/{subscription}/read
receive topic   POST   /api/topics/{topic}/subscriptions/{subscription}/commit
receive topic   POST   /api/topics/{topic}/subscriptions/{subscription}/release
manage topic    POST   /api/topics/{topic}/subscriptions/{subscription}/seek
manage topic    POST   /api/topics/{topic}/subscriptions/{subscription}/expire
manage table    PUT    /api/tables/{table}
read table      GET    /api/tables/{table}
manage table    PATCH  /api/tables/{table}
manage table    DELETE /api/tables/{table}
manage table    POST   /api/tables/{table}/pause
manage table    POST   /api/tables/{table}/resume
manage table    POST   /api/tables/{table}/purge
put table       POST   /api/tables/{table}/messages
read table      GET    /api/tables/{table}/messages
read table      GET    /api/tables/{table}/messages/{message}
read table      GET    /api/tables/{table}/dead-letters
manage table    POST   /api/tables/{table}/messages/ack
manage table    POST   /api/tables/{table}/messages/cancel
manage table    POST   /api/tables/{table}/messages/dead-letter
manage table    POST   /api/tables/{table}/messages/reschedule
manage table    POST   /api/tables/{table}/messages/retry
manage table    POST   /api/tables/{table}/messages/redrive
receive table   POST   /api/tables/{table}/receive
receive table   GET    /api/tables/{table}/stream
receive table   POST   /api/tables/{table}/ack
receive table   POST   /api/tables/{table}/nack
receive table   POST   /api/tables/{table}/snooze
receive table   POST   /api/tables/{table}/dead-letter
receive table   POST   /api/tables/{table}/extend
receive table   POST   /api/tables/{table}/save
read table      GET    /api/tables/{table}/groups
read table      GET    /api/tables/{table}/groups/one
manage table    POST   /api/tables/{table}/groups/purge
manage table    POST   /api/tables/{table}/groups/move
manage table    POST   /api/tables/{table}/groups/reroute
manage table    POST   /api/tables/{table}/groups/pause
manage table    POST   /api/tables/{table}/groups/resume
manage table    POST   /api/tables/{table}/groups/close
manage table    POST   /api/tables/{table}/groups/release
manage table    POST   /api/tables/{table}/groups/pin
manage table    POST   /api/tables/{table}/groups/unpin
manage table    POST   /api/tables/{table}/groups/skip-head
manage table    POST   /api/tables/{table}/groups/rebalance
read table      GET    /api/tables/{table}/schedules
manage table    PUT    /api/tables/{table}/schedules/{schedule}
manage table    DELETE /api/tables/{table}/schedules/{schedule}
manage table    POST   /api/tables/{table}/schedules/{schedule}/run
manage table    POST   /api/tables/{table}/schedules/{schedule}/{command}
-               GET    /static/{file}
-               GET    /login
-               POST   /login
-               POST   /logout
any             GET    /events
any             GET    /
any             GET    /tables
read table      GET    /tables/{table}
read table      GET    /tables/{table}/messages/{message}
manage table    GET    /tables/{table}/act/{action}
manage table    POST   /tables/{table}/act/{action}
read table      GET    /tables/{table}/groups
manage table    GET    /tables/{table}/groups/{command}
manage table    POST   /tables/{table}/groups/{command}
any             GET    /topics
read topic      GET    /topics/{topic}
manage topic    POST   /topics/{topic}/seek
read topic      GET    /topics/{topic}/batches
any             GET    /schedules
manage table    POST   /tables/{table}/schedules/{schedule}/{command}
any             GET    /ingest
any             GET    /pipelines
any             GET    /workers
any             GET    /system
"""
"""The right that each route needs."""

NEEDED = {
    (method, path): right.strip()
    for line in RIGHTS.strip().splitlines()
    for right, (method, path) in [(line[:16], line[16:].split())]
}
EVERY_RIGHT = [f"{verb} {kind}" for kind, verbs in VERBS.items() for verb in verbs]
_NAMES = {
    "topic": "t",
    "table": "t",
    "subscription": "s",
    "schedule": "s",
    "message": "1",
    "command": "pause",
    "file": "pages.css",
    "action": "retry",
}
_QUERIES = {"find": {"time": "2h"}, "stream": {"consumer": "c"}}
_BODIES: dict[str, Any] = {
    "expire": {"ttl": "1d"},
    "truncate": {"before": "1d"},
    "commit": {"cursor": "x"},
    "release": {"cursor": "x", "group": "g"},
    "seek": {"position": "0:0:0"},
    "ack": {"ids": ["1"], "deliveries": ["x"]},
}


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield every route of the application by its method and path."""
    yield from _routes(app.routes, "")


def _routes(found: Sequence[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for route in found:
        if isinstance(route, Route):
            path = prefix + route.path.replace(":name}", "}")
            yield from ((method, path) for method in (route.methods or ()) if method != "HEAD")
        else:  # a router that FastAPI includes as a whole
            yield from _routes(route.original_router.routes, prefix + route.include_context.prefix)


def test_every_route_has_a_right(database: wc.Database) -> None:
    app = create_app(database, Policy())
    assert sorted(routes(app)) == sorted(NEEDED)


@pytest.fixture(autouse=True)
def one_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the stream that tells pages to refresh after its first event."""
    monkeypatch.setattr("waterclock.server.pages.live.EVERY", 0)
    monkeypatch.setattr("waterclock.server.pages.live._MOST", 1)


@pytest.fixture
def matrix(database: wc.Database, serve: Callable[..., TestClient]) -> tuple[TestClient, dict[str, dict[str, str]]]:
    """A server that needs tokens, and for each right the header of a token with it alone."""
    headers = {}
    for right in EVERY_RIGHT:
        verb, kind = right.split()
        headers[right] = {
            "Authorization": f"Bearer {add_token(database.backend, right, [Right.parse(verb, f'{kind}:t')])}"
        }
    return serve(on_loopback=False), headers


def status(client: TestClient, method: str, path: str, headers: dict[str, str]) -> int:
    """Ask with an empty body and names of things that do not exist: what is allowed then fails in another way."""
    if path.endswith("/stream"):  # a stream would not end; without a consumer it does not begin
        return client.get(path.format(**_NAMES), headers=headers).status_code
    return client.request(method, path.format(**_NAMES), headers=headers).status_code


def test_every_route_refuses_every_other_right(
    matrix: tuple[TestClient, dict[str, dict[str, str]]],
) -> None:
    client, tokens = matrix
    wrong: list[str] = []
    for (method, path), needed in NEEDED.items():
        if (status(client, method, path, {}) == 401) != (needed != "-"):
            wrong.append(f"{method} {path} without a token")
        if (status(client, method, path, {"Authorization": "Bearer wct_x"}) == 401) != (needed != "-"):
            wrong.append(f"{method} {path} with an unknown token")
        for right, headers in tokens.items():
            is_allowed = needed in ("-", "any", right)
            if (status(client, method, path, headers) != 403) != is_allowed:
                wrong.append(f"{method} {path} with {right}")
    assert wrong == []


def test_a_read_only_server_refuses_everything_but_looking(serve: Callable[..., TestClient]) -> None:
    client = serve(read_only=True)
    wrong = [
        f"{method} {path}"
        for (method, path), needed in NEEDED.items()
        if (status(client, method, path, {}) == 403) != (needed.split()[0] not in ("-", "any", "read"))
    ]
    assert wrong == []


def test_a_right_is_for_one_name(database: wc.Database, serve: Callable[..., TestClient], bearer: Any) -> None:
    for name in ("mine", "others"):
        database.create_topic(name)
        database.create_table(name)
    client = serve(on_loopback=False)
    one, every = bearer("read topic:mine", "read table:mine"), bearer("read topic:*")
    assert client.get("/api/topics/mine", headers=one).status_code == 200
    assert client.get("/api/topics/others", headers=one).status_code == 403
    assert client.get("/api/topics/missing", headers=one).status_code == 403
    assert [each["name"] for each in client.get("/api/topics", headers=one).json()] == ["mine"]
    assert [each["name"] for each in client.get("/api/tables", headers=one).json()] == ["mine"]
    assert [each["name"] for each in client.get("/api/topics", headers=every).json()] == ["mine", "others"]
    assert client.get("/api/tables", headers=every).json() == []
    assert client.get("/api/me", headers=one).json()["rights"] == ["read table:mine", "read topic:mine"]


def test_another_table_needs_a_right_of_its_own(database: wc.Database, serve: Any, bearer: Any) -> None:
    database.create_table("mine", groups="sequenced")
    database.create_table("others", groups="sequenced")
    client, headers = serve(on_loopback=False), bearer("manage table:mine")
    moved = client.post("/api/tables/mine/groups/move", json={"group": "g", "to": "others"}, headers=headers)
    dead = client.patch("/api/tables/mine", json={"dead_letter": "others"}, headers=headers)
    made = client.patch("/api/tables/mine", json={"max_attempts": 3}, headers=headers)
    assert [moved.status_code, dead.status_code, made.status_code] == [403, 403, 403]
    assert "may not manage table 'others'" in moved.json()["message"]


def test_a_removed_token_is_refused_within_a_second(
    database: wc.Database, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(on_loopback=False)
    headers = {"Authorization": f"Bearer {add_token(database.backend, 'one', [Right('read', 'topic', '*')])}"}
    assert client.get("/api/me", headers=headers).json()["name"] == "one"
    remove_token(database.backend, "one")
    monkeypatch.setattr("waterclock.server.access.moments.monotonic", lambda: 1e12)
    assert client.get("/api/me", headers=headers).status_code == 401


@pytest.fixture
def token_for_one_look(serve: Any, bearer: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[TestClient, dict[str, str]]:
    """A client, and the header of a token that is removed once its first request has begun."""
    looks: list[str] = []

    def find_once(backend: Any, text: str) -> Any:
        looks.append(text)
        return find_token(backend, text) if len(looks) == 1 else None

    monkeypatch.setattr("waterclock.server.access.find_token", find_once)
    monkeypatch.setattr("waterclock.server.access._CACHED_FOR", 0)
    return serve(on_loopback=False), bearer("receive table:orders")


def test_a_stream_ends_when_its_token_is_removed(
    database: wc.Database, token_for_one_look: tuple[TestClient, dict[str, str]]
) -> None:
    table = database.create_table("orders")
    table.put(b"x")
    client, headers = token_for_one_look
    streamed = client.get("/api/tables/orders/stream", params={"consumer": "c"}, headers=headers)
    assert "event: delivery" not in streamed.text
    assert '"signed_out"' in streamed.text
    client.close()
    assert [one.epoch for one in table.receive(wait="5s")] == [1]


def test_a_request_that_waited_gets_nothing_once_its_token_is_removed(
    database: wc.Database, token_for_one_look: tuple[TestClient, dict[str, str]]
) -> None:
    table = database.create_table("orders")
    table.put(b"x")
    client, headers = token_for_one_look
    assert client.post("/api/tables/orders/receive", json={"consumer": "c"}, headers=headers).status_code == 401
    assert [one.epoch for one in table.receive(wait="5s")] == [1]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8040", "127.0.0.1.evil.example", "192.0.2.1", "", "[::1", "[zz]"),
        *("evil.example@localhost", "localhost@evil.example", "localhost/.evil.example", "localhost?.evil.example"),
        "localhost:x",
    ],
)
def test_a_name_of_another_host_is_refused_on_loopback(client: TestClient, host: str) -> None:
    assert client.get("/api/me", headers={"Host": host}).status_code == 403
    assert client.get("/livez", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8040", "[::1]:8040", "127.3.2.1"])
def test_names_of_this_machine_are_taken_on_loopback(client: TestClient, host: str) -> None:
    assert client.get("/api/me", headers={"Host": host}).json() == {"name": "local", "rights": None}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:8040"},
    ],
)
def test_another_site_cannot_change_anything(client: TestClient, headers: dict[str, str]) -> None:
    assert client.put("/api/topics/t", json={}, headers=headers).status_code == 403
    assert client.put("/api/topics/t", content=b"{}", headers=headers).status_code == 403
    assert client.get("/api/topics").json() == []


def test_another_site_cannot_take_messages_with_a_get(client: TestClient) -> None:
    taken = client.get("/api/tables/t/stream", params={"consumer": "c"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert taken.status_code == 403
    assert client.get("/api/topics", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_the_own_site_and_programs_may_change_something(client: TestClient) -> None:
    for name, headers in {
        "a": {"Origin": "http://localhost:8040"},
        "b": {"Sec-Fetch-Site": "same-origin"},
        "c": {},
    }.items():
        assert client.put(f"/api/topics/{name}", json={}, headers=headers).status_code == 200


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_requests_through_a_proxy_need_a_token(client: TestClient, name: str) -> None:
    assert client.get("/api/me", headers={name: "for=192.0.2.1"}).status_code == 401


def test_callers_on_this_machine_can_be_asked_for_a_token(serve: Any, bearer: Any) -> None:
    client = serve(require_token=True)
    assert client.get("/api/me").status_code == 401
    assert client.get("/api/me", headers=bearer("read topic:t")).status_code == 200


def test_a_token_counts_where_none_is_needed(client: TestClient, bearer: Any) -> None:
    assert client.put("/api/topics/t", json={}, headers=bearer("read topic:t")).status_code == 403
    assert client.get("/api/me", headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.get("/api/me", headers={"Authorization": "Basic x"}).status_code == 401


def test_every_response_has_security_headers(client: TestClient) -> None:
    for path in ("/livez", "/api/me", "/api/topics/missing", "/missing", "/docs", "/openapi.json"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe-inline" not in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["cache-control"] == "no-store", path
    assert "access-control-allow-origin" not in client.options("/api/me", headers={"Origin": "https://evil"}).headers


@pytest.mark.parametrize("declares", [True, False])
def test_a_large_body_is_refused(client: TestClient, database: wc.Database, declares: bool) -> None:
    database.create_topic("t")
    piece = b" " * (1 << 20)
    pieces = [piece] * (MAX_BODY // len(piece) + 1)
    content: Any = b"".join(pieces) if declares else iter(pieces)
    for path in ("messages", "arrow"):
        asked = client.post(
            f"/api/topics/t/{path}",
            content=content if declares else iter(pieces),
            headers={"Content-Type": "application/json"},
        )
        assert asked.status_code == 413, path
        assert asked.json()["error"] == "too_large"


def test_a_body_of_a_too_large_declared_length_is_not_read(client: TestClient, database: wc.Database) -> None:
    database.create_table("orders")
    headers = {"Content-Type": "application/json", "Content-Length": str(2 << 30)}
    assert client.post("/api/tables/orders/pause", content=b"{}", headers=headers).status_code == 413


def test_bodies_are_refused_while_others_hold_too_many_bytes(
    client: TestClient, database: wc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.server.limits.MAX_HELD", 100)
    database.create_table("orders", payload="text")
    large, small = ({"messages": [{"payload": "x" * length}]} for length in (100, 10))
    assert client.post("/api/tables/orders/messages", json=large).status_code == 503
    assert [client.post("/api/tables/orders/messages", json=small).status_code for _ in range(3)] == [200] * 3


def test_every_act_is_in_the_audit_log(
    client: TestClient, database: wc.Database, bearer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "waterclock.server.audit")
    database.create_table("orders", payload="text", groups="sequenced")
    client.post("/api/tables/orders/messages", json={"messages": [{"payload": "secret", "group": "g\x1b[2J"}] * 3})
    client.get("/api/tables/orders/messages")
    client.post("/api/tables/orders/groups/purge", json={"group": "g\x1b[2J"})
    client.delete("/api/tables/orders", headers=bearer("read table:orders"))
    text = caplog.text
    assert "local put table:orders, POST /api/tables/orders/messages: status 200, 3 rows" in text
    assert "local manage table:orders, POST /api/tables/orders/groups/purge {'group': 'g\\x1b[2J'}" in text
    assert "status 200, 3 rows" in text
    assert "manage table:orders, DELETE /api/tables/orders: status 403, rows not counted" in text
    assert len(caplog.records) == 3
    assert "secret" not in text
    assert "\x1b" not in text


def test_an_address_that_guesses_tokens_is_refused_for_a_while_but_known_tokens_still_work(
    serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.server.access._CACHED_FOR", 0)
    client, known, unseen = serve(require_token=True), bearer("read topic:t"), bearer("read topic:u")
    assert client.get("/api/me", headers=known).status_code == 200
    wrong = [{"Authorization": f"Bearer wct_{'0' * 16}_{number:043}"} for number in range(MAX_WRONG_TOKENS + 1)]
    for each in [*wrong[:MAX_WRONG_TOKENS], wrong[0]]:
        assert client.get("/api/me", headers=each).status_code == 401
    assert client.get("/api/me", headers=wrong[-1]).status_code == 429
    refused = client.get("/api/me", headers=unseen)
    assert (refused.status_code, 0 < int(refused.headers["retry-after"]) <= 61) == (429, True)
    assert client.get("/api/me", headers=known).status_code == 200
    assert sign_in(client, unseen).status_code == 429


def test_a_token_that_sends_too_many_requests_waits_and_others_do_not(
    serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    client, busy, other = serve(require_token=True, rate_limit=1), bearer("read topic:t"), bearer("read topic:u")
    answers = [client.get("/api/me", headers=busy) for _ in range(20)]  # in far less than 20 s
    refused = next(one for one in answers if one.status_code == 429)
    assert (answers[0].status_code, refused.headers["retry-after"]) == (200, "1")
    assert refused.json()["message"] == "the token exceeds its rate limit of 1/s; try again later"
    assert client.get("/api/me", headers=other).status_code == 200


def test_callers_of_this_machine_have_no_rate_limit(serve: Callable[..., TestClient]) -> None:
    client = serve(rate_limit=1)
    assert [client.get("/api/me").status_code for _ in range(20)] == [200] * 20


@given(st.integers(1, 50), st.lists(st.floats(0, 2), max_size=60))
def test_no_token_gets_more_requests_than_its_rate_and_one_seconds_worth(most: int, gaps: list[float]) -> None:
    rates, now, allowed = RequestRates(most), 0.0, list[float]()
    for gap in gaps:
        now += gap
        try:
            rates.check("t", now)
        except HTTPException:
            assert sum(each > now - 1 for each in allowed) > 0
        else:
            allowed.append(now)
    for first, since in enumerate(allowed):
        for last in range(first, len(allowed)):
            assert last - first + 1 <= most * (allowed[last] - since + 1) + 1e-6


@pytest.mark.one_database
def test_a_body_of_two_lengths_is_refused_and_ends_its_connection(client: TestClient) -> None:
    headers = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    for path in ("/livez", "/api/topics/t/roll", "/login"):
        asked = client.request("POST", path, content=b"{}", headers=headers)
        assert (asked.status_code, asked.headers["connection"]) == (400, "close")
