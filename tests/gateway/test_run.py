"""``waterclock run``: from a real broker to a handled batch, and stopped in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ingest.mqtt.conftest import Publisher
from tests.ingest.mqtt.places import Place
from tests.ingest.running import until
from tests.live.conftest import RULE
from tests.support.services import Service

import waterclock as wc
from waterclock.live.follower import Follower
from waterclock.time import format_time, system_clock
from waterclock.topics.finding.positions import beginning

SECOND = 10**9
HANDLER = """
import json
import waterclock as wc

def note(delivery):
    messages = wc.Batch.from_bytes(delivery.payload).messages
    print(json.dumps({"event": "handled", "messages": len(messages)}), flush=True)
"""


@pytest.fixture
def gateway(tmp_path: Path, mosquitto_server: Service) -> Place:
    place = Place(mosquitto_server.url)
    with wc.connect(f"sqlite:///{tmp_path}/gateway.db") as database:
        database.create_topic("telemetry")
        database.create_table("batches", id_type="text")
        _compile_kernels(database)
    (tmp_path / "handlers.py").write_text(HANDLER)
    (tmp_path / "gateway.toml").write_text(f"""
[broker]
url = "{place.url}"
client_id = "{place.name}"
[[subscribe]]
filter = "{place.name}/#"
topic = "telemetry"
format = "json"
template = "{place.name}/{{source}}/{{stream}}"
time = "t"
[[batch]]
topic = "telemetry"
into = "batches"
window = "100ms"
max_delay = "30s"
max_lead = "1m"
max_skew = "100ms"
[work]
handlers = ["handlers:note@batches"]
[database]
url = "sqlite:///{tmp_path}/gateway.db"
""")
    return place


def _compile_kernels(database: wc.Database) -> None:
    """Batch a message, so that no process waits for compilers while the receive clock goes on."""
    topic, table = database.create_topic("other"), database.create_table("others", id_type="text")
    topic.append(wc.Message("press", "a", 1, receive_time=1))
    follower = Follower(database, topic, table, RULE, max_skew=0, start=beginning(topic.storage))
    follower.step()
    follower.step()


def test_from_the_broker_to_a_handled_batch(tmp_path: Path, gateway: Place, mosquitto_server: Service) -> None:
    publisher = Publisher(mosquitto_server.url)
    words = [sys.executable, "-m", "waterclock", "run", "gateway.toml", "--json"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as own:
        assert own.stdout is not None
        try:
            lines = (json.loads(line) for line in own.stdout)
            assert next(line for line in lines if line.get("event") == "subscribed")["part"] == "ingest"
            # However slow this machine is, one of them arrives just in time, and its batch closes soon.
            first = system_clock() - 30 * SECOND
            times = [json.dumps({"t": format_time(first + each * SECOND)}).encode() for each in range(80)]
            publisher.publish(gateway.topic("press/a"), *times)
            handled = next(line for line in lines if line.get("event") == "handled")
            os.kill(own.pid, signal.SIGTERM)
            ended = [(line["part"], line["event"]) for line in lines if line.get("event") in ("stopped", "ended")]
            assert own.wait(30) == 0
        finally:
            own.kill()
            publisher.close()
    assert (handled["part"], handled["messages"]) == ("work", 1)
    assert ended == [("ingest", "stopped"), ("batch batches", "ended")]


@pytest.fixture
def worker_alone(gateway: Place, tmp_path: Path) -> list[str]:
    (tmp_path / "worker.toml").write_text('[work]\nhandlers = ["handlers:note@batches"]\n')
    return [
        sys.executable,
        "-m",
        "waterclock",
        "run",
        "worker.toml",
        "--json",
        f"--url=sqlite:///{tmp_path}/gateway.db",
    ]


def test_a_part_that_cannot_start_ends_all(tmp_path: Path, worker_alone: list[str]) -> None:
    (tmp_path / "handlers.py").unlink()
    words = [*worker_alone, "--log-format=json"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    [of_part, of_all] = [(line.get("part"), line["message"]) for line in lines if line["event"] == "error"]
    assert of_part == ("work", "no module named 'handlers' in this folder or among the installed packages")
    assert of_all == (None, "work ended with exit code 2; all parts stop")


def test_parts_end_with_a_supervisor_that_was_killed(tmp_path: Path, worker_alone: list[str]) -> None:
    with subprocess.Popen(worker_alone, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as own:
        assert own.stdout is not None
        next(line for line in own.stdout if "working on batches" in line)
        [child] = Path(f"/proc/{own.pid}/task/{own.pid}/children").read_text().split()
        own.kill()
        until(lambda: not Path(f"/proc/{child}").exists())
