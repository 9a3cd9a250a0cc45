"""Message tables over HTTP: put, receive, ack and give back, groups and schedules."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

import waterclock as wc
from waterclock.server.api.formats import shapes
from waterclock.server.api.tables import OptionChangesBody, TableOptionsBody
from waterclock.server.api.topics import TopicOptionsBody
from waterclock.tables.messages.inspecting import estimating
from waterclock.tables.model.options import OptionChanges

ORDERS = "/api/tables/orders"


def create(client: TestClient, **options: Any) -> None:
    asked = client.put(ORDERS, json={"payload": "json", **options})
    assert asked.status_code == 200, asked.text


def put(client: TestClient, *messages: dict[str, Any]) -> dict[str, Any]:
    asked = client.post(f"{ORDERS}/messages", json={"messages": messages})
    assert asked.status_code == 200, asked.text
    return asked.json()


def receive(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    asked = client.post(f"{ORDERS}/receive", json={"consumer": "c", "limit": 10, **body})
    assert asked.status_code == 200, asked.text
    return asked.json()["deliveries"]


def test_a_message_is_put_received_and_acked(client: TestClient) -> None:
    create(client, columns={"region": "text"}, id_type="text")
    message = {"payload": {"n": 1}, "id": "a", "headers": {"kind": "x"}, "columns": {"region": "eu"}, "priority": 2}
    assert put(client, message) == {"ids": ["a"], "existing": []}
    assert put(client, message) == {"ids": ["a"], "existing": ["a"]}
    [peeked] = client.get(f"{ORDERS}/messages").json()
    assert (peeked["payload"], peeked["state"], peeked["columns"]) == ({"n": 1}, "ready", {"region": "eu"})
    assert client.get(f"{ORDERS}/messages/a").json()["state"] == "ready"
    [delivery] = receive(client, where="region = 'eu'")
    assert (delivery["id"], delivery["headers"], delivery["epoch"]) == ("a", {"kind": "x"}, 1)
    leased = client.get(f"{ORDERS}/messages/a").json()
    assert (leased["state"], leased["consumer"]) == ("leased", "c")
    for _ in range(2):  # a repeat after a lost answer
        assert client.post(f"{ORDERS}/ack", json={"deliveries": [delivery["delivery"]]}).status_code == 200
    assert client.get(ORDERS).json()["acked"] == {"count": 1, "more": False}


def test_counts_of_a_large_table_read_a_bounded_number_of_messages(
    client: TestClient, database: wc.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimating, "COUNTED", 3)
    create(client)
    table = database.table("orders")
    ids = table.put_many([{"payload": n} for n in range(10)])
    counted = client.get(ORDERS).json()
    assert (counted["counts"]["ready"] > 3, counted["counts"]["exact"]) == (True, False)
    assert counted["acked"] == {"count": 0, "more": False}
    table.ack(ids[:3])
    assert client.get(ORDERS).json()["acked"] == {"count": 3, "more": False}
    table.ack(ids[3:])
    counted = client.get(ORDERS).json()
    assert (counted["counts"]["depth"], counted["counts"]["exact"]) == (0, True)
    assert counted["acked"] == {"count": 3, "more": True}


def test_every_way_to_end_a_delivery(client: TestClient) -> None:
    create(client, max_attempts=5)
    put(client, *({"payload": n} for n in range(5)))
    handles = [each["delivery"] for each in receive(client)]
    given_back, failed, snoozed, dead, extended = ([each] for each in handles)
    assert client.post(f"{ORDERS}/nack", json={"deliveries": given_back, "delay": "1h"}).json() == {"ended": 1}
    assert client.post(f"{ORDERS}/nack", json={"deliveries": failed, "error": "no ink"}).json() == {"ended": 1}
    assert client.post(f"{ORDERS}/snooze", json={"deliveries": snoozed, "delay": "1h"}).json() == {"ended": 1}
    assert client.post(f"{ORDERS}/dead-letter", json={"deliveries": dead, "why": "torn"}).json() == {"ended": 1}
    assert client.post(f"{ORDERS}/extend", json={"deliveries": extended, "duration": "1h"}).json() == {
        "extended": 1,
        "lost": [],
        "cancelled": [],
    }
    [letter] = client.get(f"{ORDERS}/dead-letters").json()
    assert (letter["payload"], letter["dead_reason"]) == (3, "torn")
    assert client.post(f"{ORDERS}/messages/redrive", json={}).json() == {"changed": 1}
    changed = [client.post(f"{ORDERS}/messages/cancel", json={"ids": ["5"], "reason": "x"}).json()["changed"]]
    changed.append(
        client.post(f"{ORDERS}/messages/reschedule", json={"ids": [1], "at": "2020-01-01T00:00:00Z"}).json()["changed"]
    )
    changed.append(client.post(f"{ORDERS}/messages/retry", json={}).json()["changed"])
    changed.append(client.post(f"{ORDERS}/messages/ack", json={"ids": ["1"]}).json()["changed"])
    assert changed == [1, 1, 1, 1]
    beat = client.post(f"{ORDERS}/extend", json={"deliveries": extended, "duration": "2h"}).json()
    assert beat["cancelled"] == extended


def test_saved_progress_reaches_the_next_attempt(client: TestClient) -> None:
    create(client)
    put(client, {"payload": 1})
    [first] = receive(client)
    assert first["progress"] is None
    handle = first["delivery"]
    saved = client.post(f"{ORDERS}/save", json={"delivery": handle, "progress": {"page": 2}})
    assert saved.json() == {"lease_until": saved.json()["lease_until"], "cancelled": False}
    assert client.post(f"{ORDERS}/save", json={"delivery": handle, "progress": "x" * 65_536}).status_code == 400
    client.post(f"{ORDERS}/nack", json={"deliveries": [handle], "delay": "0s"})
    [second] = receive(client)
    assert second["progress"] == {"page": 2}
    assert client.post(f"{ORDERS}/save", json={"delivery": handle, "progress": 3}).status_code == 409


@pytest.mark.parametrize("text", ["NaN", r'"\ud800"'])
def test_progress_that_plain_sql_made_invalid_does_not_keep_messages_from_consumers(
    client: TestClient, database: wc.Database, text: str
) -> None:
    create(client)
    put(client, {"payload": 1})
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET saved_progress = :text"), {"text": text})
    assert [one["progress"] for one in receive(client)] == [None]


def test_headers_with_half_a_character_do_not_keep_messages_from_consumers(
    client: TestClient, database: wc.Database
) -> None:
    create(client)
    put(client, {"payload": 1}, {"payload": 2})
    with database.backend.engine.begin() as connection:
        text = {"text": r'{"a": "\ud800"}', "id": 1}
        connection.execute(sa.text("UPDATE orders SET headers = :text WHERE id = :id"), text)
    assert [one["headers"] for one in client.get(f"{ORDERS}/messages").json()] == [{"a": "?"}, {}]
    assert [one["headers"] for one in receive(client)] == [{"a": "?"}, {}]


def test_numbers_that_json_does_not_have_are_sent_as_strings() -> None:
    row = {"id": 1, "payload": [float("nan"), {"far": float("-inf"), "near": 1.5}], "reason": None}
    assert shapes.dead_letter("json", row)["payload"] == ["nan", {"far": "-inf", "near": 1.5}]


def test_waiting_messages_are_dead_lettered_by_id(client: TestClient) -> None:
    create(client, max_attempts=3)
    put(client, {"payload": 1}, {"payload": 2})
    receive(client, limit=1)
    body = {"ids": [1, 2, 99], "reason": "torn"}
    assert client.post(f"{ORDERS}/messages/dead-letter", json=body).json() == {"changed": 1}
    [letter] = client.get(f"{ORDERS}/dead-letters").json()
    assert (letter["payload"], letter["dead_reason"]) == (2, "torn")


@pytest.mark.one_database
def test_lost_leases_are_named_and_the_others_are_acked(client: TestClient) -> None:
    create(client)
    put(client, {"payload": 1}, {"payload": 2})
    first, second = (each["delivery"] for each in receive(client))
    client.post(f"{ORDERS}/nack", json={"deliveries": [first], "delay": "0s"})
    receive(client)
    for verb, more in (("ack", {}), ("nack", {}), ("snooze", {"delay": "1s"})):
        asked = client.post(f"{ORDERS}/{verb}", json={"deliveries": [first], **more})
        assert (asked.status_code, asked.json()["lost"]) == (409, [first])
    asked = client.post(f"{ORDERS}/ack", json={"deliveries": [first, second]})
    assert (asked.json()["error"], asked.json()["lost"], asked.json()["ended"]) == ("lease_lost", [first], 1)
    assert client.get(ORDERS).json()["acked"] == {"count": 1, "more": False}


@pytest.mark.one_database
def test_payloads_of_bytes_are_base64(client: TestClient) -> None:
    create(client, payload="bytes")
    put(client, {"payload_base64": "AP8="})
    [peeked] = client.get(f"{ORDERS}/messages").json()
    [delivery] = receive(client)
    assert peeked["payload_base64"] == delivery["payload_base64"] == "AP8="
    for wrong in ({"payload_base64": "!"}, {}, {"payload": "x"}, {"payload": "x", "payload_base64": "AP8="}):
        assert client.post(f"{ORDERS}/messages", json={"messages": [wrong]}).status_code == 400


@pytest.mark.one_database
def test_a_wait_ends_with_the_next_message(client: TestClient, database: wc.Database) -> None:
    create(client)
    assert receive(client, wait="1ms") == []
    database.table("orders").put(1, delay="50ms")
    assert [each["payload"] for each in receive(client, wait="30s")] == [1]
    assert client.post(f"{ORDERS}/receive", json={"consumer": "c", "wait": "61s"}).status_code == 400


@pytest.mark.one_database
def test_groups_are_listed_and_managed(client: TestClient) -> None:
    create(client, groups="sequenced")
    client.put("/api/tables/other", json={"payload": "json", "groups": "sequenced"})
    put(client, *({"payload": n, "group": "g/1"} for n in range(3)))
    [group] = client.get(f"{ORDERS}/groups").json()
    assert (group["group"], group["waiting"]) == ("g/1", 3)
    assert client.get(f"{ORDERS}/groups/one", params={"group": "g/1"}).json() == group
    tried = client.post(f"{ORDERS}/groups/purge", json={"group": "g/1", "dry_run": True}).json()
    assert tried == {"done": 3, "skipped": 0}
    for verb, more in [
        ("pause", {}),
        ("resume", {}),
        ("pin", {"consumer": "c"}),
        ("unpin", {}),
        ("release", {}),
        ("skip-head", {}),
        ("reroute", {"to": "g2"}),
    ]:
        assert client.post(f"{ORDERS}/groups/{verb}", json={"group": "g/1", **more}).status_code == 200, verb
    assert client.post(f"{ORDERS}/groups/move", json={"group": "g2", "to": "other"}).json()["done"] == 2
    first = client.post("/api/tables/other/receive", json={"consumer": "c", "limit": 2}).json()["deliveries"]
    asked = client.post("/api/tables/other/ack", json={"deliveries": [first[1]["delivery"]]})
    assert (asked.status_code, asked.json()["error"]) == (409, "out_of_order")
    assert asked.json()["blocking_id"] == first[0]["id"]
    missing = client.get(f"{ORDERS}/groups/one", params={"group": "none"})
    assert missing.status_code == 404


@pytest.mark.one_database
def test_schedules_are_set_and_run(client: TestClient) -> None:
    create(client)
    place = f"{ORDERS}/schedules/a%2Fb"
    made = client.put(place, json={"cron": "0 3 * * 1-5", "payload": {"n": 1}, "timezone": "Europe/Berlin"}).json()
    assert (made["name"], made["payload"], made["paused"]) == ("a/b", {"n": 1}, False)
    assert client.post(f"{place}/run").json()["id"] == "1"
    assert client.post(f"{place}/pause").status_code == 200
    assert client.get(f"{ORDERS}/schedules").json()[0]["paused"] is True
    assert client.post(f"{place}/resume").status_code == 200
    assert client.post(f"{place}/explode").status_code == 422
    assert client.delete(place).json() == {"removed": "a/b"}
    assert client.delete(place).status_code == 404
    for cron in ("* * * *", "9" * 900, "*/0 * * * *", "x" * 2_000):
        assert client.put(place, json={"cron": cron, "payload": 1}).status_code in (400, 422), cron[:20]


@pytest.mark.one_database
def test_a_table_is_altered_paused_purged_and_removed(client: TestClient) -> None:
    create(client)
    assert client.put(ORDERS, json={}).status_code == 409
    altered = client.patch(ORDERS, json={"ack_wait": "2m", "rate_limit": 5}).json()
    assert (altered["options"]["ack_wait"], altered["options"]["rate_limit"]) == ("2m", 5)
    assert client.post(f"{ORDERS}/pause", json={}).json()["paused_until"] == "never"
    assert client.post(f"{ORDERS}/resume").json()["paused_until"] is None
    assert client.post(f"{ORDERS}/purge").json() == {"purged": 0}
    for wrong in ({"ack_wait": "soon"}, {"dead_letter": "a b"}, {"ack_wait": -1}, {"jitter": 2}):
        assert client.patch(ORDERS, json=wrong).status_code == 400, wrong
    assert client.patch(ORDERS, json={"payload": "text"}).status_code == 422
    assert client.delete(ORDERS).json() == {"removed": "orders"}


@pytest.mark.parametrize(
    "condition", ["1 = 1 OR sleep(1)", "id IN (SELECT 1)", "(" * 5_000, "region = :missing", "; --"]
)
@pytest.mark.one_database
def test_only_conditions_of_the_parser_are_evaluated(client: TestClient, condition: str) -> None:
    create(client)
    asked = client.post(f"{ORDERS}/receive", json={"consumer": "c", "where": condition})
    assert (asked.status_code, asked.json()["error"]) == (400, "invalid"), asked.text


@pytest.mark.one_database
def test_more_streams_than_allowed_are_refused(client: TestClient) -> None:
    create(client)
    client.app.state.stream_limit._open = 500  # type: ignore[attr-defined]
    asked = client.post(f"{ORDERS}/receive", json={"consumer": "c", "wait": "10s"})
    assert (asked.status_code, asked.headers["retry-after"]) == (503, "5")


def test_every_option_can_be_set(database: wc.Database) -> None:
    for body, create in ((TableOptionsBody, database.create_table), (TopicOptionsBody, database.create_topic)):
        given = {name: one.default for name, one in inspect.signature(create).parameters.items()}
        for own in ("name", "exist_ok", "adopt", "key_range"):
            given.pop(own, None)
        assert {name: field.default for name, field in body.model_fields.items()} == given
    assert set(OptionChangesBody.model_fields) == set(OptionChanges.__annotations__)


def test_failed_attempts_are_explained(client: TestClient) -> None:
    client.put("/api/tables/orders", json={"payload": "text"})
    client.post("/api/tables/orders/messages", json={"messages": [{"payload": "x", "id": 1}]})
    [delivery] = client.post("/api/tables/orders/receive", json={"consumer": "c"}).json()["deliveries"]
    client.post("/api/tables/orders/nack", json={"deliveries": [delivery["delivery"]], "error": "no paper"})
    [attempt] = client.get("/api/tables/orders/messages/1").json()["attempts"]
    assert (attempt["epoch"], attempt["consumer"], attempt["error"]) == (1, "c", "no paper")


def test_a_producer_closes_a_group(client: TestClient) -> None:
    create(client, groups="exclusive")
    put(client, {"payload": 1, "group": "a", "closes_group": True}, {"payload": 2, "group": "a"})
    [last] = receive(client, limit=1)
    assert receive(client, consumer="d") == []
    assert client.post(f"{ORDERS}/ack", json={"deliveries": [last["delivery"]]}).status_code == 200
    assert [each["payload"] for each in receive(client, consumer="d")] == [2]


@pytest.mark.one_database
def test_limits_rates_and_weights_of_keys_are_set_and_changed(client: TestClient) -> None:
    create(
        client, columns={"customer": "text"}, limit={"customer": 3}, rate={"customer": "60000/m"}, weights={"vip": 2}
    )
    put(client, *({"payload": key, "columns": {"customer": key}} for key in ("a", "a", "a", "vip", "vip", "vip")))
    assert sorted(each["payload"] for each in receive(client, limit=10)) == ["a"] * 3 + ["vip"] * 3
    put(client, {"payload": "b", "columns": {"customer": "a"}})
    assert receive(client, limit=10) == []
    assert client.get(f"{ORDERS}/messages/7").json()["state"] == "limit"
    changes = {"limit": {"customer": 4}, "rate": {"customer": 0.001}, "weights": None}
    options = client.patch(ORDERS, json=changes).json()["options"]
    assert (options["limit"], options["rate"], options["weights"]) == ({"customer": 4}, {"customer": "0.001/s"}, None)
    for wrong in (
        {"rate": {"customer": "10/w"}},
        {"rate": {"customer": 10**400}},
        {"rate": {"kind": "10/s"}},
        {"limit": {"customer": 0}},
        {"weights": {"vip": 0}},
        {"weights": {}},
    ):
        refused = client.patch(ORDERS, json=wrong)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid"), refused.text
        assert next(iter(wrong)) in refused.json()["message"]
    for wrong in ({"rate": "10/s"}, {"rate": {"customer": True}}, {"weights": {"vip": "2"}}, {"fair_by": "customer"}):
        assert client.patch(ORDERS, json=wrong).status_code == 422, wrong
