"""The command line: ``waterclock ingest`` and its parts."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from tests.ingest.mqtt.conftest import Publisher, payloads
from tests.ingest.mqtt.places import Place
from tests.ingest.running import until
from tests.support.forked import Forked

from waterclock.cli.app import DONE, FAILED, WRONG_USAGE, run
from waterclock.cli.gateway import ingest_talk
from waterclock.cli.terminal.output import Output
from waterclock.connection import Database

pytestmark = pytest.mark.one_database


@pytest.fixture
def file(place: Place, database_url: str, database: Database, tmp_path: Path) -> Path:
    database.create_topic("telemetry")
    path = tmp_path / "ingest.toml"
    path.write_text(
        f'[broker]\nurl = "{place.url}"\nclient_id = "{place.name}"\n'
        f'[[subscribe]]\nfilter = "{place.name}/#"\ntopic = "telemetry"\nformat = "json"\n'
        f'template = "{place.name}/{{source}}/{{stream}}"\n'
        f'[database]\nurl = "{database_url}"\nledgers = "{tmp_path / "ledgers"}"\n'
        '[limits]\ndead_letters = "dead"\n'
    )
    return path


def read_json(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_ingests_reloads_and_stops_on_signals(
    database: Database, place: Place, publisher: Publisher, file: Path
) -> None:
    with Forked("tests.ingest.mqtt.command", "ingest", file, "--json") as own:
        events = [json.loads(own.stdout.readline()) for _ in range(2)]
        assert [event["event"] for event in events] == ["connected", "subscribed"]
        publisher.publish(place.topic(), *(b"%d" % each for each in range(100)), b"no json")
        until(lambda: len(payloads(database)) == 100)
        file.write_text(file.read_text().replace("{source}/{stream}", "{stream}/{source}"))
        os.kill(own.pid, signal.SIGHUP)
        while (event := json.loads(own.stdout.readline()))["event"] != "reloaded":
            assert event["event"] == "dead_letter"
        publisher.publish(place.topic("a/b"), b"last")
        publisher.publish(place.topic("a/b"), b'"last"')
        until(lambda: payloads(database)[-1] == b'"last"')
        os.kill(own.pid, signal.SIGTERM)
        assert own.wait() == DONE
        stopped = read_json(own.stdout.read())[-1]
    assert (stopped["event"], stopped["received"], stopped["appended"], stopped["dead"]) == ("stopped", 103, 101, 2)
    assert list(database.topic("telemetry").read())[-1].source == "b"


def test_progress_that_no_one_reads_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pages:
        def write(self, facts: object, *, ended: bool = False) -> None: ...

        write_sometimes = write

    def fail(_rate: float) -> Any:
        if threading.current_thread() is threading.main_thread():
            return "", {}
        raise BrokenPipeError

    monkeypatch.setattr(ingest_talk, "_SAY_EVERY", 0.01)
    stops: list[bool] = []
    with (
        pytest.raises(BrokenPipeError),
        ingest_talk.signals(lambda: stops.append(True)),
        ingest_talk.saying(lambda: 0, fail, Output(), cast("Any", Pages())),
    ):
        until(lambda: stops)


def test_check_shows_messages_and_appends_nothing(
    database: Database,
    place: Place,
    publisher: Publisher,
    file: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    publisher.publish(place.topic(), b'"kept"', retain=True)
    file.write_text(file.read_text().replace('format = "json"', 'format = "json"\nretained = "take"'))
    try:
        assert run(["ingest", "check", str(file), "--sample", "1", "--json"]) == FAILED
    finally:
        publisher.publish(place.topic(), b"", retain=True)
    out, err = capsys.readouterr()
    [shown] = read_json(out)
    assert shown["dead_letter"].endswith("has no time")
    assert "the broker is mosquitto version" in err
    messages = tmp_path / "messages.jsonl"
    messages.write_text(json.dumps({"topic": place.topic(), "payload": "1.5"}))
    config = tmp_path / "mosquitto.conf"
    config.write_text("max_queued_messages 7\n")
    words = ["ingest", "check", str(file), "--messages", str(messages), "--broker-config", str(config), "--json"]
    assert run(words) == DONE
    out, err = capsys.readouterr()
    [shown] = read_json(out)
    assert (shown["raw"], shown["source"], shown["payload"]) == ("1.5", "source", "1.5")
    assert "the broker queues 7 messages" in err
    assert payloads(database) == []


def test_replay_maps_dead_letters_again(
    database: Database, file: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ingest", "replay", str(file)]) == FAILED
    database.create_topic("dead")
    assert run(["ingest", "replay", str(file), "--json"]) == DONE
    assert read_json(capsys.readouterr().out) == [{"mapped": 0, "appended": 0, "failed": 0, "cut": 0}]


def test_errors_name_the_fault_and_no_password(
    database: Database, place: Place, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = place.url.partition("@")[0].rpartition(":")[2]
    for words, code, text in (
        (["ingest", place.url], WRONG_USAGE, "--topic is missing; name the topic"),
        (
            ["ingest", f"http://x:{secret}@host", "--topic", "t"],
            WRONG_USAGE,
            "url must be mqtt://HOST or mqtts://HOST, which",
        ),
        (["ingest", str(file), "--qos", "0"], WRONG_USAGE, "Pass a URL as source"),
        (["ingest", "missing.toml"], FAILED, "missing.toml"),
    ):
        assert run(words) == code, words
        error = capsys.readouterr().err
        assert text in error
        assert secret not in error
