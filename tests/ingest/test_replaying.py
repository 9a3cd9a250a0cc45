"""Dead letters are mapped again, each once."""

from __future__ import annotations

import pytest

from waterclock.connection import Database
from waterclock.errors import NotFoundError
from waterclock.ingest import replaying
from waterclock.ingest.mapping.format_rule import FormatRule, Published
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.plan import IngestPlan
from waterclock.ingest.replaying import replay
from waterclock.ingest.storing.dead_letters import dead_letter, dead_letter_of_large

FIRST = 1_800_000_000_000_000_000


def plan(template: str) -> IngestPlan:
    rule = FormatRule.checked("plant/#", "telemetry", "raw", template)
    return IngestPlan(Broker.checked("mqtt://gateway"), (rule,), "dead")


@pytest.fixture(autouse=True)
def _topics(database: Database) -> None:
    database.create_topic("telemetry")
    letters = [dead_letter(Published(f"plant/{name}", name.encode()), "?", FIRST) for name in ("a/b", "c", "d/e")]
    letters.append(dead_letter_of_large(Published("plant/a/b", b"x" * 100_000), 1_000, FIRST))
    database.create_topic("dead").append(letters)


def test_dead_letters_that_can_be_mapped_now_are_appended_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_AT_ONCE", 2)
    corrected = plan("plant/{source}/{stream}")
    assert vars(replay(database, corrected, dry_run=True)) == {"mapped": 2, "appended": 2, "failed": 1, "cut": 1}
    assert list(database.topic("telemetry").read()) == []
    assert vars(replay(database, corrected)) == {"mapped": 2, "appended": 2, "failed": 1, "cut": 1}
    messages = list(database.topic("telemetry").read())
    assert [(message.source, message.stream, message.event_time) for message in messages] == [
        ("a", "b", FIRST),
        ("d", "e", FIRST),
    ]
    assert all(message.receive_time != FIRST for message in messages)
    # What failed is a dead letter again, and the next replay looks at that alone.
    assert vars(replay(database, corrected)) == {"mapped": 0, "appended": 0, "failed": 1, "cut": 0}
    assert vars(replay(database, plan("plant/{source...}/{stream}"))) | {"failed": 0} == {
        "mapped": 0,
        "appended": 0,
        "failed": 0,
        "cut": 0,
    }
    assert len(list(database.topic("telemetry").read())) == 2


def test_without_dead_letters_it_says_so(database: Database) -> None:
    database.topic("dead").remove()
    with pytest.raises(NotFoundError, match="dead"):
        replay(database, plan("plant/{source}/{stream}"))
