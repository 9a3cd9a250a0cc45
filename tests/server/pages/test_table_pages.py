"""The overview, and the pages of a table and of its messages: what they show, and what their forms change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from tests.server.browsing import BROWSER, form_token, send_form

import waterclock as wc
from waterclock.tables.messages.inspecting import searching
from waterclock.tables.messages.inspecting.searching import MessageFilter, find_messages

HOSTILE = "<script>alert('x')</script>\"&\x1b[2J\u202e"
DECLINED = "ValueError: card <number> declined"


@pytest.fixture
def orders(database: wc.Database) -> wc.MessageTable:
    """A table in which three messages have failed in one way, and one in another."""
    table = database.create_table(
        "orders",
        payload="text",
        columns={"customer": "text"},
        max_attempts=9,
        dead_letter="orders_dead",
        min_backoff="1h",
        max_backoff="1h",
    )
    table.put_many(
        {
            "payload": f"payload {number}",
            "customer": f"c{number}",
            "headers": {"kind": "paid" if number < 2 else "sent"},
        }
        for number in range(6)
    )
    for number, delivery in enumerate(table.receive(4, consumer="worker")):
        delivery.nack(error=f"ValueError: card {number} declined" if number < 3 else "TimeoutError: no answer")
    return table


def data(client: TestClient, path: str, **query: str) -> Any:
    answer = client.get(path, params={**query, "format": "json"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(client: TestClient, **query: str) -> list[str]:
    return sorted(one["id"] for one in data(client, "/tables/orders", **query)["found"]["messages"])


def test_the_overview_names_what_is_wrong_first(
    orders: wc.MessageTable, database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.server.pages.overview.LATE", 0)
    monkeypatch.setattr("waterclock.server.pages.overview.LAGGING", 0)
    database.create_table("paused").pause()
    groups = database.create_table("Shipments", groups="sequenced", max_attempts=1, on_exhausted="block")
    groups.put(b"x", group="a")
    groups.receive(1)[0].nack(error="x")
    topic = database.create_topic("telemetry")
    topic.subscribe("billing")
    topic.append([wc.Message("s", "t", 1)])
    found = data(client, "/")
    texts = [one["text"] for one in found["problems"]]
    assert [one["level"] for one in found["problems"]] == sorted(one["level"] for one in found["problems"])
    for part in (
        "table orders has been due",
        "Table paused is paused",
        "1 group of table Shipments is blocked",
        "billing of topic",
    ):
        assert any(part in text for text in texts), (part, texts)
    assert {"orders", DECLINED} <= {value for one in found["failures"] for value in (one["table"], one["error"])}
    assert [one["name"] for one in found["tables"] if one["name"] == "orders"] == ["orders"]
    page = client.get("/").text
    assert page.index("Table paused is paused") < page.index("Failures by error") < page.index("Message tables")


@pytest.mark.one_database
def test_dead_letters_are_one_problem_of_their_table_and_not_late_messages_without_a_consumer(
    orders: wc.MessageTable, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.server.pages.overview.LATE", -1)
    for delivery in orders.receive(1):
        delivery.dead_letter("broken")
    texts = [one["text"] for one in data(client, "/")["problems"]]
    assert any("has 1 dead letter." in text for text in texts), texts
    assert not any(f"table {orders.options.dead_letter} " in text for text in texts)


@pytest.mark.one_database
def test_an_empty_overview_says_what_to_type(client: TestClient) -> None:
    assert "waterclock table add orders" in client.get("/").text


@pytest.mark.one_database
def test_the_overview_shows_only_what_its_reader_may_read(
    orders: wc.MessageTable,
    database: wc.Database,
    serve: Callable[..., TestClient],
    bearer: Callable[..., dict[str, str]],
) -> None:
    database.create_table("secret").pause()
    shown = serve(require_token=True).get("/?format=json", headers=bearer("read table:orders"))
    assert "orders" in shown.text
    assert "secret" not in shown.text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["1", "2", "3", "4", "5", "6"]),
        ({"state": "ready"}, ["5", "6"]),
        ({"state": "delayed"}, ["1", "2", "3", "4"]),
        ({"state": "failed"}, ["1", "2", "3", "4"]),
        ({"id": "3"}, ["3"]),
        ({"id": "99"}, []),
        ({"header": "kind=paid"}, ["1", "2"]),
        ({"where": "customer = 'c4' OR epoch > 0 AND customer = 'c0'"}, ["1", "5"]),
        ({"text": "payload 5"}, ["6"]),
        ({"text": "%"}, []),
        ({"error": DECLINED}, ["1", "2", "3"]),
        ({"error": DECLINED, "header": "kind=paid", "text": "1"}, ["2"]),
    ],
)
def test_messages_are_found_by_every_part_of_a_filter(
    orders: wc.MessageTable, client: TestClient, query: dict[str, str], found: list[str]
) -> None:
    assert ids(client, **query) == found


@pytest.mark.parametrize("payload", ["bytes", "json"])
def test_text_is_found_in_every_kind_of_payload(database: wc.Database, client: TestClient, payload: Any) -> None:
    table = database.create_table("orders", payload=payload)
    table.put_many(
        [
            {"payload": b"\xff sku-17" if payload == "bytes" else {"sku": "sku-17"}},
            {"payload": b"" if payload == "bytes" else {}},
        ]
    )
    assert ids(client, text="sku-17") == ["1"]


@pytest.mark.parametrize(
    "query",
    [
        {"where": "customer = "},
        {"where": "message = 'x'"},
        {"where": "__import__('os')"},
        {"where": f"{'(' * 60}epoch = 1{')' * 60}"},
        {"id": "x"},
        {"state": "odd"},
        {"text": "x" * 1_001},
    ],
)
def test_an_invalid_filter_is_refused(orders: wc.MessageTable, client: TestClient, query: dict[str, str]) -> None:
    assert client.get("/tables/orders", params=query).status_code == 400


def test_failures_are_grouped_and_retried_together(orders: wc.MessageTable, client: TestClient) -> None:
    assert [(one["error"], one["count"]) for one in data(client, "/tables/orders")["failures"]] == [
        (DECLINED, 3),
        ("TimeoutError: no answer", 1),
    ]
    path = f"/tables/orders/act/retry?error={quote(DECLINED)}"
    assert "Retry 3 messages" in client.get(path).text
    answer = send_form(client, path)
    assert answer.headers["location"] == "/tables/orders?done=retry&rows=3"
    assert "Messages retried: 3" in client.get(answer.headers["location"]).text
    assert ids(client, state="delayed") == ["4"]


@pytest.mark.one_database
def test_a_retry_of_a_group_also_redrives_its_dead_letters(orders: wc.MessageTable, client: TestClient) -> None:
    orders.retry([1])
    next(one for one in orders.receive(10) if one.id == 1).dead_letter("ValueError: card 7 declined")
    (failed,) = [one for one in data(client, "/tables/orders")["failures"] if one["error"] == DECLINED]
    assert (failed["count"], failed["dead"]) == (3, 1)
    send_form(client, f"/tables/orders/act/retry?error={quote(DECLINED)}")
    assert ids(client, state="ready") == ["1", "2", "3"]


@pytest.mark.one_database
def test_each_action_changes_what_its_preview_has_shown(orders: wc.MessageTable, client: TestClient) -> None:
    assert (
        send_form(client, "/tables/orders/act/cancel?state=failed", reason="no").headers["location"].endswith("rows=4")
    )
    assert orders.explain(1).state == "cancelled"
    assert send_form(client, "/tables/orders/act/reschedule?id=5", at="1d").headers["location"].endswith("rows=1")
    assert ids(client, state="scheduled") == ["5"]
    send_form(client, "/tables/orders/act/rate", rate_limit="7.5")
    send_form(client, "/tables/orders/act/pause", until="1h")
    table = data(client, "/tables/orders")
    assert (table["options"]["rate_limit"], table["paused_until"] is None) == (7.5, False)
    send_form(client, "/tables/orders/act/resume")
    send_form(client, "/tables/orders/act/rate", rate_limit="")
    table = data(client, "/tables/orders")
    assert (table["options"]["rate_limit"], table["paused_until"]) == (None, None)


@pytest.mark.one_database
def test_a_purge_shows_how_many_rows_it_deletes(database: wc.Database, client: TestClient) -> None:
    table = database.create_table("orders", purge_after=0)
    assert "Nothing to do" in client.get("/tables/orders/act/purge").text
    table.ack(table.put_many([{"payload": b""}] * 3))
    assert "Purge 3 messages" in client.get("/tables/orders/act/purge").text
    assert send_form(client, "/tables/orders/act/purge").headers["location"].endswith("rows=3")


@pytest.mark.one_database
def test_dead_letters_are_redriven_up_to_the_number_shown(orders: wc.MessageTable, client: TestClient) -> None:
    for delivery in orders.receive(2):
        delivery.dead_letter("broken")
    assert "Redrive 2 dead letters" in client.get("/tables/orders/act/redrive").text
    assert send_form(client, "/tables/orders/act/redrive", most="1").headers["location"].endswith("rows=1")


@pytest.mark.one_database
def test_a_selection_is_dead_lettered_without_messages_in_flight(
    orders: wc.MessageTable, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    [out] = orders.receive(1)
    path = "/tables/orders/act/dead-letter"
    assert "Dead-letter 5 messages" in client.get(path).text
    assert "Dead-letter 3 messages" in client.get(f"{path}?error={quote(DECLINED)}").text
    with caplog.at_level(logging.INFO, "waterclock.server.audit"):
        answer = send_form(client, f"{path}?error={quote(DECLINED)}", reason="all cards expired")
    assert answer.headers["location"] == "/tables/orders?done=dead-letter&rows=3"
    assert "'error': 'ValueError: card <number> declined'" in caplog.text
    assert "3 rows" in caplog.text
    assert {one["dead_reason"] for one in orders.dead_letters()} == {"all cards expired"}
    out.ack()


@pytest.mark.one_database
def test_dead_lettering_without_a_dead_letter_table_names_the_remedy(database: wc.Database, client: TestClient) -> None:
    database.create_table("orders").put(b"")
    answer = client.get("/tables/orders/act/dead-letter")
    assert (answer.status_code, "Set dead_letter or max_attempts" in answer.text) == (400, True)
    assert "act/dead-letter" not in client.get("/tables/orders").text


@pytest.mark.one_database
def test_a_change_touches_no_more_messages_than_its_preview(orders: wc.MessageTable, client: TestClient) -> None:
    form = {"form_token": form_token(client.get("/tables/orders/act/cancel")), "most": "2"}
    orders.put("put meanwhile")
    answer = client.post("/tables/orders/act/cancel", data=form, follow_redirects=False)
    assert answer.headers["location"].endswith("rows=2")
    for wrong in ("", "-1", "x"):
        assert client.post("/tables/orders/act/cancel", data={**form, "most": wrong}).status_code == 400


@pytest.mark.one_database
def test_changes_are_in_the_audit_log(
    orders: wc.MessageTable, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "waterclock.server.audit"):
        send_form(client, "/tables/orders/act/cancel?state=failed", reason="no")
    assert "local manage table:orders, POST /tables/orders/act/cancel" in caplog.text
    assert "'state': 'failed'" in caplog.text
    assert "4 rows" in caplog.text


@pytest.mark.one_database
def test_a_read_only_server_shows_no_forms(orders: wc.MessageTable, serve: Callable[..., TestClient]) -> None:
    client = serve(read_only=True)
    for path in ("/tables/orders", "/tables/orders/messages/1"):
        page = client.get(path).text
        assert "/act/" not in page
        assert "read-only" in page
    assert client.get("/tables/orders/act/retry").status_code == 403


@pytest.mark.one_database
def test_a_message_has_a_timeline_and_hides_its_payload(orders: wc.MessageTable, client: TestClient) -> None:
    path = "/tables/orders/messages/1"
    page = client.get(path).text
    assert "was sent once and backs off" in page
    assert "Attempt 1" in page
    assert "card 0 declined" in page
    assert "payload 0" not in page
    assert data(client, path)["payload"] is None
    assert "payload 0" in client.get(path, params={"payload": "true"}).text
    assert data(client, path)["attempts"][0]["consumer"] == "worker"
    orders.ack([1])
    assert "was acked" in client.get(path).text
    assert client.get("/tables/orders/messages/99").status_code == 404


@pytest.mark.one_database
@pytest.mark.parametrize("payload", [HOSTILE, HOSTILE.encode() + b"\xff"])
def test_hostile_text_is_no_markup(database: wc.Database, client: TestClient, payload: Any) -> None:
    kind = "text" if isinstance(payload, str) else "bytes"
    table = database.create_table(
        "orders", payload=kind, id_type="text", groups="sequenced", max_attempts=1, on_exhausted="block"
    )
    table.put(payload, id=HOSTILE, group=HOSTILE, headers={HOSTILE: HOSTILE})
    table.receive(1, consumer=HOSTILE)[0].nack(error=HOSTILE)
    schedules = database.create_table("ticks", payload="text")
    schedules.schedule(HOSTILE, cron="* * * * *", payload=HOSTILE)
    message = quote(HOSTILE, safe="")
    for path in (
        "/",
        "/tables/orders",
        f"/tables/orders?error={message}&text={message}&header={message}",
        f"/tables/orders?id={message}",
        f"/tables/orders/messages/{message}",
        f"/tables/orders/messages/{message}?payload=true",
        f"/tables/orders/act/cancel?group={message}",
        f"/tables/{message}",
        f"/tables/orders?where={message}",
    ):
        text = client.get(path, headers=BROWSER).text
        assert "<script>alert" not in text, path
        assert not {"\x1b", "\u202e"} & set(text), path
    assert "\\x1b" in client.get(f"/tables/orders/messages/{message}").text


def test_a_page_of_a_large_table_reads_a_bounded_number_of_rows(
    database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SCANNED", 10)
    table = database.create_table("orders", payload="text")
    table.put_many({"payload": f"p{number}", "priority": number % 2} for number in range(60))
    found = data(client, "/tables/orders")
    assert sum(found["due"]) == 20
    assert (len(found["found"]["messages"]), found["found"]["complete"]) == (20, False)
    assert "This search looked at the first and the last" in client.get("/tables/orders").text
    assert ids(client, id="30") == ["30"], "by id it looks at all"
    statements: list[str] = []
    parameters: list[int] = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        statements.append(text)
        parameters.append(len(values))

    event.listen(database.backend.engine, "before_cursor_execute", note)
    with table.context.backend.snapshot(indexed=True) as connection:
        assert find_messages(table.context, connection, MessageFilter(), 5).more
    reading = [each for each in statements if "orders" in each]
    assert reading
    assert all("LIMIT" in each for each in reading)
    if database.backend.engine.dialect.name != "mysql":  # there, a list is sent as single values
        assert max(parameters) < 20
    client.get("/tables/orders")
    assert len(statements) < 40
