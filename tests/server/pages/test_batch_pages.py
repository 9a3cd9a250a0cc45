"""The timeline of batches: the picture equals a replay, for any range, by bounded reading."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
from fastapi.testclient import TestClient

import waterclock as wc
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.live.rules import ByEventTime, ById, ByRate, LiveRule
from waterclock.server.pages.pipelines import timeline_query
from waterclock.server.pages.topics.batch_range import Batched, TooMany, batches_by_event_time, batches_by_rate
from waterclock.server.pages.topics.time_range import TimeRange
from waterclock.time import format_time

pytestmark = pytest.mark.one_database

MS = 1_000_000
SECOND = 1_000_000_000
START = 1_764_147_600 * SECOND
HOSTILE = "a/b <script>alert(1)</script>\u202e&\"'"

Facts = tuple[str, int, int, int | None, str, int]


def disordered(seed: int, count: int = 600) -> list[wc.Message]:
    """Return messages of three sources in order of receipt; some are late, ahead or sent twice."""
    chance = random.Random(seed)  # noqa: S311  # data of a test
    messages: list[wc.Message] = []
    for n in range(count):
        time = START + n * 40 * MS + chance.randrange(30) * MS
        lag = chance.choice([0, 5, 20, 100, 100, 700, -50]) * MS
        source, stream = chance.choice("abc"), chance.choice("xyz")
        message = wc.Message(source, stream, time, b"", publish_time=time, receive_time=time + lag)
        messages += [message] * chance.choice([1, 1, 1, 1, 2])
    return sorted(messages, key=lambda one: (one.receive_time or 0) + chance.randrange(40) * MS)


def filled(database: wc.Database, messages: list[wc.Message], name: str = "telemetry") -> wc.Topic:
    topic = database.create_topic(name, roll_after=None)
    for first in range(0, len(messages), 50):
        topic.append(messages[first : first + 50])
        if first % 200 == 150:
            topic.roll()
    topic.seal()
    return topic


def replayed(topic: wc.Topic, until: int, **options: Any) -> list[Facts]:
    batcher = wc.BySource(lambda: wc.EventTimeBatcher(**options))
    batches = [batch for message in topic.read() for batch in batcher.add(message)]
    batches += batcher.advance(until)
    return [(b.source, b.start, b.end, b.closed_at, b.reason, len(b.messages)) for b in batches]


def drawn(found: Batched | TooMany) -> list[Facts]:
    assert isinstance(found, Batched)
    return [
        (source, one.start, one.end, one.closed_at, one.reason, one.messages)
        for source, windows in found.windows.items()
        for one in windows
    ]


def within(facts: list[Facts], view: TimeRange) -> set[Facts]:
    return {each for each in facts if each[2] >= view.start and each[1] <= view.end}


@pytest.mark.parametrize(
    "options",
    [
        {"window": "200ms", "max_delay": "150ms"},
        {"window": "500ms", "max_delay": "1s", "max_lead": "60ms", "on_conflict": "isolate"},
        {"window": "300ms", "max_delay": "100ms", "on_conflict": "replace"},
        {"window": "1s", "max_delay": "120ms", "gap": "90ms"},
        {"window": "2s", "max_delay": "150ms", "on_conflict": "keep", "boundaries": ["z"]},
    ],
)
def test_the_picture_equals_a_replay_for_every_range(database: wc.Database, options: dict[str, Any]) -> None:
    topic = filled(database, disordered(1))
    newest = max(message.receive_time or 0 for message in topic.read())
    rule = EventTimeRule.checked(**options)
    expected = replayed(topic, newest - 1, **options)
    chance = random.Random(2)  # noqa: S311  # data of a test
    for _ in range(12):
        start = START + chance.randrange(26_000) * MS
        view = TimeRange(start, start + chance.choice([1, 300, 2_500, 12_000]) * MS)
        found = drawn(batches_by_event_time(topic, rule, view, 0, None))
        closed = [each for each in found if each[4] != "open"]
        assert within(closed, view) == within(expected, view), view


def test_a_source_that_is_received_after_the_others_is_drawn_within_the_skew(database: wc.Database) -> None:
    times = [(source, START + n * 100 * MS - late) for n in range(90) for source, late in (("a", 0), ("b", 3 * SECOND))]
    topic = filled(database, [wc.Message(source, "x", time, receive_time=time) for source, time in times])
    view = TimeRange(START, START + SECOND)
    found = drawn(batches_by_event_time(topic, EventTimeRule.checked("200ms", "100ms"), view, 3 * SECOND, None))
    expected = replayed(topic, START + 9 * SECOND, window="200ms", max_delay="100ms")
    assert within(found, view) == within(expected, view)


def test_of_one_source_its_batches_are_the_same(database: wc.Database) -> None:
    topic = filled(database, disordered(3))
    rule = EventTimeRule.checked("200ms", "150ms")
    view = TimeRange(START + 5 * SECOND, START + 9 * SECOND)
    every, some = (drawn(batches_by_event_time(topic, rule, view, 0, which)) for which in (None, ["b"]))
    assert within(some, view) == {each for each in within(every, view) if each[0] == "b"}
    assert within(some, view)


def test_the_newest_windows_are_open_until_the_clock_has_passed_them(database: wc.Database) -> None:
    messages = [wc.Message("a", "x", START + n * 300 * MS, b"", receive_time=START + n * 300 * MS) for n in range(4)]
    topic = filled(database, messages)
    view = TimeRange(START, START + SECOND)
    found = drawn(batches_by_event_time(topic, EventTimeRule.checked("100ms", "250ms"), view, 0, None))
    assert [(each[1] - START) // MS for each in found] == [0, 300, 600, 900]
    assert [each[4] for each in found] == ["timeout", "timeout", "open", "open"]


def test_by_rate_the_batches_are_those_of_the_batcher(database: wc.Database) -> None:
    chance = random.Random(4)  # noqa: S311  # data of a test
    messages = [
        wc.Message(source, "x", time, b"", publish_time=time, receive_time=time + 5 * MS)
        for n in range(400)
        for source in "ab"
        for time in [START + n * 100 * MS + chance.randrange(3) * MS]
    ]
    topic = filled(database, messages)
    batchers = {source: wc.RateAwareBatcher("1s", clock=lambda: 0.0) for source in "ab"}
    batches: list[wc.Batch] = []
    for first in range(0, len(messages), 50):
        for source, batcher in batchers.items():
            batches += batcher.add([one for one in messages[first : first + 50] if one.source == source])
    expected: list[Facts] = [(b.source, b.start, b.end, b.closed_at, b.reason, len(b.messages)) for b in batches]
    view = TimeRange(START + 3 * SECOND, START + 50 * SECOND)
    found = batches_by_rate(topic, {"batch_length": "1s", "timeout": None, "max_disorder": 0}, view, None, None)
    assert within([each for each in drawn(found) if each[4] != "open"], view) == within(expected, view)
    assert "slots" in {each[4] for each in drawn(found)}
    assert isinstance(found, Batched)
    assert found.clocks == {source: batcher.high_water_mark for source, batcher in batchers.items()}


def test_by_rate_windows_of_a_past_range_are_shown_as_they_closed(database: wc.Database) -> None:
    times = [START + n * 100 * MS for n in range(200)]
    topic = filled(database, [wc.Message("a", "x", time, publish_time=time, receive_time=time) for time in times])
    options: dict[str, Any] = {"batch_length": "1s", "timeout": None, "max_disorder": 0}
    found = drawn(batches_by_rate(topic, options, TimeRange(START + 7 * SECOND, START + 9 * SECOND), None, None))
    assert {reason for _, _, _, _, reason, _ in found} == {"slots"}


def test_by_rate_with_aligned_clocks_messages_are_where_the_windows_are(
    database: wc.Database, client: TestClient
) -> None:
    times = [(stream, START + n * 100 * MS) for n in range(200) for stream in "xy"]
    behind = {"x": 0, "y": 3_600 * SECOND}
    filled(database, [wc.Message("a", s, at - behind[s], b"", publish_time=at, receive_time=at) for s, at in times])
    asked = {"by": "rate", "since": format_time(START), "until": format_time(START + 20 * SECOND)}
    as_sent, aligned = (page_data(client, **asked, **more)["lanes"][0] for more in ({}, {"clocks": "align"}))
    assert as_sent["messages"] == 200
    assert aligned["messages"] == 400
    assert sum(one["messages"] for one in aligned["windows"]) == 400
    page = client.get("/topics/telemetry/batches", params={**asked, "clocks": "align"}).text
    assert '<option value="align" selected>' in page
    assert "clocks=align" in timeline_query("batch_length = 1s, clocks = align")
    disordered_rule = ByRate.checked("1s", max_disorder="2s").text
    assert timeline_query(disordered_rule).endswith("&max_disorder=2s")


@pytest.mark.one_database
def test_a_time_that_its_offset_moves_beyond_64_bits_is_left_out_of_the_picture(
    database: wc.Database, client: TestClient
) -> None:
    times = [START + n * 100 * MS for n in range(40)]
    sent = [wc.Message("a", "x", at + SECOND, b"", publish_time=at, receive_time=at) for at in times]
    sent[20] = sent[20].replace(event_time=-(2**63))
    filled(database, sent)
    asked = {"by": "rate", "since": format_time(START), "until": format_time(START + 20 * SECOND)}
    assert page_data(client, **asked, clocks="align")["lanes"][0]["messages"] == 39


@pytest.mark.parametrize(
    ("timeout", "query"),
    [
        (None, "by=rate&batch_length=1s&timeout=1200ms"),
        ("auto", "by=rate&batch_length=1s&timeout=auto"),
        (math.inf, "by=rate&batch_length=1s&timeout=inf"),
    ],
)
def test_the_link_of_a_pipeline_by_rate_leads_to_its_rule(
    database: wc.Database, client: TestClient, timeout: Any, query: str
) -> None:
    assert timeline_query(ByRate.checked("1s", timeout).text) == query
    filled(database, [wc.Message("a", "x", START, b"", publish_time=START, receive_time=START)])
    page_data(client, **dict(parse_qsl(query)))


def test_the_link_of_a_rule_that_the_timeline_cannot_use_names_none() -> None:
    rules: tuple[LiveRule, ...] = (
        ByRate.checked("adaptive", None),
        ByRate.checked("1s", gated=["x"]),
        ById(IdRule.checked("train", "2s")),
        ByEventTime(EventTimeRule.checked("1s", "2s", boundaries=["run", "a, gap = 3s"])),
    )
    assert [timeline_query(rule.text) for rule in rules] == [""] * 4
    assert timeline_query("batch_length = 1s, forget_after = 1d") == ""


@pytest.mark.parametrize("streams", [["run"], ["run", "stop [1]"]])
def test_the_link_of_a_pipeline_names_the_streams_that_cut(streams: list[str]) -> None:
    of_follower = ByEventTime(EventTimeRule.checked("1s", "2s", boundaries=streams)).text
    of_spark = f"window = 1s, boundaries = {frozenset(streams)}, max_skew = 3s"
    for rule in (of_follower, of_spark):
        [(_, names)] = [pair for pair in parse_qsl(timeline_query(rule)) if pair[0] == "boundaries"]
        assert sorted(names.split(",")) == streams


def page_data(client: TestClient, topic: str = "telemetry", **query: str) -> dict[str, Any]:
    answer = client.get(f"/topics/{topic}/batches", params={**query, "format": "json"})
    assert answer.status_code == 200, answer.text
    return answer.json()


RULE = {"window": "200ms", "max_delay": "150ms"}


def test_dots_while_they_fit_then_bars_then_the_density_alone(
    database: wc.Database, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(database, disordered(5))
    whole = {"since": format_time(START), "until": format_time(START + 30 * SECOND)}
    dots = page_data(client, **RULE, **whole)
    assert [lane["name"] for lane in dots["lanes"]] == ["a", "b", "c"]
    count = sum(lane["messages"] for lane in dots["lanes"])
    assert sum(len(lane["dots"]) for lane in dots["lanes"]) == count > 600
    assert set(dots["rejected"]) == {"late", "future", "duplicate"}
    monkeypatch.setattr("waterclock.server.pages.topics.batches.MOST_DOTS", 100)
    bars = page_data(client, **RULE, **whole)
    assert sum(sum(map(sum, lane["bars"].values())) for lane in bars["lanes"]) == count
    monkeypatch.setattr("waterclock.server.pages.topics.batch_range.MOST_JUDGED", 500)
    density = page_data(client, **RULE, **whole)
    assert (density["more_than"], density["lanes"]) == (500, [])
    assert abs(density["density"]["about"] - count) <= count / 20
    text = client.get("/topics/telemetry/batches", params={**RULE, **whole}).text
    assert "more than 500 messages" in text
    near = page_data(client, **RULE, since=format_time(START + 9 * SECOND), until=format_time(START + 10 * SECOND))
    assert near["more_than"] is None


def test_without_a_rule_the_density_is_shown(database: wc.Database, client: TestClient) -> None:
    filled(database, disordered(6, 100))
    data = page_data(client)
    assert data["follows"]
    assert data["density"]["about"] > 90
    assert data["problem"] is None


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"window": "200ms"}, "max_delay is missing"),
        ({"window": "-1s", "max_delay": "1s"}, "window must be"),
        ({"by": "moon"}, "must be event_time or rate"),
        ({"by": "rate", "boundaries": "run,"}, "boundaries must hold non-empty strings, got ''"),
        ({"by": "rate", "batch_length": "0s"}, "batch_length must be"),
        ({"by": "rate", "clocks": "utc"}, "clocks must be one of"),
        ({"by": "rate", "max_disorder": "1h"}, "max_disorder must be at most 3 batch lengths"),
        ({**RULE, "on_conflict": "<script>"}, "on_conflict must be one of"),
    ],
)
def test_a_wrong_rule_is_explained_as_in_the_command(
    database: wc.Database, client: TestClient, query: dict[str, str], problem: str
) -> None:
    filled(database, disordered(7, 50))
    assert problem in page_data(client, **query)["problem"]
    page = client.get("/topics/telemetry/batches", params=query)
    assert page.status_code == 200
    assert "<script>" not in page.text.replace("<script src", "")


def test_streams_that_cut_may_have_spaces_between_them(database: wc.Database, client: TestClient) -> None:
    filled(database, disordered(7, 50))
    apart, together = (page_data(client, **RULE, boundaries=names)["reasons"] for names in ("x, y", "x,y"))
    assert apart == together
    assert page_data(client, **RULE, boundaries="x")["reasons"] != together


def test_a_source_has_a_lane_for_each_stream(database: wc.Database, client: TestClient) -> None:
    filled(database, disordered(8))
    data = page_data(client, **RULE, source="b", length="5s")
    assert [lane["name"] for lane in data["lanes"]] == ["x", "y", "z"]
    windows = [lane["windows"] for lane in data["lanes"]]
    assert windows[0] == windows[1] == windows[2] != []


def test_links_zoom_and_move(database: wc.Database, client: TestClient) -> None:
    filled(database, disordered(9, 50))
    since, until = format_time(START), format_time(START + SECOND)
    moves = {one["name"]: one for one in page_data(client, since=since, until=until)["moves"]}
    assert moves["Zoom in"]["since"] == format_time(START + 250 * MS)
    assert moves["Later"]["until"] == format_time(START + 1500 * MS)
    assert moves["Zoom out"]["since"] == format_time(START - 500 * MS)
    text = client.get("/topics/telemetry/batches", params={"since": since, "until": until}).text
    assert {"+", "-"} <= set(re.findall(r'data-key="(.)"', text))


def test_names_are_text_everywhere(database: wc.Database, client: TestClient) -> None:
    topic = database.create_topic(HOSTILE)
    topic.append([wc.Message(HOSTILE, HOSTILE, START, b"", publish_time=START, receive_time=START)])
    for query in (RULE, {**RULE, "source": HOSTILE}, {"by": "rate"}):
        page = client.get(f"/topics/{quote(HOSTILE, safe='')}/batches", params=query)
        assert page.status_code == 200, page.text
        assert "<script>alert" not in page.text


def test_looking_needs_the_right_to_read(
    database: wc.Database, serve: Callable[..., TestClient], bearer: Callable[..., dict[str, str]]
) -> None:
    filled(database, disordered(10, 20))
    client = serve(require_token=True)
    assert client.get("/topics/telemetry/batches", headers=bearer("read topic:other")).status_code == 403
    assert client.get("/topics/telemetry/batches", headers=bearer("read topic:telemetry")).status_code == 200


def test_an_empty_topic_says_what_to_do_next(database: wc.Database, client: TestClient) -> None:
    database.create_topic("new")
    assert "waterclock topic append new" in client.get("/topics/new/batches", params=RULE).text
