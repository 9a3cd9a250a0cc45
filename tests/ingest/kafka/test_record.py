"""How records become messages, and dead letters records again."""

from __future__ import annotations

import json

import pytest

from waterclock.errors import InvalidArgumentError
from waterclock.ingest.kafka.record import KafkaRule, Record, letter_of, readable, record_of
from waterclock.ingest.storing.dead_letters import read_dead_letter
from waterclock.message import Message

NOW = 1_800_000_000_000_000_000
SENT = NOW // 1_000_000 - 5_000


def rule(**options: object) -> KafkaRule:
    return KafkaRule.checked("plant", "telemetry", "raw", **options)  # type: ignore[arg-type]


def test_a_create_time_is_the_publish_time() -> None:
    [message] = rule().map(Record("plant", 0, 7, b"1", b"press", time=SENT), NOW)
    assert (message.publish_time, message.receive_time) == (SENT * 1_000_000, NOW)
    assert (message.source, message.stream, message.event_time) == ("press", "plant", SENT * 1_000_000)


def test_an_append_time_is_the_receive_time() -> None:
    [message] = rule().map(Record("plant", 0, 7, b"1", b"press", time=SENT, is_append_time=True), NOW)
    assert (message.publish_time, message.receive_time) == (SENT * 1_000_000, SENT * 1_000_000)


def test_without_a_time_it_is_as_received() -> None:
    [message] = rule().map(Record("plant", 0, 7, b"1", b"press"), NOW)
    assert (message.publish_time, message.receive_time, message.event_time) == (NOW, NOW, NOW)


@pytest.mark.parametrize(("keys", "source"), [("text", "a/\u00e9"), ("hex", "612fc3a9"), ("base64", "YS/DqQ==")])
def test_a_key_is_the_source(keys: str, source: str) -> None:
    [message] = rule(keys=keys).map(Record("plant", 0, 7, b"1", "a/\u00e9".encode()), NOW)
    assert message.source == source


def test_a_header_takes_the_keys_place() -> None:
    record = Record("plant", 0, 7, b"1", b"\xff", [("source", b"first"), ("source", b"press")])
    [message] = rule(key_header="source").map(record, NOW)
    assert (message.source, message.headers) == ("press", {"source": "first", "source#2": "press"})


def test_what_has_no_source_is_refused() -> None:
    for record, text in (
        (Record("plant", 0, 7, b"1"), "must match the template"),
        (Record("plant", 0, 7, b"1", b"\xff"), "key must be UTF-8"),
        (Record("plant", 0, 7, b"1", b"press", time=2**62), "must fit in 64-bit nanoseconds"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            rule().map(record, NOW)


def test_headers_become_text() -> None:
    assert readable([("a", b"1"), ("a", b"2"), ("b", None), ("c", b"\xff")]) == {
        "a": "1",
        "a#2": "2",
        "b": "",
        "c_hex": "ff",
    }


def test_headers_of_one_name_take_linear_time() -> None:
    names = list(readable([("a", b"")] * 100_000))
    assert (names[1], names[-1]) == ("a#2", "a#100000")


def test_headers_are_bounded_in_all_messages_of_a_record() -> None:
    senml = json.dumps([{"n": f"s{n}", "v": n, "t": 1} for n in range(100)]).encode()
    plant = KafkaRule.checked("plant", "telemetry", "senml")
    assert len(plant.map(Record("plant", 0, 7, senml, headers=[("a", b"x")]), NOW)) == 100
    with pytest.raises(InvalidArgumentError, match="in 100 messages"):
        plant.map(Record("plant", 0, 7, senml, headers=[("a", b"x" * 50_000)]), NOW)


def test_a_dead_letter_of_a_large_key_is_cut() -> None:
    letter = letter_of(Record("plant", 3, 7, b"1", b"k" * 100_000), "why", NOW)
    assert sum(map(len, (letter.headers or {}).values())) < 3_000
    with pytest.raises(InvalidArgumentError, match="only its first 1 bytes were kept"):
        record_of(letter)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"kafka.record": "{"},
        {"kafka.record": "[" * 100_000},
        {"kafka.record": "7"},
        {"kafka.record": json.dumps({"key": "no hex", "headers": [], "time": None, "is_append_time": 0, "is_cut": 0})},
    ],
)
def test_other_messages_in_the_topic_of_dead_letters_are_refused(headers: dict[str, str]) -> None:
    place = {"kafka.topic": "plant", "kafka.partition": "0", "kafka.offset": "1"}
    with pytest.raises(InvalidArgumentError, match="is not a dead letter"):
        record_of(Message("kafka", "dead-letter", 1, headers={**place, **headers}))
    with pytest.raises(InvalidArgumentError, match="is not a dead letter"):
        read_dead_letter(Message("mqtt", "dead-letter", 1, headers={"mqtt.topic_hex": "no hex"}))


def test_a_dead_letter_is_a_record_again() -> None:
    record = Record("plant", 3, 7, b"\xff", b"\xfe", [("a", b"\xff"), ("a", None)], SENT, True)
    letter = letter_of(record, "why", NOW)
    assert record_of(letter) == record
    assert (letter.source, letter.stream, letter.receive_time) == ("kafka", "dead-letter", NOW)
    assert letter.headers is not None
    assert letter.headers["reason"] == "why"
    with pytest.raises(InvalidArgumentError, match="only its first 1 bytes were kept"):
        record_of(letter_of(record, "large", NOW, 1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keys": "utf8"}, "key must be one of"),
        ({"kafka_topic": "a/b"}, "kafka_topic must be"),
        ({"kafka_topic": ".."}, "kafka_topic must be"),
    ],
)
def test_options_are_checked(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        KafkaRule.checked(**{"kafka_topic": "plant", "topic": "t", "format_name": "raw", **options})  # type: ignore[arg-type]
