"""An ingest's TOML file: what it says, and what is wrong with it, by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.ingest.ingest_file import IngestFile
from waterclock.ingest.local_files.file_ingest import FilePlan
from waterclock.ingest.local_files.line_format import LineFormat

COMPLETE = """\
[broker]
url = "mqtts://gateway"
client_id = "lab"
version = "3.1.1"
password_file = "/etc/word"
ca = "ca.pem"
keepalive = "1m"
receive_maximum = 50

[[subscribe]]
topic = "telemetry"
format = "collectd"

[[subscribe]]
filter = "plant/+/state"
topic = "states"
format = "json"
template = "plant/{source}/{stream}"
time = "at"
time_unit = "ms"
value = "v"
qos = 0
retained = "take"

[database]
url = "sqlite:///lab.db"

[limits]
max_payload = 1000
dead_letters = "bad"
"""


KAFKA = """
[kafka]
url = "kafka://one"
[[subscribe]]
kafka_topic = "plant"
topic = "telemetry"
format = "raw"
[limits]
dead_letters = "bad"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ingest.toml"
    path.write_text(text)
    return path


def test_a_complete_file(tmp_path: Path) -> None:
    read = IngestFile.read(write(tmp_path, COMPLETE))
    broker, [collectd, json] = read.plan.broker, read.plan.rules
    assert (broker.place, broker.client_id, broker.version, broker.ca) == ("gateway:8883", "lab", "3.1.1", "ca.pem")
    assert (broker.keepalive, broker.receive_maximum) == (60, 50)
    assert (collectd.filter, collectd.topic, collectd.qos, collectd.retained) == ("collectd/#", "telemetry", 1, "skip")
    assert (json.filter, json.qos, json.retained, json.paths.time_unit) == ("plant/+/state", 0, "take", "ms")
    assert (read.plan.most_payload, read.plan.dead_letters, read.url) == (1000, "bad", "sqlite:///lab.db")


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ('keepalive = "1m"', 'keepalive = "0s"', 7, "broker.keepalive = '0s': keepalive must be at least 1s"),
        ("[limits]", "[limit]", 28, "no key named limit"),
        ('client_id = "lab"', 'clientid = "lab"', 3, "no key named broker.clientid"),
        ("mqtts://gateway", "http://gateway", 2, "url must be mqtt://HOST"),
        ("[broker]", "[database2]", 1, "no key named database2"),
        ('format = "collectd"', 'format = "collected"', 12, "format must be one of collectd"),
        ("plant/+/state", "plant/#/state", 15, "filter must use"),
        ("qos = 0", "qos = 2", 22, "qos must be 0 or 1, got 2"),
        ('"ms"', '"hours"', 20, "subscribe.time_unit must be one of"),
        ("{stream}", "{strm}", 18, "template"),
        ('topic = "states"', 'topic = ""', 16, "subscribe.topic must be a non-empty string"),
        ("max_payload = 1000", "max_payload = 0", 29, "limits.max_payload must be an integer from 1"),
        ('time = "at"', 'time = "a..b"', 15, "path"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, text: str) -> None:
    assert old in COMPLETE
    with pytest.raises(InvalidArgumentError) as caught:
        IngestFile.read(write(tmp_path, COMPLETE.replace(old, new)))
    assert text in str(caught.value)
    assert f"line {line}" in str(caught.value)


def test_filters_must_differ(tmp_path: Path) -> None:
    text = COMPLETE.replace("plant/+/state", "collectd/#")
    with pytest.raises(InvalidArgumentError, match="filter 'collectd/#' occurs twice"):
        IngestFile.read(write(tmp_path, text))


def test_dead_letters_need_a_topic_of_their_own(tmp_path: Path) -> None:
    for text in (COMPLETE, KAFKA):
        with pytest.raises(InvalidArgumentError, match="dead_letters must not be the topic of the messages, got 'bad'"):
            IngestFile.read(write(tmp_path, text.replace('topic = "telemetry"', 'topic = "bad"')))
    with pytest.raises(InvalidArgumentError, match="dead_letters must not be the topic of the messages"):
        FilePlan(["a.jsonl"], "bad", LineFormat(), "bad", 1)


def test_without_subscriptions_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Write \[\[subscribe\]\]"):
        IngestFile.read(write(tmp_path, '[broker]\nurl = "mqtt://gateway"\n'))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"ingest\.toml"):
        IngestFile.read(tmp_path / "ingest.toml")
