"""The live demo: this machine's measurements pass from collectd through MQTT into batches, and are drawn."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterclock._support import moments
from waterclock._support.quoting import counted
from waterclock.batching.batch import Batch
from waterclock.connection import Database, connect
from waterclock.demo.demo_folder import make_fresh, stored_batches
from waterclock.demo.report import ProgressReport, Report
from waterclock.errors import UnavailableError
from waterclock.figures.timeline import timeline
from waterclock.work.running.signals import StopFlag, stopping_at_signals

WINDOW = "500ms"
MAX_DELAY = "1s"
MAX_LEAD = "5ms"
"""collectd rounds its times, and some are then later than the time of their arrival."""

PICTURED = 10_000_000_000
"""The last part of the run that is drawn, ns."""

_CLOSES_IN = 4.0
"""Seconds after the last message in which every window has closed and is stored: twice window and delay."""

_CLOSES_WITHIN = 15.0
"""Seconds more for a busy machine, while messages are in no batch; rejected ones are counted only at the end."""

_STARTS_WITHIN = 30.0
"""Seconds in which the broker must accept connections, and the ingest must subscribe."""

_ENDS_WITHIN = 60.0
"""Seconds in which a process must end before it is killed."""

_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/opt/homebrew/sbin", "/usr/local/opt/mosquitto/sbin")
"""Folders in which packages install servers; an ordinary user's PATH lacks some of these."""

_PACKAGES = {"mosquitto": "mosquitto", "collectd": "collectd-core libmosquitto1"}

_PLUGINS = ("cpu", "memory", "load", "interface", "disk", "processes", "swap", "uptime", "contextswitch", "vmem")


@dataclass(frozen=True)
class LiveBooks:
    """The figures of a live demo: each message is in one batch or rejected."""

    received: int  # messages in the topic
    # Messages in batches, and those batches.
    batched: int
    batches: int
    rejected: dict[str, int]  # messages in no batch, by reason
    streams: int  # streams of this machine that had messages

    @property
    def balances(self) -> bool:
        """Whether messages came, and each of them is in one batch or rejected."""
        return 0 < self.received == self.batched + sum(self.rejected.values())

    def facts(self) -> dict[str, object]:
        """Return the figures by name."""
        return {
            "received": self.received,
            "streams": self.streams,
            "batched": self.batched,
            "batches": self.batches,
            "rejected": self.rejected,
            "balances": self.balances,
        }

    def lines(self) -> list[str]:
        """Return the figures as text."""
        rejected = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.rejected.items())) or "none"
        return [
            f"received   {self.received:,} messages in {self.streams:,} streams",
            f"batched    {self.batched:,} in {counted(self.batches, 'batch', 'batches')}",
            f"rejected   {rejected}",
            "each message is in one batch or rejected" if self.balances else "THE FIGURES DO NOT BALANCE",
        ]


def run_live(folder: Path, seconds: float, report: Report) -> LiveBooks:
    """Ingest and batch this machine's measurements for some seconds, in ``folder``, which is recreated.

    SIGINT and SIGTERM end the measurement early.

    Raises `AlreadyExistsError` if ``folder`` holds anything except an earlier demo. Raises `UnavailableError` if
    Mosquitto or collectd is not installed, or a process ends early.
    """
    mosquitto, collectd = _find("mosquitto"), _find("collectd")
    make_fresh(folder)
    folder = folder.absolute()
    url = f"sqlite:///{folder / 'live.db'}"
    stop = StopFlag()
    with stopping_at_signals(stop.wish), connect(url) as database:
        topic = database.create_topic("telemetry")
        database.create_table("batches", id_type="text")
        with _broker(folder, mosquitto) as port:
            command = [sys.executable, "-m", "waterclock", "run", str(_gateway_file(folder, url, port)), "--json"]
            log = folder / "run.log"
            with _running(command, log) as gateway:
                with report.step("start the ingest and the batching"):
                    _await_subscription(gateway, log)
                text = f"ingest and batch this machine's measurements for {seconds:g} s"
                with report.step(text, round(seconds)) as progress, _collectd(folder, collectd, port):
                    _wait(seconds, gateway, log, progress, stop)
                with report.step("wait for the last windows to close"):
                    _wait(_CLOSES_IN, gateway, log)
                    give_up = moments.monotonic() + _CLOSES_WITHIN
                    while _batched(database) < topic.info.messages and moments.monotonic() < give_up:
                        _wait(0.5, gateway, log)
        batches = stored_batches(database, "batches")
        ended = next((each for each in _told(log) if each.get("event") == "ended"), None)
        rejected: dict[str, int] = {} if ended is None else ended["rejected"]
        streams = {message.stream for batch in batches for message in batch.messages}
        received = topic.info.messages
    if batches:
        picture = folder / "live.svg"
        picture.write_text(_draw(batches), encoding="utf-8")
        report.say(f"drew {picture}")
    return LiveBooks(received, sum(len(batch.messages) for batch in batches), len(batches), rejected, len(streams))


def _batched(database: Database) -> int:
    return sum(len(batch.messages) for batch in stored_batches(database, "batches"))


def _find(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path=":".join(_FOLDERS))
    if found is None:
        raise UnavailableError(
            f"cannot run the live demo: {program} is not installed. Install {program} (Debian and Ubuntu: apt-get"
            f" install {_PACKAGES[program]})"
        )
    return found


@contextmanager
def _broker(folder: Path, program: str) -> Generator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    settings = folder / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n", encoding="utf-8")
    log = folder / "mosquitto.log"
    with _running([program, "-c", str(settings)], log) as process:
        give_up = moments.monotonic() + _STARTS_WITHIN
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or moments.monotonic() > give_up:
                raise UnavailableError(f"Mosquitto did not start. See {log}")
            moments.sleep(0.05)
        yield port


@contextmanager
def _collectd(folder: Path, program: str, port: int) -> Generator[None]:
    plugins = "".join(f"LoadPlugin {name}\n" for name in _PLUGINS)
    settings = folder / "collectd.conf"
    settings.write_text(
        f'Hostname "{_host()}"\nFQDNLookup false\nInterval 1\nBaseDir "{folder}"\nPIDFile "{folder}/collectd.pid"\n'
        f"{plugins}LoadPlugin mqtt\n<Plugin mqtt>\n  <Publish broker>\n    Host 127.0.0.1\n    Port {port}\n"
        f"    Prefix collectd\n    QoS 1\n  </Publish>\n</Plugin>\n",
        encoding="utf-8",
    )
    with _running([program, "-f", "-C", str(settings)], folder / "collectd.log"):
        yield


def _host() -> str:
    """Return this machine's name; without characters that mean something in a topic or in collectd's file."""
    name = "".join(letter for letter in socket.gethostname() if letter.isalnum() or letter in "-_.")
    return name or "localhost"


@contextmanager
def _running(command: list[str], log: Path) -> Generator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, process_group=0
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _gateway_file(folder: Path, url: str, port: int) -> Path:
    file = folder / "gateway.toml"
    file.write_text(
        f'[database]\nurl = "{url}"\n\n[broker]\nurl = "mqtt://127.0.0.1:{port}"\n\n'
        '[[subscribe]]\ntopic = "telemetry"\nformat = "collectd"\n\n'
        f'[[batch]]\ntopic = "telemetry"\ninto = "batches"\nwindow = "{WINDOW}"\nmax_delay = "{MAX_DELAY}"\n'
        f'max_lead = "{MAX_LEAD}"\nmax_skew = "100ms"\n',  # all programs here read one clock
        encoding="utf-8",
    )
    return file


def _await_subscription(gateway: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the ingest has subscribed: the broker drops earlier messages."""
    give_up = moments.monotonic() + _STARTS_WITHIN
    while not any(facts.get("event") == "subscribed" for facts in _told(log)):
        if moments.monotonic() > give_up:
            raise UnavailableError(f"the ingest did not start. See {log}")
        _wait(0.2, gateway, log)


def _wait(
    seconds: float,
    gateway: subprocess.Popen[bytes],
    log: Path,
    progress: ProgressReport = lambda _done: None,
    stop: StopFlag | None = None,
) -> None:
    begun = moments.monotonic()
    while (passed := moments.monotonic() - begun) < seconds and not (stop and stop.is_wished):
        if gateway.poll() is not None:
            raise UnavailableError(f"the ingest or the batching has ended. See {log}")
        progress(int(passed))
        moments.sleep(min(0.2, seconds - passed))


def _told(log: Path) -> Generator[dict[str, Any]]:
    """Yield the facts that the ingest and the batching have printed so far."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _draw(batches: list[Batch]) -> str:
    end = max(batch.end for batch in batches)
    start = max(end - PICTURED, min(batch.start for batch in batches))
    return timeline(batches, (), start=start, end=end, title="This machine, batched by when things happened")
