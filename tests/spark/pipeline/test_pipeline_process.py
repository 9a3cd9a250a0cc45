"""``waterclock pipeline run`` as a process: killed at any moment it loses nothing, and asked to stop it does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark import short_lived
from tests.spark.pipeline.pipeline_files import PIPELINE, START, expected, landed, read, write
from tests.spark.pipeline.pipeline_process import executors_of, processes_of, started

import waterclock as wc
from waterclock.spark.pipeline.running import run_pipelines
from waterclock.spark.writing.message_writer import REASON_HEADER

MS = 10**6
PATIENCE_S = 300  # a start takes seconds, and many times that on a machine that is busy

pytestmark = pytest.mark.timeout(900)


class Press:
    """A topic, its pipeline's file, and the command that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chance = random.Random(8)  # noqa: S311  # repeatable, nothing secret
        self.database = wc.connect(f"sqlite:///{folder}/f.db")
        self.topic = self.database.create_topic("telemetry")
        self.database.create_table("batches", id_type="text")
        self.database.create_topic("rejected")
        self.file = write(folder, PIPELINE.replace('trigger = "5s"', 'trigger = "50ms"'))
        self._now = START

    def append(self, entries: int) -> None:
        for _ in range(entries):
            messages: list[wc.Message] = []
            for _ in range(20):
                self._now += self.chance.randrange(40 * MS)
                event_time = self._now - self.chance.choice([0, 100 * MS, 300 * MS, 500 * MS])
                source, stream = self.chance.choice("abc"), self.chance.choice("xyz")
                messages.append(
                    wc.Message(source, stream, event_time, b"?", publish_time=self._now, receive_time=self._now)
                )
            self.topic.append(messages)

    @contextmanager
    def running(self, master: str = "local[1]") -> Generator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "waterclock", "pipeline", "run", str(self.file), "--json", "--master", master]
        settings = short_lived.UNCOMPILED | {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
        for name, value in (settings | {"spark.executor.memory": "512m"}).items():
            command += ["--conf", f"{name}={value}"]
        with started(command, self.folder, os.environ | short_lived.ENVIRONMENT) as process:
            yield process

    def count(self, log: str) -> int:
        """Say how many micro-batches have begun (``offsets``) or are finished (``commits``)."""
        return len(list((self.folder / "checkpoint" / log).glob("[0-9]*")))

    def wait_for(self, process: subprocess.Popen[str], log: str, count: int) -> None:
        self.wait_until(process, lambda: self.count(log) >= count)

    def wait_until(self, process: subprocess.Popen[str], done: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not done():
            ended = process.poll() is not None or time.monotonic() > give_up_at
            assert not ended, f"the pipeline ended: {(self.folder / 'stderr').read_text()[-3_000:]}"
            time.sleep(0.1)  # looking costs what the pipeline needs

    def kill_executor(self, process: subprocess.Popen[str]) -> None:
        """Kill the executor in the middle of a micro-batch, which the pipeline then ends without a restart."""
        self.wait_for(process, "commits", 1)
        self.wait_for(process, "offsets", self.count("commits") + 1)
        time.sleep(self.chance.uniform(0, 0.3))  # at any moment, this is the point
        begun, [executor] = self.count("offsets"), executors_of([process])
        os.kill(executor, signal.SIGKILL)
        self.wait_for(process, "commits", begun + 1)  # and the next, if that one had just ended
        assert executors_of([process]) != [executor]

    def kill_workers(self, process: subprocess.Popen[str]) -> None:
        """Kill what runs Python in tasks, while a micro-batch writes; the pipeline then ends it without a restart."""
        begun, killed = self.wait_for_output(process), workers_of(process)
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        self.wait_for(process, "commits", begun + 1)  # as above
        assert killed
        assert not killed & workers_of(process)

    def pause(self, process: subprocess.Popen[str]) -> None:
        """Stop a driver after an output of a micro-batch and before the commit."""
        while True:
            begun = self.wait_for_output(process)
            os.killpg(process.pid, signal.SIGSTOP)
            if self.count("commits") < begun:
                return
            os.killpg(process.pid, signal.SIGCONT)

    def wait_for_output(self, process: subprocess.Popen[str]) -> int:
        """Wait until a micro-batch has written its rejected messages, before its batches; return its number, from 1."""
        rejected = self.database.topic("rejected")
        self.wait_until(process, lambda: self.count("offsets") > self.count("commits"))
        begun, before = self.count("offsets"), rejected.head
        self.wait_until(process, lambda: rejected.head > before or self.count("commits") >= begun)
        return begun if self.count("commits") < begun else self.wait_for_output(process)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill the Python that the pipeline was started as, and nothing else; wait until all that it started ends."""
        process.kill()
        process.wait()
        give_up_at = time.monotonic() + PATIENCE_S
        while left := processes_of([process]):
            assert time.monotonic() < give_up_at, left
            time.sleep(0.1)  # as above

    def entries(self) -> list[str]:
        """Say which runs have entered the checkpoint."""
        return [path.name for path in (self.folder / "checkpoint" / "waterclock-runs").glob("run=*")]

    def finish(self, process: subprocess.Popen[str]) -> None:
        """Wait until all closed batches have landed, stop, and check that every output has its rows once."""
        closed = self.close_windows()
        self.wait_until(process, lambda: len(landed(self.database)) >= len(closed))
        summary = self.stop(process, signal.SIGINT)
        assert summary["lag"] == 0
        self.check(closed)

    def finish_here(self, spark: SparkSession) -> dict[str, bytes]:
        """Let this process's Spark take over as the driver, check that every output has its rows once, return them."""
        closed = self.close_windows()
        pipeline = read(self.file)
        rest_at_once = replace(pipeline, source=replace(pipeline.source, max_messages_per_trigger=10_000))
        [progress] = run_pipelines(spark, [rest_at_once], once=True)
        assert progress.lag == 0
        self.check(closed)
        return closed

    def close_windows(self) -> dict[str, bytes]:
        """Append what closes every window of before, and return the batches."""
        end = self._now + 3_600 * 1_000 * MS
        self.topic.append([wc.Message(source, "x", end, publish_time=end, receive_time=end) for source in "abc"])
        batches, _ = expected(self.database)
        return {name: payload for name, payload in batches.items() if int(name.partition("@")[2]) < end}

    def check(self, closed: dict[str, bytes]) -> None:
        assert landed(self.database) == closed
        rows = pq.read_table(self.folder / "batches", columns=["id", "payload"]).to_pylist()
        assert len(rows) == len(closed)
        assert {row["id"]: row["payload"] for row in rows} == closed
        _, rejected = expected(self.database)
        assert len(rejected) > 0
        reasons = [(message.headers or {})[REASON_HEADER] for message in self.database.topic("rejected").read()]
        assert sorted(reasons) == sorted(rejection.reason for rejection in rejected)

    def stop(self, process: subprocess.Popen[str], number: signal.Signals) -> dict[str, int]:
        """Ask it to stop; give what it says last."""
        process.send_signal(number)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (self.folder / "stderr").read_text()[-3_000:]
        assert self.count("commits") == self.count("offsets"), "what was begun is finished"
        return json.loads(said)


def workers_of(process: subprocess.Popen[str]) -> set[int]:
    """Find the processes with which those end that run Python in the tasks of a driver."""
    return {
        number
        for number, words in processes_of([process]).items()
        if words.endswith(b"worker_daemon\0pyspark.worker\0")
    }


def take_over(press: Press, first: subprocess.Popen[str], second: subprocess.Popen[str], moment: str) -> None:
    """Check that a driver that was stopped in its first micro-batch gives way to a second one."""
    [entry] = press.entries()
    press.wait_until(second, lambda: press.entries() not in ([entry], []))
    if moment == "committed":
        press.wait_for(second, "commits", 1)
    resume_overtaken(press, first)


def resume_overtaken(press: Press, first: subprocess.Popen[str]) -> None:
    os.killpg(first.pid, signal.SIGCONT)
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 1
    assert "another run has taken over the checkpoint" in (press.folder / "stderr").read_text()


def test_a_pipeline_that_loses_its_workers_and_is_taken_over_in_a_micro_batch_writes_everything_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    press = Press(tmp_path)
    press.append(entries=30)
    with press.running("local[1,4]") as first:  # a task is tried four times, as on a cluster
        press.kill_workers(first)
        press.pause(first)
        closed = press.finish_here(spark)
        resume_overtaken(press, first)
    press.check(closed)


@pytest.mark.slow  # a driver costs 30 s of processor time, an executor 15 s
def test_a_pipeline_that_loses_an_executor_is_taken_over_and_then_killed_writes_everything_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    press = Press(tmp_path)
    press.append(entries=30)
    with press.running("local-cluster[1,1,1024]") as first:
        press.kill_executor(first)
        os.killpg(first.pid, signal.SIGSTOP)  # slow enough for the second to start, on any machine
        with press.running() as second:
            take_over(press, first, second, "entered")
            time.sleep(press.chance.uniform(0, 1))  # as above
            press.kill(second)
    press.finish_here(spark)


@pytest.mark.slow
def test_a_pipeline_that_is_killed_or_stopped_continues_and_writes_everything_once(tmp_path: Path) -> None:
    press = Press(tmp_path)
    for kill in range(5):
        press.append(entries=12)
        with press.running() as process:
            # What was begun before a kill comes again under its number.
            press.wait_for(process, "commits" if kill == 1 else "offsets", press.count("offsets") + 1)
            time.sleep(press.chance.uniform(0, 1))  # as above
            if kill == 0:
                press.kill(process)
    press.append(entries=12)
    with press.running() as process:
        press.wait_for(process, "commits", press.count("offsets") + 1)
        summary = press.stop(process, signal.SIGTERM)
    assert summary["micro_batches"] > 0
    with press.running() as process:
        press.finish(process)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["entered", "committed"])
def test_a_second_driver_takes_over_the_micro_batch_that_the_first_has_noted(tmp_path: Path, moment: str) -> None:
    press = Press(tmp_path)
    press.append(entries=12)
    with press.running() as first:
        press.wait_for(first, "offsets", 1)
        os.killpg(first.pid, signal.SIGSTOP)  # slow enough for the second to start, on any machine
        with press.running() as second:
            take_over(press, first, second, moment)
            press.finish(second)
