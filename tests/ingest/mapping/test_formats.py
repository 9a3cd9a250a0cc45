"""Each format maps what it documents, and refuses all else with an error that says why."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.arrow import to_arrow
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.format_rule import FORMATS, Format, FormatRule, JsonPaths, Published, RuleSet
from waterclock.ingest.mapping.json_values import JsonPath, read_json, write_json
from waterclock.ingest.mapping.mapped import UntimedError
from waterclock.message import Message

NOW = 1_800_000_000_000_000_000
PATHS = JsonPaths(time=JsonPath.parse("t"), value=JsonPath.parse("v"), time_unit="ms")


def rule(format_name: str, filter_text: str = "#", **options: object) -> FormatRule:
    return FormatRule.checked(filter_text, "telemetry", format_name, **options)  # pyright: ignore[reportArgumentType]


def mapped(each: FormatRule, topic: str, payload: bytes | str, **options: bool) -> list[tuple[str, str, int, bytes]]:
    data = payload if isinstance(payload, bytes) else payload.encode()
    messages = each.map(Published(topic, data, **options), NOW)
    return [(it.source, it.stream, it.event_time, it.payload) for it in messages]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["n", "v", "t", "bn", "bt", "time", "x"]), inner)
    ),
    max_leaves=8,
)
PAYLOADS = st.binary(max_size=30) | JSON_VALUES.map(lambda value: json.dumps(value).encode())
TOPICS = st.text(max_size=12) | st.sampled_from(["te/device/main///m/", "collectd/h/p/t", "a/b"])


@given(st.sampled_from(FORMATS), TOPICS, PAYLOADS, st.booleans())
def test_any_message_is_refused_or_mapped_to_one_that_a_topic_accepts(
    kind: Format, topic: str, payload: bytes, retained: bool
) -> None:
    each = rule(kind, paths=PATHS) if kind == "json" else rule(kind)
    try:
        messages = each.map(Published(topic, payload, retained), NOW)
    except InvalidArgumentError:
        return
    assert messages
    to_arrow(messages)
    for message in messages:
        assert Message(message.source, message.stream, message.event_time, message.payload)


def test_collectd() -> None:
    each = rule("collectd")
    found = mapped(each, "collectd/press-01/cpu-0/cpu-idle", b"1760120317.152:98.5\0")
    assert found == [("press-01", "cpu-0/cpu-idle", 1_760_120_317_152_000_000, b"1760120317.152:98.5\0")]
    assert mapped(each, "collectd/a/b/c", "1760120317.152:nan:1") == [
        ("a", "b/c", 1_760_120_317_152_000_000, b"1760120317.152:nan:1")
    ]


def test_receive_and_publish_time_are_the_time_of_receipt() -> None:
    [message] = rule("collectd").map(Published("collectd/a/b/c", b"1760120317:1"), NOW)
    assert (message.receive_time, message.publish_time) == (NOW, NOW)


@pytest.mark.parametrize(
    ("topic", "source", "stream"),
    [
        ("te/device/main///m/", "device/main", "temperature"),
        ("te/device/main///m/env", "device/main", "env/temperature"),
        ("te/device/child/service/app/m/env", "device/child/service/app", "env/temperature"),
    ],
)
def test_topics_of_thin_edge(topic: str, source: str, stream: str) -> None:
    assert mapped(rule("thin-edge"), topic, '{"time": 1760120317.152, "temperature": 25.10}') == [
        (source, stream, 1_760_120_317_152_000_000, b"25.10")
    ]


def test_a_group_of_thin_edge_is_a_stream_a_number() -> None:
    payload = '{"time": "2020-10-15T05:30:47+00:00", "current": {"L1": 9.5, "L2": 1.3}, "power": 12}'
    at = 1_602_739_847_000_000_000
    assert mapped(rule("thin-edge"), "te/device/main///m/env", payload) == [
        ("device/main", "env/current/L1", at, b"9.5"),
        ("device/main", "env/current/L2", at, b"1.3"),
        ("device/main", "env/power", at, b"12"),
    ]


def test_a_missing_time_is_the_time_of_receipt() -> None:
    assert mapped(rule("thin-edge"), "te/device/main///m/", '{"t": 1}') == [("device/main", "t", NOW, b"1")]
    assert mapped(rule("raw"), "plant/temperature", b"\xff") == [("plant", "temperature", NOW, b"\xff")]


@pytest.mark.parametrize(
    "payload", ["[]", "{}", '{"time": true, "a": 1}', '{"a": "hot"}', '{"a": {"b": {"c": 1}}}', '{"": 1}']
)
def test_other_payloads_of_thin_edge_are_refused(payload: str) -> None:
    with pytest.raises(InvalidArgumentError):
        mapped(rule("thin-edge"), "te/device/main///m/", payload)


@pytest.mark.parametrize("topic", ["te/device/main///m/env/meta", "te/device/main///a/alarm", "te/////m/", "x"])
def test_other_topics_of_thin_edge_are_refused(topic: str) -> None:
    with pytest.raises(InvalidArgumentError, match="thin-edge"):
        mapped(rule("thin-edge"), topic, '{"a": 1}')


def test_an_untimed_retained_message_is_not_now() -> None:
    with pytest.raises(UntimedError, match="has no time"):
        mapped(rule("raw"), "plant/temperature", b"21", is_retained=True)
    timed = mapped(rule("thin-edge"), "te/device/main///m/", '{"time": 1, "a": 1}', is_retained=True)
    assert timed[0][2] == 1_000_000_000


def test_json_paths_name_time_value_source_and_stream() -> None:
    paths = JsonPaths(*map(JsonPath.parse, ("meta.at", "/data/0", "id", "kind")), time_unit="ms")
    payload = '{"id": 7, "kind": "ph", "meta": {"at": 1760120317152.5}, "data": [{"x": 1.10}]}'
    assert mapped(rule("json", paths=paths), "a/b", payload) == [("7", "ph", 1_760_120_317_152_500_000, b'{"x":1.10}')]


def test_json_without_paths_keeps_the_payload_as_it_is() -> None:
    assert mapped(rule("json"), "a/b/c", '{ "x" : 1e2 }') == [("a", "b/c", NOW, b'{ "x" : 1e2 }')]


@pytest.mark.parametrize(
    "payload", ["{}", '{"t": null}', '{"t": "yesterday", "v": 1}', '{"t": NaN, "v": 1}', "[", "\\ud800"]
)
def test_json_without_what_its_paths_name_is_refused(payload: str) -> None:
    with pytest.raises(InvalidArgumentError):
        mapped(rule("json", paths=PATHS), "a/b", payload)


@given(JSON_VALUES)
def test_json_is_written_as_it_was_read(value: object) -> None:
    text = json.dumps(value)
    if "NaN" in text or "Infinity" in text or not isinstance(value, dict | list):
        return
    try:
        written = write_json(read_json(text.encode()))
    except InvalidArgumentError:
        assert "\\ud" in text
        return
    assert json.loads(written) == value


def test_senml_resolves_base_values() -> None:
    payload = json.dumps([
        {"bn": "urn:dev:ow:10e2073a01080063:", "bt": 1320067464.5, "bu": "%RH", "bv": 20, "n": "h", "v": 1.5},
        {"n": "t", "u": "Cel", "t": 60, "v": 3.5},
        {"n": "label", "t": -1.5, "vs": "ok"},
    ])  # fmt: skip
    each = rule("senml")
    messages = each.map(Published("x", payload.encode()), NOW)
    assert [(it.source, it.stream, it.event_time, it.payload, dict(it.headers or {})) for it in messages] == [
        ("urn:dev:ow:10e2073a01080063", "h", 1_320_067_464_500_000_000, b"21.5", {"unit": "%RH"}),
        ("urn:dev:ow:10e2073a01080063", "t", 1_320_067_524_500_000_000, b"23.5", {"unit": "Cel"}),
        ("urn:dev:ow:10e2073a01080063", "label", 1_320_067_463_000_000_000, b"ok", {"unit": "%RH"}),
    ]


def test_times_of_senml_below_2_to_the_28_count_from_the_receipt() -> None:
    payload = '[{"n": "a", "v": 1}, {"n": "b", "t": -5, "v": 2.50}, {"n": "c", "vd": "aGk", "t": 268435456}]'
    assert mapped(rule("senml", template="{source}"), "gateway", payload) == [
        ("gateway", "a", NOW, b"1"),
        ("gateway", "b", NOW - 5_000_000_000, b"2.50"),
        ("gateway", "c", 268_435_456_000_000_000, b"hi"),
    ]


@pytest.mark.parametrize(
    "record",
    [
        {"n": "a", "v": "1"},
        {"n": "a", "v": 1, "vs": "x"},
        {"n": "a", "v": 1, "must_": 1},
        {"n": "a", "v": 1, "bver": 11},
        {"n": "ä", "v": 1},
        {"v": 1},
        {"n": "a"},
        {"n": "a", "vd": "*"},
    ],
)
def test_other_records_of_senml_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        mapped(rule("senml"), "x", json.dumps([record]))


def test_a_record_of_senml_with_a_number_of_a_million_digits_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must be a number"):
        mapped(rule("senml"), "x", '[{"bv": 1e999999, "n": "a", "v": 1}]')


def test_the_first_filter_that_matches_maps_a_topic() -> None:
    rules = RuleSet([rule("raw", "a/#"), rule("collectd", "#")])
    assert rules.find("a/b").format == "raw"
    assert rules.find("b").format == "collectd"
    with pytest.raises(InvalidArgumentError, match="no filter matches"):
        rules.find("$SYS/x")
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        rules.find(b"\xff")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format_name": "xml"}, "format must be one of"),
        ({"format_name": "raw", "filter_text": None}, "filter is missing"),
        ({"format_name": "raw", "qos": 2}, "qos must be 0 or 1"),
        ({"format_name": "raw", "retained": "yes"}, "'retained' must be"),
        ({"format_name": "raw", "template": "{source}"}, "stream"),
        ({"format_name": "thin-edge", "template": "{source}"}, "template"),
        ({"format_name": "raw", "paths": JsonPaths()}, "must be omitted for the format raw"),
    ],
)
def test_wrong_options_of_a_rule_are_refused(options: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"filter_text": "#", **options}
    with pytest.raises(InvalidArgumentError, match=says):
        FormatRule.checked(topic="telemetry", **given)  # pyright: ignore[reportArgumentType]
