"""Tables stay open between requests, and follow what others do to them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

import waterclock as wc
from waterclock._support import moments
from waterclock.server import opened_tables
from waterclock.server.opened_tables import OpenedTables
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.one_database

RECEIVE = {"consumer": "c"}


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tables that were opened, one for each time."""
    names: list[str] = []
    real = MessageTable.open.__func__  # type: ignore[attr-defined]

    def noting(cls: Any, backend: Any, name: str) -> MessageTable:
        names.append(name)
        return real(cls, backend, name)

    monkeypatch.setattr(MessageTable, "open", classmethod(noting))
    return names


@pytest.fixture
def a_second_later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Move the monotonic clock on by a second, after which open tables look for changes."""
    real = moments.monotonic
    seconds = 0.0

    def move() -> None:
        nonlocal seconds
        seconds += 1.1

    monkeypatch.setattr("waterclock._support.moments.monotonic", lambda: real() + seconds)
    return move


def test_a_table_is_opened_once_for_many_requests(client: TestClient, database: wc.Database, opens: list[str]) -> None:
    database.create_table("orders", payload="json").put_many([{"payload": n} for n in range(3)])
    opens.clear()
    for _ in range(3):
        [delivery] = client.post("/api/tables/orders/receive", json=RECEIVE).json()["deliveries"]
        client.post("/api/tables/orders/ack", json={"deliveries": [delivery["delivery"]]})
    assert client.get("/api/tables/orders").json()["acked"]["count"] == 3
    client.get("/api/tables")
    assert opens == ["orders"]


def test_changes_by_others_show_after_a_second(client: TestClient, database: wc.Database, a_second_later: Any) -> None:
    def options() -> dict[str, Any]:
        return client.get("/api/tables/orders").json()["options"]

    table = database.create_table("orders", payload="json")
    assert (options()["batch_size"], options()["payload"]) == (10, "json")
    table.alter(batch_size=7)
    a_second_later()
    assert options()["batch_size"] == 7
    table.drop()
    a_second_later()
    assert client.post("/api/tables/orders/receive", json=RECEIVE).status_code == 404
    database.create_table("orders", payload="text").put("x")
    assert client.post("/api/tables/orders/receive", json=RECEIVE).json()["deliveries"][0]["payload"] == "x"


def test_a_table_that_another_process_recreates_is_used_as_it_is_now(
    client: TestClient, database: wc.Database, a_second_later: Any
) -> None:
    table = database.create_table("orders", payload="json", groups="sequenced")
    table.put(1, group="g")
    assert client.post("/api/tables/orders/receive", json=RECEIVE).status_code == 200
    table.drop()
    database.create_table("orders", id_type="text").put(b"x", id="one")
    a_second_later()
    [delivery] = client.post("/api/tables/orders/receive", json=RECEIVE).json()["deliveries"]
    assert (delivery["id"], delivery["payload_base64"]) == ("one", "eA==")
    assert client.post("/api/tables/orders/ack", json={"deliveries": [delivery["delivery"]]}).json() == {"ended": 1}


def test_own_changes_show_at_once(client: TestClient) -> None:
    assert client.put("/api/tables/orders", json={"payload": "json"}).json()["options"]["payload"] == "json"
    assert client.patch("/api/tables/orders", json={"batch_size": 7}).json()["options"]["batch_size"] == 7
    assert client.delete("/api/tables/orders").status_code == 200
    assert client.get("/api/tables/orders").status_code == 404
    assert client.put("/api/tables/orders", json={"payload": "text"}).json()["options"]["payload"] == "text"
    assert client.get("/api/tables/orders").json()["options"]["payload"] == "text"


def test_the_tables_that_were_used_last_stay_open(
    database: wc.Database, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_tables, "MOST", 2)
    for name in "abc":
        database.create_table(name)
    opens.clear()
    tables = OpenedTables(database)
    for name in "abacab":
        tables.table(name)
    assert opens == ["a", "b", "c", "b"]


def test_a_broken_table_does_not_hide_the_others(client: TestClient, database: wc.Database) -> None:
    for name in ("broken", "orders"):
        database.create_table(name)
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE broken"))
    broken, orders = client.get("/api/tables").json()
    assert (broken["name"], orders["name"]) == ("broken", "orders")
    assert "problem" in broken
    assert "options" in orders
