"""A Kafka record: how a rule maps it, and how it is stored as a dead letter. Does no I/O."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.format_rule import FormatRule, JsonPaths, Published
from waterclock.ingest.mapping.mapped import SampledMessage, check_mapping
from waterclock.ingest.storing.dead_letters import KEPT_OF_LARGE, REASON, STREAM, clean_reason
from waterclock.message import Message
from waterclock.time import MAX_NS

Keys = Literal["text", "hex", "base64", "ignore"]

KEYS: tuple[Keys, ...] = ("text", "hex", "base64", "ignore")

SOURCE = "kafka"
"""Source of the dead letters of Kafka."""

_TEMPLATE = "{stream}/{source...}"
"""The Kafka topic is the stream, and the key the source."""

_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

_MOST_MS = MAX_NS // 1_000_000

_MOST_HEADERS = 4 << 20
"""Maximum bytes of headers of the messages of one record, each of which has them all."""

_KEPT_KEY = 1_024
"""Bytes of a key that are kept of a record above the limit."""

_RECORD = "kafka.record"
_PLACE = ("kafka.topic", "kafka.partition", "kafka.offset")

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record as the broker delivered it."""

    # Its place in Kafka.
    topic: str
    partition: int
    offset: int
    value: bytes | None  # its content; None for a tombstone
    key: bytes | None = None
    headers: Headers = ()  # its headers; several may have the same name
    time: int | None = None  # ms since 1970; None if it has none
    # Whether the time is when the broker appended it, instead of when its producer created it.
    is_append_time: bool = False
    fault: str | None = None  # why it cannot be mapped, if its headers cannot be read

    @property
    def size(self) -> int:
        """Bytes of its value, key and headers."""
        size = len(self.value or b"") + len(self.key or b"")
        return size + sum(len(name) + len(value or b"") for name, value in self.headers)


@dataclass(frozen=True)
class KafkaRule:
    """A Kafka topic of an ingest, and how its records are mapped."""

    kafka_topic: str  # name of the Kafka topic
    rule: FormatRule  # maps it: its filter and template apply to paths TOPIC/KEY
    keys: Keys = "text"  # how a key becomes text: as UTF-8, in hex or base64, or not at all
    key_header: str | None = None  # the header whose value takes the key's place; None: the key

    @classmethod
    def checked(
        cls,
        kafka_topic: str,
        topic: str,
        format_name: str,
        template: str | None = None,
        paths: JsonPaths | None = None,
        keys: str = "text",
        key_header: str | None = None,
    ) -> KafkaRule:
        """Check the options of a rule.

        Raises
        ------
        InvalidArgumentError
            Naming the option and the value.
        """
        if not _KAFKA_TOPIC.fullmatch(kafka_topic) or kafka_topic in (".", ".."):
            raise InvalidArgumentError(
                f"kafka_topic must be 1 to 249 letters, digits, '.', '_' or '-', got {quoted(kafka_topic)}"
            )
        kind: Keys | None = next((each for each in KEYS if each == keys), None)
        if kind is None:
            raise InvalidArgumentError(f"key must be one of {', '.join(KEYS)}, got {quoted(keys)}")
        if template is None and format_name in ("collectd", "json", "raw"):
            template = _TEMPLATE
        rule = FormatRule.checked(f"{kafka_topic}/#", topic, format_name, template, paths)
        return cls(kafka_topic, rule, kind, key_header)

    def path(self, record: Record) -> str:
        """Return TOPIC/KEY, or only TOPIC for a record without a key, from which the template takes source and stream.

        Raises `InvalidArgumentError` if the key is not UTF-8.
        """
        key = record.key
        if self.key_header is not None:
            key = next((value for name, value in reversed(record.headers) if name == self.key_header), None)
        if key is None or self.keys == "ignore":
            return record.topic
        match self.keys:
            case "hex":
                text = key.hex()
            case "base64":
                text = base64.b64encode(key).decode()
            case _:
                try:
                    text = key.decode()
                except UnicodeDecodeError:
                    raise InvalidArgumentError(
                        f"the record's key must be UTF-8, got {quoted(key)}. To accept such keys, set the option 'key'"
                        " to 'hex' or 'base64'"
                    ) from None
        return f"{record.topic}/{text}"

    def map(self, record: Record, received: int) -> list[Message]:
        """Map a record.

        Raises `InvalidArgumentError` if key, time, value or headers have another form.

        Parameters
        ----------
        received
            When it was received, ns: the receive time, unless Kafka records its time of the append.
        """
        if record.fault is not None:
            raise InvalidArgumentError(record.fault)
        if record.value is None:
            return []
        moment = received if record.time is None else _nanoseconds(record.time)
        found = self.rule.map(Published(self.path(record), record.value), moment)
        receive_time = moment if record.is_append_time else received
        kept = readable(record.headers)
        size = len(found) * sum(len(name) + len(value) for name, value in kept.items())
        if size > _MOST_HEADERS:
            raise InvalidArgumentError(
                f"the headers of a record's messages must have at most {_MOST_HEADERS} bytes in total, got {size} in"
                f" {len(found)} messages"
            )
        return [
            Message.trusted(
                each.source,
                each.stream,
                each.event_time,
                each.payload,
                moment,
                receive_time,
                {**kept, **(each.headers or {})} or None,
                None,
            )
            for each in found
        ]


def check_record(rule: KafkaRule, most_payload: int, record: Record, now: int) -> SampledMessage:
    """Map one record, and append nothing."""
    facts = {
        "kafka_topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": None if record.key is None else record.key.decode(errors="backslashreplace"),
    }
    if (reason := too_large(record, most_payload)) is not None:
        return SampledMessage(facts, record.value or b"", (), reason)
    return check_mapping(facts, record.value or b"", most_payload, lambda: rule.map(record, now))


def too_large(record: Record, most: int) -> str | None:
    """Return why a record is above the limit of its bytes; None if it is not."""
    if record.size <= most:
        return None
    return f"value, key and headers must have at most {most} bytes, got {record.size}"


def readable(headers: Headers) -> dict[str, str]:
    """Return headers as text: bytes that are not UTF-8 in hex as NAME_hex, later ones of one name as NAME#2."""
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for name, value in headers:
        try:
            key, text = name, (value or b"").decode()
        except UnicodeDecodeError:
            key, text = f"{name}_hex", (value or b"").hex()
        number, unique = numbers.get(key, 1), key
        while unique in found:
            number += 1
            unique = f"{key}#{number}"
        numbers[key] = number  # a record may have 100,000 headers of one name
        found[unique] = text
    return found


def letter_of(record: Record, reason: str, received: int, most: int | None = None) -> Message:
    """Build a dead letter: the record with the reason why it was not mapped.

    Parameters
    ----------
    most
        How many bytes of the value are kept, without headers; None: the whole record, unless key and headers are large.
    """
    value = record.value or b""
    if most is None and record.size - len(value) > KEPT_OF_LARGE:
        most = len(value)  # in hex, its key and headers could exceed what the database accepts
    if most is not None:
        record = record._replace(key=None if record.key is None else record.key[:_KEPT_KEY], headers=())
    details = {
        "key": None if record.key is None else record.key.hex(),
        "headers": [[name, None if each is None else each.hex()] for name, each in record.headers],
        "time": record.time,
        "is_append_time": record.is_append_time,
        "is_cut": most is not None,
    }
    place = (record.topic, str(record.partition), str(record.offset))
    headers = {
        REASON: clean_reason(reason),
        **dict(zip(_PLACE, place, strict=True)),
        _RECORD: json.dumps(details, separators=(",", ":")),
    }
    return Message.trusted(SOURCE, STREAM, received, value[:most], received, received, headers, None)


def record_of(letter: Message) -> Record:
    """Read back the record of a dead letter.

    Raises `InvalidArgumentError` if the message is not a dead letter of Kafka, or holds only the beginning of a value.
    """
    headers: Mapping[str, str] = letter.headers or {}
    try:
        details = json.loads(headers[_RECORD])
        topic, partition, offset = (headers[name] for name in _PLACE)
        record = Record(
            topic,
            int(partition),
            int(offset),
            letter.payload,
            None if details["key"] is None else bytes.fromhex(details["key"]),
            [(str(name), None if each is None else bytes.fromhex(each)) for name, each in details["headers"]],
            None if details["time"] is None else int(details["time"]),
            bool(details["is_append_time"]),
        )
        is_cut = bool(details["is_cut"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise InvalidArgumentError(
            "cannot restore the record: the message is not a dead letter of an ingest from Kafka"
        ) from None
    if is_cut:
        raise InvalidArgumentError(f"cannot restore the record: only its first {len(letter.payload)} bytes were kept")
    return record


def _nanoseconds(milliseconds: int) -> int:
    if not -_MOST_MS <= milliseconds <= _MOST_MS:
        raise InvalidArgumentError(f"the record's time must fit in 64-bit nanoseconds, got {milliseconds} ms")
    return milliseconds * 1_000_000
