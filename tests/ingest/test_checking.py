"""The dry run: messages raw and mapped, and what a broker would lose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.ingest.checking import broker_settings, broker_warnings, check_published, read_published
from waterclock.ingest.mapping.format_rule import FormatRule, Published, RuleSet

RULES = RuleSet([FormatRule.checked(None, "telemetry", "collectd")])


def test_a_message_is_shown_mapped() -> None:
    checked = check_published(RULES, 100, Published("collectd/press/cpu/idle", b"1760120317.152:98.5"), 0)
    [message] = checked.messages
    assert (message.source, message.stream, message.event_time) == ("press", "cpu/idle", 1_760_120_317_152_000_000)
    assert checked.reason is None


@pytest.mark.parametrize(
    ("published", "reason"),
    [
        (Published("collectd/press/cpu/idle", b"98.5"), "time:value"),
        (Published("other", b"1"), "no filter matches"),
        (Published("collectd/press/cpu/idle", b"x" * 101), "at most 100 bytes, got 101"),
    ],
)
def test_the_reason_of_a_dead_letter_is_shown(published: Published, reason: str) -> None:
    assert reason in str(check_published(RULES, 100, published, 0).reason)


def test_messages_are_read_from_what_mosquitto_sub_writes(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    lines = [{"tst": "x", "topic": "a", "qos": 1, "retain": 1, "payload": "1:2"}, {"topic": "b", "payload": {"v": 1}}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert list(read_published(file)) == [Published("a", b"1:2", is_retained=True), Published("b", b'{"v": 1}')]


@pytest.mark.parametrize(("text", "message"), [("{", "must be JSON"), ("[]", "an object"), ("{}", "must have a topic")])
def test_other_lines_are_refused_by_number(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f'{{"topic": "a"}}\n{text}\n')
    with pytest.raises(InvalidArgumentError, match=rf"line 2 .*{message}"):
        list(read_published(file))
    with pytest.raises(NotFoundError, match="none"):
        list(read_published(tmp_path / "none"))


def test_a_brokers_configuration_shows_which_messages_it_would_lose() -> None:
    installed = broker_warnings(broker_settings("# persistence true\nlistener 1883\n"))
    assert len(installed) == 2
    assert "queues 1000 messages" in installed[0]
    assert "persistence false" in installed[1]
    saved = broker_warnings(broker_settings("persistence true\nmax_queued_messages 0\nautosave_interval 60"))
    assert saved == ["a broker that is killed loses messages that it acked in the last 60 s (autosave_interval)"]
    assert broker_warnings({"max_queued_messages": "0", "persistence": "true", "autosave_interval": "0"}) == []
