"""Tries out an ingest: shows how the next messages would be mapped, and how the broker's settings affect the ingest."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, cast

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.ingest.mapping.filters import split_share
from waterclock.ingest.mapping.format_rule import FormatRule, Published, RuleSet
from waterclock.ingest.mapping.mapped import SampledMessage, check_mapping
from waterclock.ingest.mqtt.connection import Connection
from waterclock.ingest.mqtt.plan import IngestPlan
from waterclock.ingest.storing.received import Received

_VERSION_TOPIC = "$SYS/broker/version"
_LOOK_EVERY = 0.05  # s

_DEFAULTS = {"max_queued_messages": "1000", "persistence": "false", "autosave_interval": "1800"}
"""Mosquitto's defaults of options."""


def check_published(rules: RuleSet, most_payload: int, published: Published, now: int) -> SampledMessage:
    """Map one message, and append nothing."""
    facts = {"mqtt_topic": str(published.topic), "retained": published.is_retained}
    return check_mapping(
        facts, published.payload, most_payload, lambda: rules.find(published.topic).map(published, now)
    )


def read_published(path: Path) -> Iterator[Published]:
    """Read published messages from JSON lines with topic, payload and retain, as ``mosquitto_sub -F %j`` writes them.

    Raises `NotFoundError` if the file does not exist. Raises `InvalidArgumentError` if a line is not such an object.
    """
    if not path.is_file():
        raise NotFoundError(f"no file {quoted(str(path))} found")
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _published(f"{path}, line {number}", line)


def _published(where: str, line: str) -> Published:
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{where} must be JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"{where} must be an object with topic and payload, got {quoted(fields)}")
    values = cast("dict[str, object]", fields)
    topic, payload = values.get("topic"), values.get("payload", "")
    if not isinstance(topic, str):
        raise InvalidArgumentError(f"{where} must have a topic, got {quoted(topic)}")
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return Published(topic, text.encode(errors="surrogateescape"), bool(values.get("retain")))


class BrokerCheck:
    """Checks a broker with a temporary session of its own, without taking messages from other consumers.

    Parameters
    ----------
    plan
        The plan of the ingest.
    """

    def __init__(self, plan: IngestPlan) -> None:
        self.version: str | None = None
        self.dropped: int | None = None
        self._plan = plan
        self._received: SimpleQueue[Received] = SimpleQueue()
        name = f"waterclock-check-{secrets.token_hex(4)}"
        self._connection = Connection(plan.broker, name, name, 1, self._take, self._note_dropped, is_clean=True)

    def sample(self, count: int, seconds: float) -> Iterator[Published]:
        """Connect and yield the next messages, at most so many and for so long.

        Raises `RefusedByBrokerError` if the broker refuses the client or a subscription, or grants a lower QoS. Raises
        `UnavailableError` if it cannot be reached.
        """
        connection = self._connection
        connection.open()
        try:
            # Without their shares, so that other consumers keep their messages.
            connection.subscribe([replace(rule, filter=split_share(rule.filter)[1]) for rule in self._plan.rules])
            connection.subscribe(
                [FormatRule.checked(_VERSION_TOPIC, "x", "raw", "{source}/{stream...}", qos=0, retained="take")]
            )
            connection.watch_dropped()
            until = moments.monotonic() + seconds
            while count > 0 and moments.monotonic() < until and connection.is_open:
                try:
                    received = self._received.get_nowait()
                except Empty:
                    moments.sleep(_LOOK_EVERY)
                    continue
                if received.qos:
                    connection.ack([received.packet_id])
                count -= 1
                yield received.published
        finally:
            connection.close()

    def _take(self, received: Received) -> bool:
        if received.published.topic == _VERSION_TOPIC:
            self.version = received.published.payload.decode(errors="replace")
        else:
            self._received.put(received)
        return True

    def _note_dropped(self, dropped: int) -> None:
        self.dropped = dropped


def broker_settings(text: str) -> dict[str, str]:
    """Read the settings of Mosquitto that decide which messages it loses, with its defaults."""
    found = dict(_DEFAULTS)
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name in _DEFAULTS and value.strip():
            found[name] = value.strip()
    return found


def broker_warnings(settings: Mapping[str, str]) -> list[str]:
    """Return warnings about settings with which a broker loses messages."""
    warnings: list[str] = []
    queued = settings["max_queued_messages"]
    if queued != "0":
        warnings.append(
            f"for a slow or absent client, the broker queues {queued} messages and drops further ones"
            " (max_queued_messages)"
        )
    if settings["persistence"] != "true":
        warnings.append("the broker forgets sessions and their queues when it stops (persistence false)")
    elif settings["autosave_interval"] != "0":
        warnings.append(
            f"a broker that is killed loses messages that it acked in the last {settings['autosave_interval']} s"
            " (autosave_interval)"
        )
    return warnings
