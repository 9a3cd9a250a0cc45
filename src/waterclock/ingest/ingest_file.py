"""Reads an ingest from a TOML file: the broker or cluster, its topics, and how their messages are mapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from waterclock.configuration.toml_file import read_toml
from waterclock.configuration.toml_lines import TomlLines
from waterclock.configuration.toml_table import TomlTable
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.kafka.kafka_plan import KafkaCluster, KafkaPlan, parse_start
from waterclock.ingest.kafka.record import KafkaRule
from waterclock.ingest.mapping.format_rule import FormatRule, JsonPaths
from waterclock.ingest.mapping.json_values import JsonPath
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.plan import IngestPlan
from waterclock.ingest.storing.dead_letters import DEAD_LETTERS, MOST_PAYLOAD
from waterclock.time import NS_PER, system_clock, to_time
from waterclock.topics.model.names import check_name

_TABLES = ("broker", "kafka", "subscribe", "database", "limits")
_OF_A_GATEWAY = ("batch", "work")
"""Tables of the same file that only `waterclock run` reads."""

_PATHS = ("time", "value", "source", "stream")


@dataclass(frozen=True)
class IngestFile:
    """The contents of an ingest's file."""

    plan: IngestPlan | KafkaPlan  # the broker or cluster, the rules and the limits
    # The database; None: the command's.
    url: str | None = field(default=None, repr=False)
    ledgers: str | None = None

    @classmethod
    def read(cls, path: Path) -> IngestFile:
        """Read and check a file.

        Raises
        ------
        NotFoundError, UnavailableError
            If the file is missing, or cannot be read.
        InvalidArgumentError
            The error names the file, the line, the key and the fault of its value.
        """
        content, lines = read_toml(path)
        for key, value in content.items():
            if key not in _TABLES + _OF_A_GATEWAY:
                line = lines.find(key) if isinstance(value, dict | list) else lines.find("", key)
                raise InvalidArgumentError(f"{path}, line {line}: no key named {key}; choose from {', '.join(_TABLES)}")
        if "broker" in content and "kafka" in content:
            raise InvalidArgumentError(
                f"{path}, line {lines.find('kafka')}: [broker] and [kafka] must not both be given. Write two files"
            )
        database = TomlTable(path, lines, "database", content.get("database", {}))
        url, ledgers = database.url("url"), database.optional("ledgers")
        database.end()
        limits = TomlTable(path, lines, "limits", content.get("limits", {}))
        most = limits.whole("max_payload") or MOST_PAYLOAD
        dead_letters = limits.optional("dead_letters") or DEAD_LETTERS
        limits.check("dead_letters", lambda: check_name(dead_letters))
        limits.end()
        try:
            if "kafka" in content:
                kafka = TomlTable(path, lines, "kafka", content["kafka"])
                kafka_rules = tuple(map(_kafka_rule, _subscriptions(path, lines, content.get("subscribe"))))
                plan = _kafka_plan(kafka, kafka_rules, dead_letters, most)
            else:
                broker = _broker(TomlTable(path, lines, "broker", content.get("broker")))
                rules = tuple(map(_rule, _subscriptions(path, lines, content.get("subscribe"))))
                plan = IngestPlan(broker, rules, dead_letters, most)
        except InvalidArgumentError as error:
            if str(error).startswith(f"{path}"):
                raise
            raise InvalidArgumentError(f"{path}: {error}") from None
        return cls(plan, url, ledgers)


def _broker(table: TomlTable) -> Broker:
    url = table.text("url")
    texts = (
        "client_id",
        "version",
        "username",
        "password",
        "password_file",
        "ca",
        "certificate",
        "key",
        "keepalive",
        "session_expiry",
    )
    options: dict[str, Any] = {name: value for name in texts if (value := table.optional(name)) is not None}
    for name in ("receive_maximum", "connections"):
        value = table.whole(name)
        if value is not None:
            options[name] = value
    table.end()
    return cast("Broker", table.check("url", lambda: Broker.checked(url, **options)))


def _kafka_plan(table: TomlTable, rules: tuple[KafkaRule, ...], dead_letters: str, most: int) -> KafkaPlan:
    url, group = table.text("url"), table.optional("group")
    start, until = table.optional("start") or "earliest", table.optional("until")
    lost = table.optional("lost") or "stop"
    properties = table.texts_by_name("properties")
    table.end()
    cluster = table.check("url", lambda: KafkaCluster.checked(url, group, properties))
    now = system_clock()
    begins = table.check("start", lambda: parse_start(start, now))
    ends = None if until is None else table.check("until", lambda: to_time(until, "until"))
    return KafkaPlan(cluster, rules, dead_letters, most, begins, ends, lost)


def _subscriptions(path: Path, lines: TomlLines, given: object) -> list[TomlTable]:
    if not isinstance(given, list) or not given:
        raise InvalidArgumentError(
            f"{path}, line {lines.find('subscribe')}: subscribe must be an array of tables. Write [[subscribe]] once"
            " for each filter"
        )
    return [
        TomlTable(path, lines, "subscribe", values, place) for place, values in enumerate(cast("list[object]", given))
    ]


def _kafka_rule(table: TomlTable) -> KafkaRule:
    kafka_topic = table.text("kafka_topic")
    keys, key_header = table.optional("key") or "text", table.optional("key_header")
    topic = table.text("topic")
    table.check("topic", lambda: check_name(topic))
    format_name, template = table.text("format"), table.optional("template")
    paths = _json_paths(table)
    table.end()
    return cast(
        "KafkaRule",
        table.check(
            "kafka_topic",
            lambda: KafkaRule.checked(kafka_topic, topic, format_name, template, paths(), keys, key_header),
        ),
    )


def _rule(table: TomlTable) -> FormatRule:
    filter_text, topic = table.optional("filter"), table.text("topic")
    table.check("topic", lambda: check_name(topic))
    format_name, template = table.text("format"), table.optional("template")
    qos = table.take("qos", (int,), "0 or 1")
    retained = table.optional("retained") or "skip"
    paths = _json_paths(table)
    table.end()

    def checked() -> FormatRule:
        level = 1 if qos is None else cast("int", qos)
        return FormatRule.checked(filter_text, topic, format_name, template, paths(), level, retained)

    return cast("FormatRule", table.check("filter" if filter_text else "format", checked))


def _json_paths(table: TomlTable) -> Callable[[], JsonPaths | None]:
    """Return the parser of a table of JSON paths."""
    given = {name: table.optional(name) for name in _PATHS}
    unit = table.optional("time_unit")
    if unit is not None and unit not in NS_PER:
        raise table.wrong("time_unit", f"subscribe.time_unit must be one of {', '.join(NS_PER)}, got {unit!r}")

    def parse() -> JsonPaths | None:
        found = {name: None if text is None else JsonPath.parse(text) for name, text in given.items()}
        return JsonPaths(**found, time_unit=unit or "s") if unit is not None or any(found.values()) else None

    return parse
