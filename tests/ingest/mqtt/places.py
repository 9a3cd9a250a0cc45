"""Where a test publishes, and how that is ingested."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from waterclock.ingest.mapping.format_rule import FormatRule
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.plan import IngestPlan


@dataclass
class Place:
    """A prefix of MQTT topics, and a client id, of one test."""

    url: str
    name: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")

    def topic(self, rest: str = "source/stream") -> str:
        return f"{self.name}/{rest}"

    def rule(self, filter_text: str | None = None, **options: Any) -> FormatRule:
        template = f"{self.name}/{{source}}/{{stream...}}"
        return FormatRule.checked(filter_text or f"{self.name}/#", "telemetry", "raw", template, **options)

    def plan(self, *rules: FormatRule, **options: Any) -> IngestPlan:
        broker = Broker.checked(self.url, client_id=self.name, **options)
        return IngestPlan(broker, rules or (self.rule(),), "dead")
