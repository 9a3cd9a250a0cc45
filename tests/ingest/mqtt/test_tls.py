"""TLS: the broker is checked against the CA, it checks the client, and certificates are read at each connect."""

from __future__ import annotations

import secrets
import socket
import subprocess
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.mqtt.conftest import Publisher, payloads, running
from tests.ingest.mqtt.places import Place
from tests.ingest.running import until
from tests.support.services import program

from waterclock.connection import Database
from waterclock.ingest.ingest import Ingest
from waterclock.ingest.mqtt.connection import Connection
from waterclock.ingest.progress import Event

pytestmark = pytest.mark.one_database


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def certify(folder: Path, name: str) -> None:
    """Write a new CA into a folder, and certificates of a broker and a client that it has signed."""
    make = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(*make, "-subj", f"/CN={name}", "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    for who in ("broker", "client"):
        signed = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
        files = ("-keyout", folder / f"{who}.key", "-out", folder / f"{who}.pem")
        openssl(*make, "-subj", f"/CN={who}", *signed, *files)


def free_port() -> int:
    """Return a free port below those that the kernel hands out, which another process may get meanwhile."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class TlsBroker:
    """A Mosquitto that wants a client certificate on one port, and takes anybody on another."""

    folder: Path
    ports: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        secured, plain = self.ports
        config = self.folder / "mosquitto.conf"
        config.write_text(
            f"per_listener_settings false\nallow_anonymous true\nlistener {plain} 127.0.0.1\n"
            f"listener {secured} 127.0.0.1\nrequire_certificate true\ncafile {self.folder}/ca.pem\n"
            f"certfile {self.folder}/broker.pem\nkeyfile {self.folder}/broker.key\nuser root\n"
        )
        self.process = subprocess.Popen(
            [program("mosquitto", "mosquitto"), "-c", config], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        until(self._answers)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def place(self) -> Place:
        return Place(f"mqtts://127.0.0.1:{self.ports[0]}")

    def options(self) -> dict[str, Any]:
        return {"ca": f"{self.folder}/ca.pem", "certificate": f"{self.folder}/client.pem"} | {
            "key": f"{self.folder}/client.key"
        }

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.ports[1])) == 0


@pytest.fixture
def broker(tmp_path: Path) -> Generator[TlsBroker]:
    own = TlsBroker(tmp_path, [free_port(), free_port()])
    certify(tmp_path, "first")
    own.start()
    yield own
    own.stop()


def publish(broker: TlsBroker, place: Place, payload: bytes) -> None:
    publisher = Publisher(f"mqtt://127.0.0.1:{broker.ports[1]}")
    publisher.publish(place.topic(), payload)
    publisher.close()


def test_certificates_are_read_again_at_each_connect(database: Database, broker: TlsBroker) -> None:
    place = broker.place()
    with running(database, place.plan(**broker.options())) as own:
        publish(broker, place, b"1")
        until(lambda: payloads(database) == [b"1"])
        broker.stop()
        certify(broker.folder, "second")
        broker.start()
        until(lambda: own.names().count("subscribed") == 2)
        publish(broker, place, b"2")
        until(lambda: payloads(database) == [b"1", b"2"])


@pytest.mark.parametrize("left_out", ["ca", "certificate"])
def test_certificates_that_do_not_fit_are_reported_and_tried_again(
    database: Database, broker: TlsBroker, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {name: value for name, value in broker.options().items() if left_out == "ca" or name == "ca"}
    if left_out == "ca":
        del options["ca"]
    database.create_topic("telemetry")
    events: list[Event] = []
    connect, attempts = Connection.open, count(1)

    def connect_twice(connection: Connection) -> None:
        if next(attempts) == 2:
            ingest.stop()
        connect(connection)

    monkeypatch.setattr(Connection, "open", connect_twice)
    ingest = Ingest(database, broker.place().plan(**options), events.append)
    ingest.run()
    assert next(attempts) > 2
    assert [event.name for event in events] == ["disconnected", "stopped"]
    if left_out == "ca":
        assert "certificate verify failed" in events[0].text
