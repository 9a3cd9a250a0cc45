"""The pages of topics: ledgers and subscriptions over time, lags, and a seek that is previewed before it acts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

import waterclock as wc
from waterclock.ingest import topic_lags
from waterclock.time import format_time

pytestmark = pytest.mark.one_database

HOSTILE = "a/b <script>alert(1)</script>\u202e&\"'"
START = 1_764_147_600_000_000_000
SECOND = 1_000_000_000


def _iso(second: float) -> str:
    return format_time(START + int(second * SECOND))


def message(second: int, source: str = "press", **fields: Any) -> wc.Message:
    time = START + second * SECOND
    payload = f"<b>secret {second}</b>".encode()
    return wc.Message(source, "load", time, payload, publish_time=time, receive_time=time + 1_000, **fields)


def filled(database: wc.Database, name: str = "telemetry", ledgers: int = 3) -> wc.Topic:
    """Create a topic with ten messages a ledger, one a second."""
    topic = database.create_topic(name, roll_after=None)
    for ledger in range(ledgers):
        topic.append([message(10 * ledger + n) for n in range(10)])
        if ledger < ledgers - 1:
            topic.roll()
    return topic


def data(client: TestClient, path: str, **query: str) -> dict[str, Any]:
    answer = client.get(path, params={**query, "format": "json"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def form_token(page: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def confirm(client: TestClient, page: httpx.Response, path: str, **changes: str) -> httpx.Response:
    hidden = re.findall(r'<input type="hidden" name="(subscription|position)" value="([^"]*)"', page.text)
    fields: dict[str, str] = dict(hidden)
    form = {"form_token": form_token(page), **fields, **changes}
    return client.post(f"{path}/seek", data=form, follow_redirects=False)


def test_topics_are_listed_and_an_empty_list_names_the_command(database: wc.Database, client: TestClient) -> None:
    assert "waterclock topic add" in client.get("/topics").text
    filled(database)
    assert [one["messages"] for one in data(client, "/topics")["topics"]] == [30]
    assert 'href="/topics/telemetry"' in client.get("/topics").text


def test_ledgers_are_blocks_in_order_with_their_running_maximum(database: wc.Database, client: TestClient) -> None:
    topic = filled(database, ledgers=4)
    topic.seal()
    topic.truncate(wc.Position(1, 0, 0))
    shown = data(client, "/topics/telemetry")
    assert [(one["ledger"], one["state"], one["messages"]) for one in shown["ledgers"]] == [
        (1, "sealed", 10),
        (2, "sealed", 10),
        (3, "open", 10),
    ]
    assert [one["peak"] for one in shown["ledgers"]] == [_iso(19), _iso(29), _iso(39)]
    assert shown["trimmed"] == {"ledgers": 1, "messages": 10}
    assert not shown["ledgers_sampled"]
    text = client.get("/topics/telemetry").text
    assert "ledger 3, open: 10 messages" in text
    assert "10 messages in 1 ledgers were deleted before" in text


def test_of_many_ledgers_every_nth_stands_for_those_after_it(
    database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.server.pages.topics.topic.MOST_BLOCKS", 4)
    filled(database, ledgers=10)
    shown = data(client, "/topics/telemetry")
    assert [(one["ledger"], one["stands_for"], one["messages"]) for one in shown["ledgers"]] == [
        (0, 3, 30),
        (3, 3, 30),
        (6, 3, 30),
        (9, 1, 10),
    ]
    assert shown["ledgers_sampled"]
    assert "each stands for those after it" in client.get("/topics/telemetry").text
    zoomed = data(client, "/topics/telemetry", since=_iso(32), until=_iso(58))
    assert [(one["ledger"], one["stands_for"]) for one in zoomed["ledgers"]] == [(3, 1), (4, 1), (5, 1)]


def test_a_seek_is_previewed_and_then_confirmed(
    database: wc.Database, client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "waterclock.server.audit")
    topic = filled(database)
    topic.subscribe("billing", "latest")
    asked = client.get("/topics/telemetry", params={"to": _iso(12), "subscription": "billing"})
    assert "leads to position" in asked.text
    assert "18 messages are delivered again" in asked.text
    assert "secret" not in asked.text, "payloads are hidden until asked for"
    done = confirm(client, asked, "/topics/telemetry")
    assert (done.status_code, done.headers["location"]) == (303, "/topics/telemetry?done=billing")
    assert "It now stands at 1:0:2 with 18 unread" in client.get(done.headers["location"]).text
    assert [one.position for one in topic.subscribe("billing").read(1)] == [wc.Position(1, 0, 2)]
    assert "manage topic:telemetry, POST /topics/telemetry/seek" in caplog.text
    assert "status 303, 18" in caplog.text


def test_skipped_messages_are_named_before_a_seek_forward(database: wc.Database, client: TestClient) -> None:
    filled(database).subscribe("billing", "earliest")
    asked = client.get("/topics/telemetry", params={"to": "latest", "subscription": "billing"})
    assert "30 messages are <b>skipped</b>" in asked.text
    assert "the end of the topic" in asked.text


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ({"to": "earliest"}, "0:0:0"),
        ({"to": "1:0:4"}, "1:0:4"),
        ({"slide": "500"}, "1:0:5"),
        ({"to": str(START + 3 * SECOND)}, "0:0:3"),
    ],
)
def test_a_place_may_be_typed_or_slid_to(
    database: wc.Database, client: TestClient, query: dict[str, str], position: str
) -> None:
    filled(database)
    assert data(client, "/topics/telemetry", **query)["preview"]["position"] == position


def test_a_wrong_time_is_explained_in_its_place(database: wc.Database, client: TestClient) -> None:
    filled(database)
    page = client.get("/topics/telemetry", params={"to": "3 o'clock"})
    assert page.status_code == 200
    assert "to must be" in page.text


def test_a_payload_is_shown_when_asked_for_and_never_as_markup(database: wc.Database, client: TestClient) -> None:
    filled(database)
    page = client.get("/topics/telemetry", params={"to": "earliest", "payload": "true"})
    assert "&lt;b&gt;secret 0&lt;/b&gt;" in page.text
    shown = data(client, "/topics/telemetry", to="earliest", payload="true")["preview"]["message"]["payload"]
    assert shown == {"text": "<b>secret 0</b>", "truncated": False}


def test_names_are_text_everywhere(database: wc.Database, client: TestClient) -> None:
    topic = database.create_topic(HOSTILE)
    topic.append([message(0, source=HOSTILE, headers={HOSTILE: HOSTILE})])
    topic.subscribe(HOSTILE)
    path = f"/topics/{quote(HOSTILE, safe='')}"
    page = client.get(path, params={"to": "earliest", "subscription": HOSTILE})
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "\u202e" not in re.sub(r"<svg.*?</svg>|value=\"[^\"]*\"", "", page.text, flags=re.DOTALL)
    done = confirm(client, page, path, subscription=HOSTILE)
    assert done.status_code == 303
    assert client.get(done.headers["location"]).status_code == 200


def test_clocks_that_disagree_are_marked(database: wc.Database, client: TestClient) -> None:
    topic = filled(database)
    time = START + 100 * SECOND
    topic.append([wc.Message("oven", "load", time + SECOND, b"", publish_time=time + 9 * SECOND, receive_time=time)])
    streams = data(client, "/topics/telemetry")["lags"]["streams"]
    assert [(one["source"], one["clocks"]) for one in streams] == [
        ("oven", ["event time ahead", "publish time ahead"]),
        ("press", []),
    ]
    assert "a clock is ahead" in client.get("/topics/telemetry").text


def test_one_wild_clock_does_not_squeeze_the_picture(database: wc.Database, client: TestClient) -> None:
    topic = filled(database)
    topic.append([wc.Message("oven", "load", 0, b"", publish_time=START * 4, receive_time=START + 31 * SECOND)])
    axis = data(client, "/topics/telemetry")["axis"]
    assert (axis["since"], axis["until"][:4]) == (_iso(0), _iso(0)[:4])


def test_rights_of_the_pages_are_those_of_the_interface(
    database: wc.Database, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    filled(database).subscribe("billing")
    filled(database, "other")
    client = serve(require_token=True)
    reader, manager = bearer("read topic:telemetry"), bearer("read topic:telemetry", "manage topic:telemetry")
    assert [one["name"] for one in client.get("/topics?format=json", headers=reader).json()["topics"]] == ["telemetry"]
    assert client.get("/topics/other", headers=reader).status_code == 403
    query = {"to": "latest", "subscription": "billing"}
    looked = client.get("/topics/telemetry", headers=reader, params=query)
    assert "your token needs" in looked.text
    assert "/seek" not in looked.text
    page = client.get("/topics/telemetry", headers=manager, params=query)
    form = {"form_token": form_token(page), "subscription": "billing", "position": "1:0:0"}
    refused = client.post("/topics/telemetry/seek", data=form, headers=reader, follow_redirects=False)
    assert refused.status_code == 403
    assert client.post("/topics/telemetry/seek", data={**form, "form_token": ""}, headers=manager).status_code == 400
    missing = client.post("/topics/telemetry/seek", data={**form, "subscription": "bill"}, headers=manager)
    assert missing.status_code == 404
    assert [one.name for one in database.topic("telemetry").subscriptions()] == ["billing"]
    read_only = serve(require_token=True, read_only=True)
    page = read_only.get("/topics/telemetry", headers=manager, params=query)
    assert "read-only" in page.text
    sent = read_only.post("/topics/telemetry/seek", data=form, headers=manager)
    assert sent.status_code == 403
    assert database.topic("telemetry").subscribe("billing").position == wc.Position(0, 0, 0)


def test_an_empty_topic_says_what_to_do_next(database: wc.Database, client: TestClient) -> None:
    database.create_topic("new")
    page = client.get("/topics/new")
    assert "waterclock topic append new" in page.text
    assert "waterclock subscription add new" in page.text


def test_a_topic_whose_newest_ledgers_are_corrupt_still_has_its_page(
    database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(database, "broken")
    topic.roll()
    topic.seal()
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE waterclock_ledgers SET row_groups = NULL WHERE ledger = 1"))
    monkeypatch.setattr(topic_lags, "MOST_READ", 15)  # from the middle of the corrupt ledger on
    assert data(client, "/topics/broken")["lags"]["messages"] == 10
