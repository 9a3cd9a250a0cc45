"""One rule of an ingest: the published messages that it accepts, and their mapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.collectd import collectd_time
from waterclock.ingest.mapping.ess import map_ess
from waterclock.ingest.mapping.filters import check_filter, matches, split_share
from waterclock.ingest.mapping.json_values import JsonNumber, JsonPath, check_text, read_json, to_text, write_json
from waterclock.ingest.mapping.mapped import Reading, UntimedError
from waterclock.ingest.mapping.senml import map_senml
from waterclock.ingest.mapping.template import Template
from waterclock.ingest.mapping.thin_edge import map_thin_edge, thin_edge_topic
from waterclock.ingest.mapping.times import parse_time, parse_unix_time
from waterclock.message import Message
from waterclock.time import TimeUnit

Format = Literal["collectd", "thin-edge", "json", "senml", "raw", "ess"]
Retained = Literal["skip", "take"]

FORMATS: tuple[Format, ...] = ("collectd", "thin-edge", "json", "senml", "raw", "ess")

DEFAULT_TEMPLATES: dict[str, str] = {
    "collectd": "collectd/{source}/{stream...}",
    "json": "{source}/{stream...}",
    "raw": "{source}/{stream...}",
}

DEFAULT_FILTERS: dict[str, str] = {"collectd": "collectd/#", "thin-edge": "te/+/+/+/+/m/+"}

_TOPICS_REMEMBERED = 8192
"""Maximum topics whose source and stream are cached: a site has some thousands, and each takes a third of a kilobyte.
"""


class Published(NamedTuple):
    """A message as it was published."""

    topic: str | bytes  # its MQTT topic; bytes if it is not UTF-8
    payload: bytes  # its content
    is_retained: bool = False  # whether the broker kept it, so that it may be from any time


@dataclass(frozen=True)
class JsonPaths:
    """The places of a message's fields in a JSON payload."""

    # Paths; None: not in the payload. Then the time is that of the receipt, the value the whole payload, and source
    # and stream come from the template.
    time: JsonPath | None = None
    value: JsonPath | None = None
    source: JsonPath | None = None
    stream: JsonPath | None = None
    time_unit: TimeUnit = "s"  # unit of a time that is a number


@dataclass(frozen=True)
class FormatRule:
    """A filter of an ingest, and how it maps received messages."""

    filter: str  # the MQTT filter, which may be shared
    topic: str  # the topic that takes the messages
    format: Format  # the format of payloads
    template: Template | None = None
    """How MQTT topics name source and stream; None: the format or the payload names them."""
    paths: JsonPaths = field(default_factory=JsonPaths)  # paths of the format ``json``
    qos: int = 1  # 0 or 1, requested from the broker
    retained: Retained = "skip"  # whether retained messages are taken

    @classmethod
    def checked(
        cls,
        filter_text: str | None,
        topic: str,
        format_name: str,
        template: str | None = None,
        paths: JsonPaths | None = None,
        qos: int = 1,
        retained: str = "skip",
    ) -> FormatRule:
        """Check the options of a rule, and fill in the defaults of its format.

        Raises
        ------
        InvalidArgumentError
            Naming the option and the value.
        """
        kind = next((each for each in FORMATS if each == format_name), None)
        if kind is None:
            raise InvalidArgumentError(f"format must be one of {', '.join(FORMATS)}, got {quoted(format_name)}")
        subscribed = DEFAULT_FILTERS.get(kind) if filter_text is None else filter_text
        if subscribed is None:
            raise InvalidArgumentError(f"filter is missing; the format {kind} has no default filter")
        check_filter(subscribed)
        if qos not in (0, 1):
            raise InvalidArgumentError(f"qos must be 0 or 1, got {qos}: with QoS 2, paho would ack before the append")
        if retained not in ("skip", "take"):
            raise InvalidArgumentError(f"'retained' must be skip or take, got {quoted(retained)}")
        if kind in ("thin-edge", "ess") and template is not None:
            raise InvalidArgumentError(
                f"template must be omitted for the format {kind}, which has its own form of topics"
            )
        if paths is not None and kind != "json":
            raise InvalidArgumentError(f"paths must be omitted for the format {kind}: only the format json has paths")
        written = DEFAULT_TEMPLATES.get(kind) if template is None else template
        parsed = None if written is None else Template.parse(written)
        where = paths or JsonPaths()
        rule = cls(subscribed, topic, kind, parsed, where, qos, retained)  # pyright: ignore[reportArgumentType]  # checked
        rule._check_fields(written)
        return rule

    def matches(self, topic: str) -> bool:
        """Return whether the filter matches a topic."""
        return matches(split_share(self.filter)[1], topic)

    def map(self, published: Published, received: int) -> list[Message]:
        """Map a published message.

        Raises `UntimedError` if it is retained and has no event time. Raises `InvalidArgumentError` if topic or payload
        have another form.

        Parameters
        ----------
        received
            When it was received, ns: the receive time and the publish time of each message, since MQTT transmits
            neither, and the event time if the payload has none.
        """
        if isinstance(published.topic, bytes):
            raise InvalidArgumentError(f"topic must be UTF-8, got {quoted(published.topic)}")
        readings = self._readings(published.topic, published.payload, received)
        messages: list[Message] = []
        for source, stream, event_time, payload, headers in readings:
            if event_time is None and published.is_retained:
                raise UntimedError(f"the retained message of MQTT topic {quoted(published.topic)} has no time")
            moment = received if event_time is None else event_time
            messages.append(Message.trusted(source, stream, moment, payload, received, received, headers, None))
        return messages

    def _readings(self, topic: str, payload: bytes, received: int) -> list[Reading]:
        match self.format:
            case "collectd":
                source, stream = self._names(topic)
                return [Reading(source, stream, collectd_time(payload), payload)]
            case "raw":
                source, stream = self._names(topic)
                return [Reading(source, stream, None, payload)]
            case "thin-edge":
                return map_thin_edge(*thin_edge_topic(topic), payload)
            case "senml":
                return map_senml(self._fields(topic).get("source"), payload, received)
            case "ess":
                return map_ess(topic, payload)
            case "json":
                return [self._of_json(topic, payload)]

    def _of_json(self, topic: str, payload: bytes) -> Reading:
        content, paths = read_json(payload), self.paths
        fields = self._fields(topic)
        source = fields["source"] if paths.source is None else to_text(paths.source.find(content), "source")
        stream = fields["stream"] if paths.stream is None else to_text(paths.stream.find(content), "stream")
        time = None if paths.time is None else _time_of(paths.time.find(content), paths.time_unit)
        value = payload if paths.value is None else write_json(paths.value.find(content))
        return Reading(source, stream, time, value)

    def _names(self, topic: str) -> tuple[str, str]:
        fields = self._fields(topic)
        return fields["source"], fields["stream"]

    def _fields(self, topic: str) -> dict[str, str]:
        return {} if self.template is None else _fields_of(self.template, topic)

    def _check_fields(self, written: str | None) -> None:
        has = set[str]() if self.template is None else set(self.template.fields)
        has |= {name for name in ("source", "stream") if getattr(self.paths, name) is not None}
        if self.format in ("collectd", "raw", "json") and has != {"source", "stream"}:
            missing = " and ".join(f"{{{name}}}" for name in sorted({"source", "stream"} - has))
            raise InvalidArgumentError(f"template must contain {missing}, got {quoted(written)}")


class RuleSet:
    """The rules of an ingest. The first one whose filter matches a topic maps its messages.

    Parameters
    ----------
    rules
        In the order in which they are tried.
    """

    def __init__(self, rules: Sequence[FormatRule]) -> None:
        self.rules = tuple(rules)
        self._known: dict[str, FormatRule] = {}

    def find(self, topic: str | bytes) -> FormatRule:
        """Return the rule of a topic.

        Raises `InvalidArgumentError` if no filter matches, for example if a broker still held the message for a removed
        filter.
        """
        if isinstance(topic, bytes):
            raise InvalidArgumentError(f"topic must be UTF-8, got {quoted(topic)}")
        known = self._known.get(topic)
        if known is not None:
            return known
        found = next((rule for rule in self.rules if rule.matches(topic)), None)
        if found is None:
            raise InvalidArgumentError(f"no filter matches the MQTT topic {quoted(topic)}")
        if len(self._known) >= _TOPICS_REMEMBERED:
            self._known.clear()
        self._known[topic] = found
        return found


@lru_cache(maxsize=_TOPICS_REMEMBERED)
def _fields_of(template: Template, topic: str) -> dict[str, str]:
    fields = template.match(topic)
    for name, value in fields.items():
        check_text(value, name)
    return fields


def _time_of(value: object, unit: TimeUnit) -> int:
    match value:
        case JsonNumber():
            return parse_unix_time(value.text, unit)
        case str():
            return parse_time(value, unit)
        case _:
            raise InvalidArgumentError(f"time must be a number or ISO 8601 with an offset, got {quoted(value)}")
