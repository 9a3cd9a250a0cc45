"""Weighs `waterclock ingest` against paho alone, which acks and keeps nothing: what each takes at QoS 1 at some rates.

Eight publishers send at a given rate; what they saw acked and the consumer did not get is lost, since Mosquitto as
installed queues 1,000 messages for a client and drops the others. Topics are on SQLite on the disk.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.services import running_service

import waterclock as wc
from benchmarks.measure import TICKS_PER_S, write_results

RATES = (5_000, 20_000)
SECONDS = 5
PUBLISHERS = 8
SENT_EVERY = 0.01  # s
SETTLED = 1.0
"""Seconds without another message after which none comes."""

PAHO = """
import sys, threading
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
host, port, user, password, prefix = sys.argv[1:]
client = paho.Client(CallbackAPIVersion.VERSION2, prefix, protocol=paho.MQTTv5, manual_ack=True)
count = 0
def take(client, data, message):
    global count
    count += 1
    client.ack(message.mid, 1)
client.on_connect = lambda *_: client.subscribe(f"{prefix}/#", 1)
client.on_subscribe = lambda *_: print("subscribed", flush=True)
client.on_message = take
client.username_pw_set(user, password)
client.connect(host, int(port))
threading.Thread(target=client.loop_forever, daemon=True).start()
for _ in sys.stdin:
    print(count, flush=True)
"""


READER = """
import sys, time
from waterclock._support.small_process import keep_small
keep_small()
import waterclock as wc
with wc.connect(sys.argv[1]) as opened:
    topic = opened.topic("telemetry")
    delays, place = [], topic.head
    print("subscribed", flush=True)
    while not delays or time.monotonic() - read_at < 3:
        head = topic.head
        if head == place:
            time.sleep(0.01)
            continue
        found = [message.event_time for message in topic.read(place, head)]
        now, read_at, place = time.time_ns(), time.monotonic(), head
        delays += [now - event_time for event_time in found]
delays.sort()
print(delays[len(delays) * 99 // 100], flush=True)
"""


class Publisher:
    """A connection that publishes at QoS 1 by MQTT 3.1.1, without a client library, which would cost more than both."""

    def __init__(self, url: str, name: str) -> None:
        parts = urlsplit(url)
        texts = (name, parts.username or "", parts.password or "")
        body = b"\0\4MQTT\4\xc2\0\0" + b"".join(struct.pack("!H", len(each)) + each.encode() for each in texts)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.sendall(bytes([0x10, len(body)]) + body)
        assert self._socket.recv(4) == b"\x20\2\0\0"
        self._socket.setblocking(False)
        self._topic = f"{name}/cpu/idle".encode()
        self._number = 0
        self._unsent = b""
        self._acked_bytes = 0

    @property
    def acked(self) -> int:
        return self._acked_bytes // 4

    @property
    def is_done(self) -> bool:
        return not self._unsent and self.acked == self._number

    def send(self, count: int) -> None:
        head = struct.pack("!H", len(self._topic)) + self._topic
        packets: list[bytes] = []
        for _ in range(count):
            self._number += 1
            now = time.time_ns()
            payload = b"%d.%09d:98.5" % divmod(now, 1_000_000_000)
            body = head + struct.pack("!H", self._number % 65_535 + 1) + payload
            packets.append(bytes([0x32, len(body)]) + body)
        self._unsent += b"".join(packets)
        self.go_on()

    def go_on(self) -> None:
        """Send what the socket takes, and count acks."""
        if self._unsent and select.select([], [self._socket], [], 0)[1]:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        if select.select([self._socket], [], [], 0)[0]:
            self._acked_bytes += len(self._socket.recv(1 << 16))


def publish(url: str, prefix: str, rate: int) -> tuple[int, float]:
    """Publish at a rate; return how many messages were acked, and the seconds that it took."""
    publishers = [Publisher(url, f"{prefix}/host-{number}") for number in range(PUBLISHERS)]
    began, sent = time.monotonic(), 0
    while sent < rate * SECONDS or not all(each.is_done for each in publishers):
        due = min(int((time.monotonic() - began) * rate), rate * SECONDS)
        for number, each in enumerate(publishers):
            share = (due - sent + number) // PUBLISHERS
            if share:
                each.send(share)
            each.go_on()
        sent = due
        time.sleep(SENT_EVERY)
    return sum(each.acked for each in publishers), time.monotonic() - began


def used(pid: int) -> tuple[float, float]:
    """Return the processor seconds of a process, and the most memory that it held, MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    held = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S, int(held.split()[1]) / 1024


@contextmanager
def consumer(words: list[str], environment: dict[str, str] | None = None) -> Generator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        while "subscribed" not in process.stdout.readline():
            assert process.poll() is None
        yield process
        os.kill(process.pid, signal.SIGTERM)


def settled(count: Callable[[], int]) -> int:
    """Return a count when it changes no more."""
    before, seen = -1, count()
    while before != seen:
        time.sleep(SETTLED)
        before, seen = seen, count()
    return seen


def figures(
    process: subprocess.Popen[str], url: str, prefix: str, rate: int, count: Callable[[], int]
) -> dict[str, object]:
    before, _ = used(process.pid)
    acked, seconds = publish(url, prefix, rate)
    got = settled(count)
    after, memory = used(process.pid)
    return {
        "published_per_s": round(acked / seconds),
        "lost": acked - got,
        "cpu_us_per_message": round((after - before) / max(got, 1) * 1e6, 1),
        "mib": round(memory),
    }


def of_paho(url: str, rate: int) -> dict[str, object]:
    parts, prefix = urlsplit(url), f"paho-{rate}"
    words = ["-c", PAHO, str(parts.hostname), str(parts.port), str(parts.username), str(parts.password), prefix]
    with consumer(words) as process:

        def count() -> int:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return int(process.stdout.readline())  # type: ignore[union-attr]

        return figures(process, url, prefix, rate, count)


def of_ingest(url: str, rate: int) -> dict[str, object]:
    prefix = f"ingest-{rate}"
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'factory.db'}"
        with wc.connect(database) as opened:
            topic = opened.create_topic("telemetry")
            words = ["-m", "waterclock", "ingest", url, "--topic", "telemetry", "--filter", f"{prefix}/#"]
            words += ["--template", f"{prefix}/{{source}}/{{stream...}}", "--client-id", prefix, "--json"]
            with (
                consumer(words, {**os.environ, "WATERCLOCK_URL": database}) as process,
                consumer(["-c", READER, database]) as reader,
            ):
                found = figures(process, url, prefix, rate, lambda: topic.index(topic.head))
                found["p99_ms_until_read"] = round(int(reader.stdout.readline()) / 1e6, 1)  # type: ignore[union-attr]
            delays = sorted((m.receive_time or 0) - m.event_time for m in topic.read())
            ledger = topic.ledgers()[0]
            found["p99_ms_to_receive_time"] = round(delays[len(delays) * 99 // 100] / 1e6, 1)
            found["messages_per_entry"] = round(len(delays) / ledger.entries)
        return found


def main() -> None:
    results: dict[str, dict[str, object]] = {}
    with running_service("mosquitto") as broker:
        for rate in RATES:
            for name, run in {"paho alone": of_paho, "ingest": of_ingest}.items():
                found = results[f"{name}, {rate} messages/s"] = run(broker.url, rate)
                print(f"{name:<12} {rate:>6}/s  {found}", flush=True)
    print(f"wrote {write_results('ingest_mqtt', results, ('waterclock', 'paho-mqtt'))}")


if __name__ == "__main__":
    main()
