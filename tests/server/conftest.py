"""A server in this process, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fastapi import routing
from fastapi.testclient import TestClient

import waterclock as wc
from waterclock.server.access import Policy
from waterclock.server.app import create_app
from waterclock.server.rights import Right
from waterclock.server.tokens import add_token

Ask = Callable[..., httpx.Response]


_build = routing._EffectiveRouteContext.from_api_route
_built: dict[tuple[int, str], Any] = {}


def _build_once(*, original_route: Any, include_context: Any) -> Any:
    key = id(original_route), include_context.prefix  # the routes live as long as their modules
    if key not in _built:
        _built[key] = _build(original_route=original_route, include_context=include_context)
    return _built[key]


@pytest.fixture(autouse=True)
def share_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share the routes that FastAPI builds at an application's first request, since those of all tests are the same."""
    monkeypatch.setattr(routing._EffectiveRouteContext, "from_api_route", _build_once)


@pytest.fixture
def serve(database: wc.Database) -> Generator[Callable[..., TestClient]]:
    """Start a server with a policy; it ends with the test."""
    with ExitStack() as stack:

        def start(**policy: Any) -> TestClient:
            app = create_app(database, Policy(**policy))
            headers = {"Cache-Control": "no-cache"}  # tests also change the database directly
            opened = TestClient(app, base_url="http://localhost:8040", headers=headers, raise_server_exceptions=False)
            return stack.enter_context(opened)

        yield start


@pytest.fixture
def client(serve: Callable[..., TestClient]) -> TestClient:
    """A client on the server's own machine, which needs no token."""
    return serve()


@pytest.fixture
def bearer(database: wc.Database) -> Callable[..., dict[str, str]]:
    """Create a token with rights such as ``read topic:t``, and return the header that sends it."""

    def create(*rights: str) -> dict[str, str]:
        parsed = [Right.parse(*right.split(" ", 1)) for right in rights]
        name = f"token {len(rights)} {hash(rights)}"
        return {"Authorization": f"Bearer {add_token(database.backend, name, parsed)}"}

    return create
