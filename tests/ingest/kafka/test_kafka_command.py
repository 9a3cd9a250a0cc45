"""The command line and the file of an ingest from Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ingest.kafka.conftest import FAST, Place, payloads
from tests.ingest.running import until
from tests.support.forked import Forked

from waterclock.cli.app import DONE, FAILED, WRONG_USAGE, run
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.ingest_file import IngestFile
from waterclock.ingest.kafka.kafka_plan import KafkaCluster, KafkaPlan

pytestmark = pytest.mark.one_database

TEXT = """
[kafka]
url = "kafka://one,two:9093"
group = "lab"
start = "2026-07-01T12:00:00Z"
until = "2026-07-02T12:00:00Z"
lost = "skip"
[kafka.properties]
"security.protocol" = "SASL_SSL"
"sasl.password" = "${LAB_SECRET}"
[[subscribe]]
kafka_topic = "plant"
topic = "telemetry"
format = "json"
time = "at"
key = "hex"
"""


def written(path: Path, text: str = TEXT) -> Path:
    path.write_text(text)
    return path


def test_a_file_says_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_SECRET", "xyzzy-secret")
    plan = IngestFile.read(written(tmp_path / "ingest.toml")).plan
    assert isinstance(plan, KafkaPlan)
    assert plan.cluster.servers == "one:9092,two:9093"
    assert plan.cluster.properties == {"security.protocol": "SASL_SSL", "sasl.password": "xyzzy-secret"}
    assert (plan.cluster.group, plan.lost, plan.rules[0].keys) == ("lab", "skip", "hex")
    assert (plan.start, plan.until) == (1_782_907_200_000_000_000, 1_782_993_600_000_000_000)
    assert "xyzzy-secret" not in repr(plan)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("kafka://one", "http://one", "line 3: kafka.url = 'http://one,two:9093': url must be kafka://HOST"),
        ('"skip"', '"keep"', "'lost' must be stop or skip, got 'keep'"),
        ("07-02", "06-02", "'until' must be later than 'start'"),
        ('"security.protocol"', '"group.id"', "property group.id must be omitted"),
        ('"plant"', '"a/b"', "line 12: subscribe.kafka_topic = 'a/b': kafka_topic must be 1 to 249"),
        ("[[subscribe]]", "[broker]\nurl='mqtt://a'\n[[subscribe]]", "must not both be given"),
        ("${LAB_SECRET}", "${LAB_MISSING}", "environment variable 'LAB_MISSING' is not set"),
        ("time = ", "filter = ", "no key named subscribe.filter"),
        ("group =", "grup =", "no key named kafka.grup"),
    ],
)
def test_mistakes_in_a_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, text: str
) -> None:
    monkeypatch.setenv("LAB_SECRET", "xyzzy-secret")
    with pytest.raises(InvalidArgumentError) as caught:
        IngestFile.read(written(tmp_path / "ingest.toml", TEXT.replace(before, after)))
    assert text in str(caught.value)
    assert "xyzzy" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka://a:b",
        "kafka://user:word@host",
        "kafka://a/topic",
        "kafka://a,",
        "kafka://a:65536",
        "kafka://a:0",
    ],
)
def test_a_url_is_checked(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="url must be kafka://HOST") as caught:
        KafkaCluster.checked(url)
    assert "word" not in str(caught.value)


def test_the_log_of_librdkafka_is_not_printed() -> None:
    code = "from waterclock.ingest.kafka.client import _log; _log.error('FAIL [rdkafka#consumer-1]')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_mistakes_on_the_command_line_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = "kafka://127.0.0.1:1"
    for words, code, text in (
        ([url], WRONG_USAGE, "--topic is missing; name the topic"),
        ([url, "--topic", "t"], WRONG_USAGE, "--kafka-topic is missing; name a Kafka topic"),
        ([url, "--topic", "t", "--kafka-topic", "a", "--qos", "0"], WRONG_USAGE, "--qos can only be used with MQTT"),
        ([url, "--topic", "t", "--kafka-topic", "a", "--group", ""], WRONG_USAGE, "group must not be empty"),
        ([url, "--topic", "t", "--kafka-topic", "a", "--property", "x"], WRONG_USAGE, "property must be NAME=VALUE"),
        ([url, "--topic", "t", "--kafka-topic", "a", "--kafka-topic", "a"], WRONG_USAGE, "'a' occurs twice"),
        (["mqtt://a", "--topic", "t", "--group", "g"], WRONG_USAGE, "cannot use Kafka options with this source"),
        (
            ["check", url, "--topic", "t", "--kafka-topic", "a", "--messages", "f"],
            WRONG_USAGE,
            "only be used with MQTT",
        ),
    ):
        assert run(["ingest", *words]) == code, words
        assert text in capsys.readouterr().err


def test_it_ingests_until_sigterm_and_replays_its_dead_letters(
    database: Database, database_url: str, tmp_path: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    database.create_topic("telemetry")
    properties = "\n".join(f'"{name}" = "{value}"' for name, value in FAST.items())
    file = written(
        tmp_path / "ingest.toml",
        f'[kafka]\nurl = "kafka://{place.cluster.servers}"\n[kafka.properties]\n{properties}\n'
        f'[[subscribe]]\nkafka_topic = "{place.name}"\ntopic = "telemetry"\nformat = "json"\ntime = "at"\n'
        f'[database]\nurl = "{database_url}"\nledgers = "{tmp_path / "ledgers"}"\n[limits]\ndead_letters = "dead"\n',
    )
    place.send(b'{"at": 1700000000}', b'{"t": 1700000001}', timestamp=1_700_000_002_000)
    with Forked("tests.ingest.mqtt.command", "ingest", file, "--json") as own:
        until(lambda: payloads(database) and payloads(database, "dead"))
        file.write_text(file.read_text().replace('"at"', '"t"'))
        os.kill(own.pid, signal.SIGHUP)
        events: list[dict[str, object]] = []
        while not events or events[-1]["event"] != "reloaded":
            events.append(json.loads(own.stdout.readline()))
        place.send(b'{"t": 1700000003}')
        until(lambda: len(payloads(database)) == 2)
        os.kill(own.pid, signal.SIGTERM)
        assert own.wait() == DONE
        events += [json.loads(line) for line in own.stdout]
    assert [event["event"] for event in events] == ["connected", "dead_letter", "reloaded", "stopped"]
    assert (events[-1]["appended"], events[-1]["dead"]) == (2, 1)
    assert run(["ingest", "replay", str(file), "--json"]) == DONE
    assert json.loads(capsys.readouterr().out) == {"mapped": 1, "appended": 1, "failed": 0, "cut": 0}
    message = list(database.topic("telemetry").read())[-1]
    assert (message.event_time, message.publish_time) == (1_700_000_001 * 10**9, 1_700_000_002 * 10**9)
    assert message.source == "press"
    assert run(["ingest", "replay", str(file), "--json"]) == DONE


def test_check_shows_the_newest_records(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--topic", "telemetry", "--kafka-topic", place.name, "--format", "json", "--json"]
    source = f"kafka://{place.cluster.servers}"
    place.send(b"old", b"1.5", b"no json")
    assert run(["ingest", "check", source, "--sample", "2", *words]) == FAILED
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (good["offset"], good["key"], good["source"], good["payload"]) == (1, "press", "press", "1.5")
    assert (bad["offset"], bad["raw"]) == (2, "no json")
    assert "JSON" in bad["dead_letter"]
    place.send(b"2")
    assert run(["ingest", "check", source, "--sample", "1", *words]) == DONE
    words[3] = "missing"
    assert run(["ingest", "check", source, *words]) == FAILED
    assert "no Kafka topic named 'missing'" in capsys.readouterr().err


def test_a_refusal_ends_it_with_1(
    database: Database, database_url: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    database.create_topic("telemetry")
    words = ["--topic", "telemetry", "--kafka-topic", "missing", "--format", "raw", "--url", database_url]
    assert run(["ingest", f"kafka://{place.cluster.servers}", *words]) == FAILED
    assert "no Kafka topic named 'missing'" in capsys.readouterr().err
