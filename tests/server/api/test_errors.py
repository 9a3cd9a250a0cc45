"""Errors tell the caller what to change, and nothing of the inside."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

import waterclock as wc
from waterclock.server.access import Policy
from waterclock.server.app import create_app
from waterclock.server.opened_tables import OpenedTables

pytestmark = pytest.mark.one_database

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e'\";--"


@pytest.mark.parametrize(
    ("method", "path", "json"),
    [
        ("GET", "/api/topics/{name}", None),
        ("PUT", "/api/topics/{name}", {}),
        ("GET", "/api/tables/{name}", None),
        ("PUT", "/api/tables/{name}", {}),
        ("PUT", "/api/tables/t", {"{name}": 1}),
        ("PUT", "/api/tables/t", {"columns": {"{name}": "text"}}),
        ("POST", "/api/tables/orders/receive", {"consumer": "c", "where": "{name}"}),
        ("POST", "/api/tables/orders/messages", {"messages": [{"payload": "x", "columns": {"{name}": 1}}]}),
        ("POST", "/api/tables/orders/messages/cancel", {"ids": ["{name}"]}),
        ("POST", "/api/tables/orders/ack", {"deliveries": ["{name}"]}),
        ("GET", "/api/tables/orders/messages/{name}", None),
        ("DELETE", "/api/tables/orders/schedules/{name}", None),
        ("GET", "/{name}", None),
        ("{name}", "/api/me", None),
    ],
)
def test_hostile_text_is_quoted_as_json(client: TestClient, method: str, path: str, json: Any) -> None:
    client.put("/api/tables/orders", json={"payload": "text"})
    method = method.replace("{name}", "BREW")
    asked = client.request(method, path.replace("{name}", "%3Cscript%3E%1B%5B2J%2F..%2F"), json=_filled(json))
    assert 400 <= asked.status_code < 500, asked.text
    assert asked.headers["content-type"] == "application/json"
    assert set(asked.json()) <= {"error", "message", "problems"}
    assert "\x1b" not in asked.text
    assert "Traceback" not in asked.text


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {_filled(key): _filled(each) for key, each in value.items()}
    return [_filled(each) for each in value] if isinstance(value, list) else HOSTILE if value == "{name}" else value


@pytest.mark.parametrize("body", ["", "{", "[" * 100_000, "null", '{"messages": 1e999}', '{"messages": [NaN]}', "\xff"])
def test_a_body_of_another_form_is_refused(client: TestClient, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    client.put("/api/tables/orders", json={"payload": "text"})
    asked = client.post("/api/tables/orders/messages", content=body.encode("latin-1"), headers=headers)
    assert asked.status_code in (400, 422), asked.text


def test_a_body_that_does_not_say_that_it_is_json_is_refused(client: TestClient) -> None:
    client.put("/api/tables/orders", json={"payload": "text"})
    asked = client.post("/api/tables/orders/purge", content="x=1", headers={"Content-Type": "text/plain"})
    assert asked.status_code == 200  # it has no body to read
    plain = client.post("/api/tables/orders/pause", content='{"until": null}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 422


def test_a_failing_database_shows_nothing_but_a_reference(
    client: TestClient, database: wc.Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.create_table("orders")
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE orders"))
    for path in ("/api/tables/orders", "/api/tables/orders/messages"):
        asked = client.get(path)
        assert asked.status_code in (400, 500)
        assert str(database.backend.url.database) not in asked.text
        assert "sqlite" not in asked.text.lower()
        assert "SELECT" not in asked.text
    del caplog


def test_a_fault_of_ours_is_logged_and_not_shown(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_tables: OpenedTables, _name: str) -> None:
        raise ZeroDivisionError("secret of the inside")

    client.put("/api/tables/orders", json={})
    monkeypatch.setattr(OpenedTables, "table", fail)
    with caplog.at_level(logging.ERROR, "waterclock.server.errors"):
        asked = client.get("/api/tables/orders")
    assert asked.status_code == 500
    assert asked.json()["message"] == "the server failed"
    assert asked.headers["x-content-type-options"] == "nosniff"
    assert f"reference {asked.json()['reference']}: ZeroDivisionError: secret of the inside" in caplog.text


def test_a_database_that_was_deleted_shows_no_path(tmp_path: Any, sqlite_url: str) -> None:
    with wc.connect(sqlite_url) as database:
        client = TestClient(create_app(database, Policy()), base_url="http://localhost", raise_server_exceptions=False)
        with client:
            (tmp_path / "waterclock.db").unlink()
            database.backend.close()
            asked = client.get("/api/topics")
            assert asked.status_code in (404, 500, 503), asked.text
            assert str(tmp_path) not in asked.text
            assert client.get("/livez").status_code == 200


def test_names_are_not_suggested_to_callers_with_few_rights(database: wc.Database, serve: Any, bearer: Any) -> None:
    database.create_topic("telemetry")
    path = "/api/topics/telemetri"
    assert "did you mean 'telemetry'?" in serve().get(path).json()["message"]
    asked = serve(on_loopback=False).get(path, headers=bearer("read topic:telemetri"))
    assert (asked.status_code, "telemetry" in asked.text) == (404, False)


@pytest.mark.parametrize(
    ("method", "path", "json", "status"),
    [
        ("GET", "/api/tables/orders/messages/1_0", None, 400),
        ("GET", "/api/tables/orders/messages/%D9%A1", None, 400),  # an Arabic digit
        ("POST", "/api/tables/orders/messages/cancel", {"ids": [" 1"]}, 400),
        ("PUT", "/api/topics/%FF", {}, 400),
        ("PUT", "/api/tables/wide", {"columns": {f"c{n}": "text" for n in range(201)}}, 422),
        ("PUT", "/api/tables/", {}, 404),
    ],
)
def test_what_names_something_else_is_refused(
    client: TestClient, method: str, path: str, json: Any, status: int
) -> None:
    client.put("/api/tables/orders", json={"payload": "text"})
    assert client.request(method, path, json=json, follow_redirects=False).status_code == status


@pytest.mark.one_database
def test_unknown_paths_and_methods_are_named(client: TestClient) -> None:
    assert client.get("/api/nothing").json() == {"error": "not_found", "message": "no page or route has this path"}
    assert client.delete("/livez").json()["message"] == "this path does not take this method"
