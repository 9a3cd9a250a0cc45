"""Weighs `waterclock ingest` against paho alone, which acks and keeps nothing: what each takes at QoS 1 at some rates.

Eight publishers send at a given rate to one consumer, or to several that share a subscription. What the publishers saw
acked and no consumer got is lost, since Mosquitto as installed queues 1,000 messages for a client and drops the others.
With a broker that queues all of them, the time until the last message is stored is what counts. Topics are on SQLite on
the disk.
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
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.services import Service, running_service

import waterclock as wc
from benchmarks.measure import TICKS_PER_S, write_results

RATES = (5_000, 20_000)
CONSUMERS = (1, 3)
SECONDS = 5
PUBLISHERS = 8
SENT_EVERY = 0.01  # s
SETTLED = 3.0
"""Seconds without another message after which none comes."""

PAHO = """
import sys, threading
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
host, port, user, password, name, filter_text = sys.argv[1:]
client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=True)
count = 0
def take(client, data, message):
    global count
    count += 1
    client.ack(message.mid, 1)
client.on_connect = lambda *_: client.subscribe(filter_text, 1)
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
    while not delays or time.monotonic() - read_at < 4:
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


def publish(url: str, prefix: str, rate: int) -> int:
    """Publish at a rate, and return how many messages were acked."""
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
    return sum(each.acked for each in publishers)


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


def settled(count: Callable[[], int]) -> tuple[int, float]:
    """Return a count when it changes no more, and when it changed last."""
    seen, changed = count(), time.monotonic()
    while time.monotonic() < changed + SETTLED:
        time.sleep(0.05)
        if (now := count()) != seen:
            seen, changed = now, time.monotonic()
    return seen, changed


def figures(
    processes: Sequence[subprocess.Popen[str]], broker: Service, prefix: str, rate: int, count: Callable[[], int]
) -> dict[str, Any]:
    """Publish to some consumers, and return the throughput, what was lost, and the processor time of each part."""
    server = process_of(broker)

    def spent() -> tuple[float, float, float]:
        return time.process_time(), used(server)[0], sum(used(each.pid)[0] for each in processes)

    before, began = spent(), time.monotonic()
    acked = publish(broker.url, prefix, rate)
    published, publisher = time.monotonic() - began, time.process_time() - before[0]
    got, stored_at = settled(count)
    _, by_broker, by_consumers = (after - each for after, each in zip(spent(), before, strict=True))
    return {
        "published_per_s": round(acked / published),
        "stored_per_s": round(got / (stored_at - began)),
        "lost": acked - got,
        "publisher_us_per_message": round(publisher / acked * 1e6, 1),
        "broker_us_per_message": round(by_broker / acked * 1e6, 1),
        "cpu_us_per_message": round(by_consumers / max(got, 1) * 1e6, 1),
        "mib": round(max(used(each.pid)[1] for each in processes)),
    }


def process_of(broker: Service) -> int:
    """Return the process of a broker that `running_service` started."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        words = file.read_bytes().split(b"\0")
        if words[0].endswith(b"mosquitto") and any(word.startswith(bytes(broker.folder or "/")) for word in words):
            return int(file.parent.name)
    raise LookupError("benchmarks need a broker that they start: unset WATERCLOCK_TEST_MOSQUITTO_URL")


def queue_all(broker: Service) -> None:
    """Let a broker queue any number of messages for a client, instead of 1,000."""
    [file] = (broker.folder or Path()).rglob("mosquitto.conf")
    file.write_text(f"{file.read_text()}max_queued_messages 0\nmax_queued_bytes 0\n")
    broker.restart()


def filter_of(prefix: str, consumers: int) -> str:
    return f"{prefix}/#" if consumers == 1 else f"$share/{prefix}/{prefix}/#"


def of_paho(broker: Service, prefix: str, rate: int, consumers: int) -> dict[str, Any]:
    parts = urlsplit(broker.url)
    words = ["-c", PAHO, str(parts.hostname), str(parts.port), str(parts.username), str(parts.password)]
    with ExitStack() as stack:
        names = [f"{prefix}-{number}" for number in range(consumers)]
        processes = [stack.enter_context(consumer([*words, each, filter_of(prefix, consumers)])) for each in names]

        def count() -> int:
            for process in processes:
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            return sum(int(process.stdout.readline()) for process in processes)  # type: ignore[union-attr]

        return figures(processes, broker, prefix, rate, count)


def of_ingest(broker: Service, prefix: str, rate: int, consumers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        database = f"sqlite:///{Path(folder) / 'factory.db'}"
        topic = stack.enter_context(wc.connect(database)).create_topic("telemetry")
        words = ["-m", "waterclock", "ingest", broker.url, "--topic", "telemetry", "--json"]
        words += ["--filter", filter_of(prefix, consumers), "--template", f"{prefix}/{{source}}/{{stream...}}"]
        environment = {**os.environ, "WATERCLOCK_URL": database}
        processes = [
            stack.enter_context(consumer([*words, "--client-id", f"{prefix}-{number}"], environment))
            for number in range(consumers)
        ]
        reader = stack.enter_context(consumer(["-c", READER, database]))
        found = figures(processes, broker, prefix, rate, lambda: topic.index(topic.head))
        found["p99_ms_until_read"] = round(int(reader.stdout.readline()) / 1e6, 1)  # type: ignore[union-attr]
        delays = sorted((message.receive_time or 0) - message.event_time for message in topic.read())
        found["p99_ms_to_receive_time"] = round(delays[len(delays) * 99 // 100] / 1e6, 1)
        found["messages_per_entry"] = round(len(delays) / topic.ledgers()[0].entries)
        return found


def main() -> None:
    results: dict[str, dict[str, Any]] = {}

    def weigh(broker: Service, queued: str, rates: Sequence[int]) -> None:
        for rate, consumers in product(rates, CONSUMERS):
            for name, run in {"paho alone": of_paho, "ingest": of_ingest}.items():
                found = run(broker, f"consumer-{len(results)}", rate, consumers)
                title = f"{consumers} x {name}, {rate} messages/s, the broker queues {queued}"
                results[title] = found
                print(f"{title}: {found}", flush=True)

    with running_service("mosquitto") as broker:
        weigh(broker, "1,000", RATES)
        queue_all(broker)
        weigh(broker, "all", RATES[-1:])
    print(f"wrote {write_results('ingest_mqtt', results, ('waterclock', 'paho-mqtt'))}")


if __name__ == "__main__":
    main()
