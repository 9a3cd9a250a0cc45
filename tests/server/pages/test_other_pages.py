"""The pages of groups, schedules, workers and the system."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from tests.server.browsing import BROWSER, send_form

import waterclock as wc
from waterclock._support import moments
from waterclock.database.schema.ingest_catalogue import ingest_files, ingest_partitions, ingest_sessions
from waterclock.database.schema.process_catalogue import process_reports
from waterclock.monitoring.process_reports import ProcessReport, read_reports
from waterclock.server.pages import ingest
from waterclock.server.pages.cron_words import in_words
from waterclock.server.pages.pipelines import timeline_query
from waterclock.server.pages.tables import groups
from waterclock.tables.messages.rows.process_heartbeat import RunningHandler, process_heartbeat

pytestmark = pytest.mark.one_database

HOSTILE = "<script>alert('x')</script>\"&\x1b[2J\u202e/"


@pytest.fixture
def shipments(database: wc.Database) -> wc.MessageTable:
    """A table with a blocked group "a" of two messages, and a group "b" of one."""
    table = database.create_table(
        "shipments", groups="sequenced", max_attempts=1, on_exhausted="block", payload="text", batch_size=1
    )
    table.put_many([{"payload": "1", "group": "a"}, {"payload": "2", "group": "a"}, {"payload": "3", "group": "b"}])
    next(one for one in table.receive(1, consumer="worker") if one.group == "a").nack(error="carrier away")
    return table


def test_groups_show_what_blocks_them(shipments: wc.MessageTable, client: TestClient) -> None:
    found = client.get("/tables/shipments/groups?format=json").json()["groups"]
    assert [(one["group"], one["state"], one["waiting"]) for one in found] == [
        ("a", "exhausted", 2),
        ("b", "ready", 1),
    ]
    blocked = client.get("/tables/shipments/groups?format=json&show=blocked").json()["groups"]
    assert [(one["group"], one["head_id"], one["head_attempts"]) for one in blocked] == [("a", "1", 1)]
    assert "has used up its attempts (1); skip it" in client.get("/tables/shipments/groups?group=a").text
    assert "This group has no messages" in client.get("/tables/shipments/groups?group=c").text


def test_the_first_message_of_a_group_is_skipped(shipments: wc.MessageTable, client: TestClient) -> None:
    path = "/tables/shipments/groups/skip?group=a"
    assert "<b>1 message</b> would change" in client.get(path).text
    answer = send_form(client, path)
    assert answer.headers["location"] == "/tables/shipments/groups?done=skip&rows=1"
    assert shipments.explain(1).state == "acked"


def test_a_group_is_paused_resumed_moved_and_purged(
    shipments: wc.MessageTable, database: wc.Database, client: TestClient
) -> None:
    database.create_table("others", groups="sequenced", payload="text")
    for command in ("pause", "resume", "release", "close"):
        assert send_form(client, f"/tables/shipments/groups/{command}?group=b").status_code == 303
    assert "<b>1 message</b> would change" in client.get("/tables/shipments/groups/move?group=b").text
    assert (
        send_form(client, "/tables/shipments/groups/move?group=b", to="others").headers["location"].endswith("rows=1")
    )
    assert send_form(client, "/tables/shipments/groups/purge?group=a").headers["location"].endswith("rows=2")
    assert [one.waiting for one in database.table("others").groups.list()] == [1]


def test_moving_needs_a_right_to_the_other_table(
    shipments: wc.MessageTable, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    client = serve()
    client.headers.update(bearer("manage table:shipments"))
    assert send_form(client, "/tables/shipments/groups/move?group=b", to="others").status_code == 403


def test_a_table_without_groups_says_how_to_have_some(database: wc.Database, client: TestClient) -> None:
    database.create_table("orders")
    assert "--groups sequenced" in client.get("/tables/orders/groups").text


def test_schedules_are_shown_in_words_and_run_now(database: wc.Database, client: TestClient) -> None:
    table = database.create_table("orders", payload="text")
    table.schedule("nightly", cron="0 3 * * 1-5", payload="x", timezone="Europe/Berlin")
    (found,) = client.get("/schedules?format=json").json()["schedules"]
    assert (found["words"], len(found["next_ticks"])) == ("every weekday at 03:00", 5)
    assert found["next_ticks"] == sorted(found["next_ticks"])
    page = client.get("/schedules")
    assert "every weekday at 03:00, Europe/Berlin" in page.text
    for command, rows in (("run", 1), ("pause", 1), ("resume", 1)):
        token = page.text.split('name="form_token" value="')[1][:64]
        path = f"/tables/orders/schedules/nightly/{command}"
        answer = client.post(path, data={"form_token": token}, follow_redirects=False)
        assert answer.headers["location"] == f"/schedules?done={command}&rows={rows}"
    assert table.stats().ready == 1
    (found,) = client.get("/schedules?format=json").json()["schedules"]
    assert [(one["outcome"], one["message_id"]) for one in found["history"]] == [("run", "1")]
    assert 'href="/tables/orders/messages/1">message 1</a> by hand' in client.get("/schedules").text


def test_a_table_that_cannot_be_opened_hides_no_schedule_of_another(database: wc.Database, client: TestClient) -> None:
    for name in "broken", "orders":
        database.create_table(name).schedule("nightly", cron="0 3 * * *", payload=b"x")
    with database.begin() as connection:
        connection.execute(sa.text("DROP TABLE broken"))
    found = client.get("/schedules?format=json").json()
    assert ([one["table"] for one in found["schedules"]], found["broken"]) == (["orders"], ["broken"])
    assert "Table broken cannot be opened" in client.get("/schedules").text


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/1 * * * *", "every minute"),
        ("*/7 * * * *", None),  # after minute 56 comes minute 0
        ("*/90 * * * *", None),
        ("*/" + "9" * 900 + " * * * *", None),
        ("15 * * * *", "every hour at minute 15"),
        ("05 * * * *", "every hour at minute 5"),
        ("0" * 900 + " * * * *", "every hour at minute 0"),
        ("0 */1 * * *", "every hour"),
        ("0 */5 * * *", None),
        ("0 */6 * * *", "every 6 hours"),
        ("30 7 * * *", "every day at 07:30"),
        ("0 3 * * MON-FRI", "every weekday at 03:00"),
        ("0 0 * * 7", "every Sunday at 00:00"),
        ("*/10 * * * 1", "every 10 minutes, every Monday"),
        ("0 9 1 * *", "on day 1 of every month at 09:00"),
        ("0 9 31 * *", None),  # four months have no such day
        ("@daily", "every day at 00:00"),
        ("0 9 1,15 * *", None),
        ("0 9 * 2 *", None),
        ("0 9 1 * 1", None),
        ("0-30 9 * * *", None),
        ("0 9 * * L", None),
        ("not cron", None),
    ],
)
def test_usual_cron_expressions_have_words(cron: str, words: str | None) -> None:
    assert in_words(cron) == words


def test_workers_shows_processes_and_consumers(database: wc.Database, client: TestClient) -> None:
    assert "waterclock work MODULE:HANDLER" in client.get("/workers").text
    table = database.create_table("orders", payload="text")
    table.put_many([{"payload": "x"}] * 3)
    with table.subscribe("packer", limit=2) as deliveries:
        next(iter(deliveries))
        found = client.get("/workers?format=json").json()
        assert [(one["table"], one["subscriptions"]) for one in found["processes"]] == [("orders", 1)]
        assert [one["consumer"] for one in found["consumers"]] == ["packer"]
        assert "packer" in client.get("/workers").text


def test_a_stuck_handler_is_named_with_its_message_by_the_overview_and_by_workers(
    database: wc.Database, client: TestClient
) -> None:
    table = database.create_table("orders", payload="text", id_type="text")
    process = process_heartbeat(table.context)
    now = moments.monotonic_ns()
    running = [RunningHandler(HOSTILE, "packer", now - 90 * 10**9, True), RunningHandler("9", None, now, False)]
    with table.subscribe("packer") as deliveries:
        process.report_handlers(deliveries, lambda: running)
        process.beat()
        found = client.get("/workers?format=json").json()
        assert [(one["message_id"], one["consumer"], one["stuck"]) for one in found["handlers"]] == [
            (HOSTILE, "packer", True),
            ("9", None, False),
        ]
        assert found["handlers"][0]["seconds"] >= 90
        text = client.get("/workers").text
        assert f"/tables/orders/messages/{quote(HOSTILE, safe='')}" in text
        assert '<span class="tag is-bad">stuck</span>' in text
        assert re.search(r">\d+\xa0min \d+\xa0s<", text)
        assert "<script>alert" not in text
        assert "1 handler of table orders still runs after the time limit." in client.get("/").text
        process.report_handlers(deliveries, list)
        process.beat()
        assert client.get("/workers?format=json").json()["handlers"] == []


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_system_shows_sizes_to_those_who_may_read_them(
    database: wc.Database, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    for name in ("orders", "secret"):
        database.create_table(name, payload="text").put("x")
    client = serve()
    storage = client.get("/system?format=json").json()["storage"]
    assert storage["size"] > 0
    text = client.get("/system", headers=BROWSER).text
    assert "<dt>Size</dt>" in text
    limited = client.get("/system?format=json", headers=bearer("read table:orders")).json()["storage"]
    assert limited.keys() == {"tables"}
    if storage["tables"] is None:
        assert "Write-ahead log" in text
    else:
        assert {"orders", "secret", "waterclock_topics"} <= {one["name"] for one in storage["tables"]}
        assert [one["name"] for one in limited["tables"]] == ["orders"]


def test_ingest_shows_what_is_appended_and_which_sessions_are_silent(
    database: wc.Database, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    client = serve()
    assert "waterclock ingest mqtt://" in client.get("/ingest").text
    ids = {name: database.create_topic(name).storage.topic_id for name in ("telemetry", "secret")}
    now = database.backend.now()
    with database.begin() as connection:
        for number, seen_at in enumerate((now, now - ingest.SILENT - 1)):
            session = {"name": f"{HOSTILE}{number}@broker:1883", "owner": 1, "filters": "[]", "unacked": b""}
            connection.execute(sa.insert(ingest_sessions).values(**session, dropped=number, seen_at=seen_at))
        for name, topic_id in ids.items():
            file = {"device": 1, "inode": topic_id, "owner": 1, "path": f"/data/{name}{HOSTILE}", "fingerprint": b""}
            connection.execute(
                sa.insert(ingest_files).values(**file, topic_id=topic_id, offset=2_000, lines=7, seen_at=now)
            )
            partition = {"cluster": "c", "kafka_topic_id": "k", "partition": 3, "kafka_topic": name, "owner_epoch": 4}
            connection.execute(
                sa.insert(ingest_partitions).values(**partition, topic_id=topic_id, offset=17, seen_at=now)
            )
    found = client.get("/ingest?format=json").json()
    assert [(one["dropped"], one["silent"]) for one in found["sessions"]] == [(0, False), (1, True)]
    assert {(one["topic"], one["offset"], one["starts"]) for one in found["partitions"]} == {
        ("telemetry", 17, 4),
        ("secret", 17, 4),
    }
    page = client.get("/ingest").text
    assert "silent" in page
    assert "<script>alert" not in page
    for lags in ({}, {"press heat": 1.5}):
        report = ProcessReport(database.backend, "ingest", f"mqtt://broker {HOSTILE}{len(lags)}", 0, {}, "appended")
        report.write({"appended": 3, "dead": 2, "waiting": 1, "lags": lags})
    page = client.get("/ingest", headers=BROWSER).text
    assert "mqtt://broker" in page
    problems = client.get("/?format=json").json()["problems"]
    assert ["has dropped 1 messages" in one["text"] for one in problems] == [True]
    assert "2 dead" in page
    assert "<script>alert" not in page
    shown = serve(require_token=True).get("/ingest?format=json", headers=bearer("read topic:telemetry"))
    assert "mqtt://broker" not in shown.text
    assert "secret" not in shown.text
    assert (shown.json()["sessions"], shown.json()["files"][0]["path"]) == ([], None)


def test_pipelines_show_rate_lag_open_batches_rejected_messages_and_restarts(
    database: wc.Database,
    serve: Callable[..., TestClient],
    bearer: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = serve()
    assert "waterclock batch telemetry --follow" in client.get("/pipelines").text
    topic = database.create_topic("telemetry").storage.topic_id
    other = database.create_topic("secret").storage.topic_id
    fixed = {"table": HOSTILE, "rule": "window = 500ms, max_delay = 1s, on_conflict = split"}
    clock = iter([0.0, 1.0, 2.0, 12.0, 13.0, 14.0])
    monkeypatch.setattr("waterclock.monitoring.process_reports.moments", SimpleNamespace(monotonic=clock.__next__))
    for start in range(2):
        report = ProcessReport(database.backend, "batch", HOSTILE, topic, fixed)
        for _ in range(2 - start):
            counts = {"messages": 100 * (2 - start), "rejected": {"late": 3}, "open_batches": 7, "lag_messages": 812}
            report.write({**counts, "batches": 5, "outside": 0})
    report.write({**counts, "messages": 300, "batches": 6, "outside": 2, "missing_ids": 4, "incomplete_batches": 1})
    monkeypatch.undo()
    ProcessReport(database.backend, "pipeline", "not shown", other).write({"messages": 0}, ended=True)
    found = {one["topic"]: one for one in client.get("/pipelines?format=json").json()["pipelines"]}
    shown = found["telemetry"]
    assert (shown["restarts"], shown["state"], shown["facts"]["lag_messages"]) == (1, "runs", 812)
    assert shown["facts"]["messages_per_second"] == 200
    assert shown["timeline"] == "window=500ms&max_delay=1s&on_conflict=split"
    assert found["secret"]["state"] == "ended"
    page = client.get("/pipelines", headers=BROWSER).text
    assert "3 late" in page
    assert "4 missing ids" in page
    assert "1 without all streams" in page
    assert timeline_query("id_of = 'pulse', max_delay = 2s") == ""
    assert "<script>alert" not in page
    assert client.get(f"/topics/telemetry/batches?{shown['timeline']}").status_code == 200
    hidden = serve(require_token=True).get("/pipelines", headers=bearer("read topic:telemetry"))
    assert "not shown" not in hidden.text
    assert "not report any more" not in client.get("/", headers=BROWSER).text
    monkeypatch.setattr("waterclock.server.pages.pipelines.SILENT", -(10**15))
    assert "silent" in client.get("/pipelines").text
    problems = client.get("/?format=json").json()["problems"]
    assert [one["url"] for one in problems if "no longer reports" in one["text"]] == ["/pipelines"]
    database.topic("telemetry").remove()
    assert [one["topic"] for one in client.get("/pipelines?format=json").json()["pipelines"]] == ["secret"]


def test_a_report_that_cannot_be_written_stops_nothing(database: wc.Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "waterclock")
    report = ProcessReport(database.backend, "ingest", "mqtt://broker", 0)
    with database.backend.engine.begin() as connection:
        process_reports.drop(connection)
    for _ in range(2):
        report.write({"messages": 1})
    assert caplog.text.count("cannot write a report for the pages") == 1
    with database.backend.engine.begin() as connection:
        process_reports.create(connection)
    report.write({"messages": 2})
    with database.backend.snapshot() as connection:
        assert [one["starts"] for one in read_reports(connection, ("ingest",), 10)] == [1]


def test_the_system_page_hides_the_inside_from_tokens(
    database: wc.Database, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    database.create_table("orders")
    client = serve()
    local = client.get("/system?format=json").json()
    assert {(one["name"], one["task"]) for one in local["tasks"]} >= {("orders", "purge"), ("orders", "tick")}
    assert local["database"]["kind"] == "sqlite"
    shown = client.get("/system?format=json", headers=bearer("read table:others")).json()
    assert (shown["tasks"], shown["transactions"]) == ([], None)


def test_hostile_names_are_no_markup(database: wc.Database, client: TestClient) -> None:
    table = database.create_table("orders", groups="sequenced", payload="text", max_attempts=1, on_exhausted="block")
    table.put(HOSTILE, group=HOSTILE)
    table.schedule(HOSTILE, cron="* * * * *", payload=HOSTILE)
    for delivery in table.receive(1, consumer=HOSTILE):
        assert "alert" in client.get("/workers").text
        delivery.nack(error=HOSTILE)
    group = quote(HOSTILE, safe="")
    for path in (
        "/workers",
        "/schedules",
        "/system",
        "/tables/orders/groups",
        f"/tables/orders/groups?group={group}",
        f"/tables/orders/groups/skip?group={group}",
        f"/login?next={group}",
    ):
        text = client.get(path, headers=BROWSER).text
        assert "<script>alert" not in text, path
        assert not {"\x1b", "\u202e"} & set(text), path
    assert send_form(client, f"/tables/orders/groups/skip?group={group}").headers["location"].endswith("rows=1")


def test_a_database_that_is_away_has_a_page_that_tries_again(
    database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise wc.UnavailableError("connection to postgresql://secret refused")

    monkeypatch.setattr(database.backend, "snapshot", fail)
    for path in ("/", "/schedules"):
        answer = client.get(path, headers=BROWSER)
        assert answer.status_code == 503
        assert 'http-equiv="refresh"' in answer.text
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text


def test_groups_of_new_messages_are_listed_from_a_bounded_number_of_them(
    database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = database.create_table("orders", payload="text", groups="sequenced")
    table.put_many([{"payload": "x", "group": f"g{number // 4}"} for number in range(12)])
    monkeypatch.setattr(groups, "MOST_NEW", 8)
    page = client.get("/tables/orders/groups")
    assert "New messages may begin more groups than these" in page.text
    listed = client.get("/tables/orders/groups", params={"format": "json"}).json()
    assert [one["group"] for one in listed["groups"]] == ["g0", "g1"]
    assert client.get("/tables/orders/groups", params={"group": "g2", "format": "json"}).json()["groups"]
    monkeypatch.setattr(groups, "MOST_NEW", 12)
    assert "may begin more" not in client.get("/tables/orders/groups").text
