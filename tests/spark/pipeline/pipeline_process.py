"""A pipeline in a process of its own, to be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from tests.spark.pipeline.pipeline_query import RULE, TABLE, TOPIC
from tests.spark.results import assert_same, results_in_rows, results_of

import waterclock as wc
from waterclock.time import MAX_NS

REPOSITORY = Path(__file__).parents[3]


BEGIN = 1_790_000_000 * 10**9


MS = 10**6


WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: the system kills its process when the tests' own has ended, even where that is killed."""


PATIENCE_S = 600  # starting a driver takes 5 s, and many times that on a machine that is busy


ENTRIES_A_LINE = 6


@contextmanager
def started(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Generator[subprocess.Popen[str]]:
    """Run a command in a process group of its own, which ends with the block; its errors are in the folder.

    Its temporary folders are removed, too: a killed process leaves them. The paths of sockets in them must be short.
    """
    with TemporaryDirectory(prefix="wc-", ignore_cleanup_errors=True) as scratch:
        java = f"{environment.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={scratch}"
        places = {"TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch, "JAVA_TOOL_OPTIONS": java}
        with (folder / "stderr").open("a") as errors:
            process = subprocess.Popen(
                [*WITH_US, *command],
                cwd=REPOSITORY,
                env={**environment, **places},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            end_group(process)


class Pipeline:
    """A topic that is appended to while its query runs, is killed, and runs again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)  # noqa: S311  # repeatable, nothing secret
        self.database = wc.connect(f"sqlite:///{folder / 'factory.db'}")
        self.topic = self.database.create_topic(TOPIC, roll_size=50_000)
        self.database.create_table(TABLE, id_type="text", groups="sequenced")
        self._now = BEGIN
        self._enough = threading.Event()
        self._wanted = threading.Semaphore(0)
        self._appender = threading.Thread(target=self._append)

    def append_entry(self) -> None:
        """Append what six sources sent in some 200 ms; now and then something late, ahead, or twice."""
        messages: list[wc.Message] = []
        for _ in range(40):
            self._now += self.chance.randrange(10 * MS)
            event_time = self._now - self.chance.choice([0, 50 * MS, 300 * MS, 450 * MS, -MS])
            source, stream = f"press-{self.chance.randrange(6)}", self.chance.choice("abcdef")
            payload = self.chance.randbytes(20)
            sent = wc.Message(source, stream, event_time, payload, publish_time=self._now, receive_time=self._now)
            messages += [sent] * self.chance.choice([1, 1, 1, 1, 2])
        self.topic.append(messages)

    @contextmanager
    def appended_to(self) -> Generator[None]:
        self._appender.start()
        try:
            yield
        finally:
            self._enough.set()
            self._wanted.release()
            self._appender.join()
        end = self._now + 3_600 * 1_000 * MS
        self.topic.append([wc.Message("clock", "tick", end, publish_time=end, receive_time=end)])

    @contextmanager
    def query(self, master: str, until: str) -> Generator[subprocess.Popen[str]]:
        """Start the query in a process group of its own, which ends with this."""
        url = str(self.database.backend.url)
        module = "tests.spark.pipeline.pipeline_query"
        command = [sys.executable, "-m", module, url, str(self.folder), master, until]
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        with started(command, self.folder, os.environ | {"PYTHONPATH": path}) as process:
            yield process

    def lines(self, process: subprocess.Popen[str]) -> Iterator[str]:
        """Yield what the query says; where it ends too soon, its errors are the failure."""
        assert process.stdout is not None
        watch = threading.Timer(PATIENCE_S, end_group, [process])
        watch.start()
        try:
            yield from map(str.strip, process.stdout)
        finally:
            watch.cancel()

    def wait_for(self, process: subprocess.Popen[str], begins: str) -> None:
        for line in self.lines(process):
            # The more the query does, the more is appended while it runs.
            self._wanted.release(ENTRIES_A_LINE)
            if line.startswith(begins):
                return
        pytest.fail(f"the query ended: {(self.folder / 'stderr').read_text()[-3_000:]}")

    def finish(self, master: str) -> None:
        with self.query(master, "once") as process:
            self.wait_for(process, "done")

    def check(self) -> None:
        """Compare table and Parquet with what one process makes of the topic."""
        batcher = wc.BySource(lambda: wc.EventTimeBatcher(**RULE))
        expected = [batch for m in self.topic.read() for batch in batcher.add(m)] + batcher.advance(MAX_NS)
        expected = [batch for batch in expected if batch.source != "clock"]  # whose window nothing has closed
        landed: dict[object, bytes] = {}
        table = self.database.table(TABLE)
        while deliveries := table.receive(limit=1_000):
            for delivery in deliveries:
                with delivery:
                    assert landed.setdefault(delivery.id, delivery.payload) is delivery.payload, "delivered twice"
        assert landed == {batch.id: batch.to_bytes() for batch in expected}
        self._check_parquet(expected, batcher.take_rejected())

    def _check_parquet(self, expected: list[wc.Batch], rejected: list[wc.Rejection]) -> None:
        written = [pq.read_table(path) for path in sorted((self.folder / "outcomes").glob("*/*.parquet"))]
        found = results_in_rows(rows for table in written for rows in table.to_batches())
        assert_same(found, results_of(expected, rejected))
        assert {reason for each in found.rejected.values() for reason, _ in each} == {"late", "future", "duplicate"}

    def _append(self) -> None:
        while self._wanted.acquire() and not self._enough.is_set():
            self.append_entry()


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill a query with all that it started, and reap it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def processes_of(processes: Sequence[subprocess.Popen[str]]) -> dict[int, bytes]:
    """Find what runs in the sessions of some processes: its number and its command line."""
    sessions = {process.pid for process in processes}
    found: dict[int, bytes] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = int((folder / "stat").read_text().rpartition(") ")[2].split()[3])
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if session in sessions and command:  # what has ended, and waits to be reaped, has none
            found[int(folder.name)] = command
    return found


def executors_of(processes: Sequence[subprocess.Popen[str]]) -> list[int]:
    """Find the executors that are of the sessions of some processes."""
    return [
        process
        for process, command in processes_of(processes).items()
        if b"CoarseGrainedExecutorBackend" in command and b"java" in command.split(b"\0")[0]
    ]


def kill_executors(
    pipeline: Pipeline, process: subprocess.Popen[str], kills: int, workers: Sequence[subprocess.Popen[str]] = ()
) -> None:
    """Kill one executor after another in the middle of a micro-batch, which the query then ends without a restart."""
    pipeline.wait_for(process, "begin")
    for _ in range(kills):
        pipeline.wait_for(process, "begin")
        time.sleep(pipeline.chance.uniform(0, 1))  # as above
        executors = executors_of(workers or [process])
        assert executors, "there is no executor to kill"
        os.kill(pipeline.chance.choice(executors), signal.SIGKILL)
        pipeline.wait_for(process, "end")
