"""The process that the public benchmark of job queues in PostgreSQL starts for each system.

The benchmark (https://github.com/hardbyte/postgresql-job-queue-benchmarking) sets the environment and reads JSON lines
from the standard output. The contract is that project's CONTRIBUTING_ADAPTERS.md. A system's adapter derives from
`Adapter`. It runs in an environment that has only the system's packages, so this file needs none.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

WINDOW = 30.0  # s, over which latencies are reported
MOST_LATENCIES = 32_768

Latencies = deque[tuple[float, float]]


class Adapter:
    """The producer, the worker and the figures of one process of a system."""

    unavailable: tuple[type[Exception], ...] = ()
    """The errors after which the producer tries again."""

    def __init__(self, manifest: Path, version: str) -> None:
        self.manifest = json.loads(manifest.read_text())
        self.version = version
        self.url = os.environ["DATABASE_URL"]
        self.every = _number("SAMPLE_EVERY_S", 5)
        self.concurrency = _number("WORKER_COUNT", 32)
        self.instance = _number("BENCH_INSTANCE_ID", 0)
        self.stopped = threading.Event()
        self._target_depth = _number("TARGET_DEPTH", 1000)
        self._most_rows = _number("PRODUCER_BATCH_MAX", 128)
        self._work = _number("JOB_WORK_MS", 1) / 1000
        self._padding = "x" * max(0, _number("JOB_PAYLOAD_BYTES", 256) - 40)
        self._enqueued = self._completed = self._depth = 0
        self._picked_up: Latencies = deque(maxlen=MOST_LATENCIES)
        self._finished: Latencies = deque(maxlen=MOST_LATENCIES)

    def put(self, jobs: list[dict[str, Any]]) -> None:
        """Put jobs in one call."""
        raise NotImplementedError

    def depth(self) -> int:
        """Return how many jobs are available and not claimed."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the producer and the figures. The system's worker runs in the calling thread."""
        described = {key: self.manifest[key] for key in ("system", "event_tables", "event_indexes", "extensions")}
        started = {"version": self.version, "schema_version": self.version, "started_at": _now()}
        _print({"kind": "descriptor", **described, **started, "db_name": self.manifest["db_name"], **self._instance()})
        for each in (self._produce, self._look, self._sample):
            threading.Thread(target=each, daemon=True).start()

    async def handle(self, job: dict[str, Any]) -> None:
        """Do the work of one job, and note how long it had waited."""
        self._picked_up.append((time.monotonic(), 1000 * (time.time() - job["put"])))
        if self._work:
            await asyncio.sleep(self._work)
        self._finished.append((time.monotonic(), 1000 * (time.time() - job["put"])))
        self._completed += 1

    def _produce(self) -> None:
        for count in self._counts():
            now = time.time()
            try:
                self.put([{"put": now, "padding": self._padding} for _ in range(count)])
            except self.unavailable as error:
                print(f"put failed: {error}", file=sys.stderr)
                self.stopped.wait(0.2)
                continue
            self._enqueued += count

    def _counts(self) -> Iterator[int]:
        """Yield how many jobs to put next, by the mode of the run."""
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            while not self.stopped.is_set():
                # Between two looks the depth is what was put and not yet handled.
                waiting = self._enqueued - self._completed if self.instance == 0 else self._depth
                missing = min(self._most_rows, self._target_depth - max(waiting, 0))
                if missing > 0:
                    yield missing
                else:
                    self.stopped.wait(0.005)
        elif os.environ.get("PRODUCER_PACING", "harness") == "harness":
            for line in sys.stdin:
                if line.startswith("ENQUEUE "):
                    yield int(line.split()[1])
        else:
            yield from self._paced()

    def _paced(self) -> Iterator[int]:
        """Yield as many jobs as the rate allows by the clock, not by the number of turns."""
        every = _number("PRODUCER_BATCH_MS", 25) / 1000
        credit, last = 0.0, time.monotonic()
        while not self.stopped.wait(every):
            now = time.monotonic()
            credit, last = credit + self._rate() * (now - last), now
            while credit >= 1:
                count = min(self._most_rows, int(credit))
                credit -= count
                yield count

    def _rate(self) -> float:
        control = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
        try:
            return float(Path(control).read_text()) if control else _number("PRODUCER_RATE", 800)
        except (OSError, ValueError):
            return _number("PRODUCER_RATE", 800)

    def _look(self) -> None:
        while self.instance == 0 and not self.stopped.wait(self.every):
            try:
                self._depth = self.depth()
            except self.unavailable as error:
                print(f"cannot read the depth: {error}", file=sys.stderr)

    def _sample(self) -> None:
        self.stopped.wait(self.every - time.time() % self.every)
        enqueued, completed, last = self._enqueued, self._completed, time.monotonic()
        while not self.stopped.wait(self.every):
            now = time.monotonic()
            self._emit("enqueue_rate", (self._enqueued - enqueued) / (now - last), self.every)
            self._emit("completion_rate", (self._completed - completed) / (now - last), self.every)
            enqueued, completed, last = self._enqueued, self._completed, now
            if self.instance == 0:
                self._emit("queue_depth", self._depth, 0)
                self._emit("producer_target_rate", self._rate(), 0)
            for names, latencies in ((("claim", "subscriber"), self._picked_up), (("end_to_end",), self._finished)):
                values = sorted(value for at, value in list(latencies) if at >= now - WINDOW)
                for name in names if values else ():
                    for percent in (50, 95, 99):
                        self._emit(f"{name}_p{percent}_ms", values[(len(values) - 1) * percent // 100], WINDOW)

    def _emit(self, metric: str, value: float, window: float) -> None:
        _print(
            {
                "t": _now(),
                "system": self.manifest["system"],
                "kind": "adapter",
                "subject_kind": "adapter",
                "subject": "",
                "metric": metric,
                "value": value,
                "window_s": window,
                **self._instance(),
            }
        )

    def _instance(self) -> dict[str, int]:
        return {"instance_id": self.instance}


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print(record: dict[str, object]) -> None:
    print(json.dumps(record), flush=True)
