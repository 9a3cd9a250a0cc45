from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock._support.quoting import quoted
from waterclock.arrow import MESSAGE_SCHEMA, from_arrow
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.collectd import parse_columns
from waterclock.message import Message
from waterclock.time import MAX_NS

PART = st.text(st.characters(blacklist_characters="/", blacklist_categories=("Cs",)), min_size=1)
TOPIC = st.lists(PART, min_size=3, max_size=3).map(lambda parts: "/".join(["collectd", *parts]))
NUMBER = st.one_of(
    st.floats().map(lambda x: f"{x:.15g}"), st.integers(-(2**63), 2**64 - 1).map(str), st.sampled_from(["U", "nan"])
)
DECIMALS = st.text("0123456789", max_size=9)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """A payload and the event time that it must read as."""
    seconds = draw(st.integers(0, MAX_NS // 10**9 - 1))
    decimals = draw(DECIMALS)
    values = draw(st.lists(NUMBER, min_size=1, max_size=4))
    end = draw(st.sampled_from(["", "\0"]))
    text = f"{seconds}{'.' if decimals else ''}{decimals}:{':'.join(values)}{end}"
    return text.encode(), int(f"{seconds}{decimals:0<9}")


def columns(rows: list[tuple[str, bytes, int]]) -> pa.Table:
    topics, contents, times = zip(*rows, strict=True) if rows else ((), (), ())
    return parse_columns(
        pa.chunked_array([pa.array(topics, pa.string())]),
        pa.chunked_array([pa.array(contents, pa.binary())]),
        pa.chunked_array([pa.array(times, pa.int64())]),
    )


def parsed(topic: str, payload: bytes, receive_time: int = 0) -> Message:
    [message] = from_arrow(columns([(topic, payload, receive_time)]))
    return message


def test_a_message_has_its_host_as_source_and_its_plugin_and_type_as_stream() -> None:
    message = parsed("collectd/press-01/cpu-0/cpu-idle", b"1795250333.149:98.5\0", 7)
    assert (message.source, message.stream) == ("press-01", "cpu-0/cpu-idle")
    assert message.event_time == 1_795_250_333_149_000_000
    assert message.receive_time == 7
    assert message.payload == b"1795250333.149:98.5\0"
    assert message.publish_time is None


@given(payloads())
def test_the_event_time_is_exact_and_the_payload_unchanged(given_payload: tuple[bytes, int]) -> None:
    payload, event_time = given_payload
    message = parsed("collectd/h/p/t", payload)
    assert message.event_time == event_time
    assert message.payload == payload


@given(PART, PART, PART)
def test_any_name_may_be_a_host_a_plugin_or_a_type(host: str, plugin: str, kind: str) -> None:
    message = parsed(f"collectd/{host}/{plugin}/{kind}", b"1:2")
    assert (message.source, message.stream) == (host, f"{plugin}/{kind}")


@given(st.lists(st.tuples(TOPIC, payloads(), st.integers(0, MAX_NS)), max_size=20))
def test_many_messages_are_read_as_each_alone(rows: list[tuple[str, tuple[bytes, int], int]]) -> None:
    raw = [(topic, payload, received) for topic, (payload, _), received in rows]
    table = columns(raw)
    assert table.schema == MESSAGE_SCHEMA
    assert from_arrow(table) == [parsed(topic, payload, at) for topic, payload, at in raw]


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "collectd",
        "collectd/h",
        "collectd/h/p",
        "collectd/h/p/t/more",
        "collectd//p/t",
        "collectd/h//t",
        "collectd/h/p/",
        "other/h/p/t",
        "collectdh/p/t",
        "h/p/t",
    ],
)
def test_a_topic_of_another_form_is_an_error_that_names_it(topic: str) -> None:
    with pytest.raises(InvalidArgumentError) as one:
        parsed(topic, b"1:2")
    with pytest.raises(InvalidArgumentError) as many:
        columns([("collectd/h/p/t", b"1:2", 0), (topic, b"1:2", 0)])
    assert repr(topic) in str(one.value)
    assert str(many.value) == str(one.value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0",
        b"1",
        b"1.5",
        b"1:",
        b"1:2:",
        b":2",
        b"1.:2",
        b".5:2",
        b"-1:2",
        b"+1:2",
        b"1e3:2",
        b"nan:2",
        b"N:2",
        b" 1:2",
        b"1:2 ",
        b"1:2\n",
        b"1:2\0\0",
        b"1:2\x003",
        b"1:x",
        b"1.0123456789:2",
        b"9" * 5000 + b":2",
        "\N{ARABIC-INDIC DIGIT ONE}:2".encode(),
        b"\xff:2",
    ],
)
def test_a_payload_of_another_form_is_an_error_that_names_it(payload: bytes) -> None:
    with pytest.raises(InvalidArgumentError) as one:
        parsed("collectd/h/p/t", payload)
    with pytest.raises(InvalidArgumentError) as many:
        columns([("collectd/h/p/t", b"1:2", 0), ("collectd/h/p/t", payload, 0)])
    assert quoted(payload) in str(one.value)
    assert str(many.value) == str(one.value)


def test_a_time_that_int64_nanoseconds_cannot_hold_is_an_error() -> None:
    assert parsed("collectd/h/p/t", b"9223372036.854775807:1").event_time == MAX_NS
    with pytest.raises(InvalidArgumentError, match=r"9223372036\.854775808:1.*Is the time in seconds"):
        parsed("collectd/h/p/t", b"9223372036.854775808:1")
