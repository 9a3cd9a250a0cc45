"""What pipelines say: their progress as lines, as JSON and to Prometheus, and the cause of an error in a line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.status import SparkJobInfo, SparkStageInfo
from tests.spark.pipeline.pipeline_files import SECOND, START, read, write
from tests.support.moments import ReadFrom

import waterclock as wc
from waterclock._support import moments
from waterclock.monitoring.process_reports import read_reports
from waterclock.spark.pipeline import failures, progress, rules
from waterclock.spark.pipeline.definition import Pipeline
from waterclock.spark.pipeline.failures import PipelineError, in_a_line, reason
from waterclock.spark.pipeline.preflight import check_places
from waterclock.spark.pipeline.progress import Progress, tasks_of
from waterclock.spark.pipeline.reporting import EVERY_S, FIRST_EVERY_S, Reporter

STATE = {"open_batches": 7, "state_rows": 5, "state_bytes": 4096, "state_partitions": 2, "state_buckets": 8}


def some_progress() -> Progress:
    some = Progress("press", 4, 1_500, rate=250.0, lag=1, position="0:1:0", phases={"look": 3, "all": 120}, **STATE)
    some.count({"batches": 12, "outside": 4, "late": 3, "future": None, "duplicate": None, "replaced": 0})
    return some


@pytest.mark.parametrize("as_json", [False, True])
def test_a_pipeline_without_a_terminal_says_every_half_minute_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    now = 0
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database, moments.replaced(ReadFrom(lambda: now)):
        topic = database.create_topic("telemetry")
        for n in range(2):
            topic.append([wc.Message("a", "s", START, publish_time=START, receive_time=START + n * SECOND)])
        reporter = Reporter([read(write(tmp_path))], as_json=as_json, quiet=False)
        for seconds in (1, EVERY_S - 1, EVERY_S, EVERY_S + 1, 2 * EVERY_S):
            now = round(seconds * SECOND)
            reporter.tell([some_progress()])
    plan, *lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    if not as_json:
        assert plan == "press: its state is in 2 partitions and 8 buckets of sources"
        assert re.fullmatch(
            r"press: 1,500 messages, 250/s, 1 behind \([\d,.]+ s\); 12 batches, 7 open; 3 rejected \(3 late\);"
            r" 4 outside their windows; state 5 rows, 4,096 bytes; micro-batch look 3 ms, all 120 ms",
            lines[0],
        )
        return
    assert json.loads(plan)["event"] == "plan"
    said = json.loads(lines[0])
    assert (said["event"], said["pipeline"], said["messages"], said["lag_messages"]) == ("progress", "press", 1_500, 1)
    assert (said["outside"], said["rejected"]) == (4, {"late": 3, "future": 0, "duplicate": 0, "replaced": 0})
    assert said["lag_seconds"] > 0
    assert said["micro_batch_ms"] == {"look": 3, "all": 120}


def test_the_metrics_of_a_pipeline_are_exported(tmp_path: Path) -> None:
    reporter = Reporter([read(write(tmp_path))], as_json=False, quiet=True)
    with reporter.shown():
        reporter.tell([some_progress()])
        registry = CollectorRegistry()
        registry.register(reporter.metrics)
        lines = generate_latest(registry).decode().splitlines()
    assert 'waterclock_pipeline_messages_total{pipeline="press"} 1500.0' in lines
    assert 'waterclock_pipeline_outside_total{pipeline="press"} 4.0' in lines
    assert 'waterclock_pipeline_rejected_total{pipeline="press",reason="late"} 3.0' in lines
    assert 'waterclock_pipeline_micro_batch_seconds{phase="all",pipeline="press"} 0.12' in lines
    assert 'waterclock_pipeline_lag_messages{pipeline="press"} 1.0' in lines


def test_a_pipeline_writes_its_progress_for_the_pages(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("telemetry")
        for _ in range(2):
            reporter = Reporter([read(write(tmp_path))], as_json=False, quiet=True)
            with reporter.shown():
                reporter.tell([some_progress()])
                reporter.end([some_progress()])
        with database.backend.snapshot() as connection:
            (report,) = read_reports(connection, ("pipeline",), 10)
    facts = report["facts"]
    assert (report["name"], report["starts"], facts["ended"]) == ("press", 2, True)
    assert (facts["rejected"]["late"], facts["open_batches"], facts["lag_messages"]) == (3, 7, 1)
    assert "window = " in facts["rule"]


TRACE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
{error}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Caused by: java.lang.IllegalStateException: more
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRACE.format(error="waterclock.errors.NotFoundError: ledger 3 is gone"), "ledger 3 is gone"),
        (
            TRACE.format(error="waterclock.topics.store.ledger_files.LostFileError: its file is gone"),
            "its file is gone",
        ),
        (
            "Failed to rename temp file /a/state/0/_metadata/v2/.0.tmp to /a/state/0/_metadata/v2/0 as destination"
            " already exists",
            "another pipeline seems to run on the same",
        ),
        (
            "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 0.",
            "another pipeline seems to run on the same",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: Multiple streaming queries are concurrently using /a.",
            "another pipeline seems to run on the same",
        ),
        (TRACE.format(error="waterclock.spark.pipeline.failures.PipelineError: no disk"), "no disk"),
        (TRACE.format(error="ZeroDivisionError: division by zero"), "ZeroDivisionError: division by zero"),
        (
            TRACE.format(
                error="ImportError: cannot use the format waterclock: No module named 'waterclock' in /p on a"
            ),
            "cannot use the format waterclock: No module named 'waterclock' in /p on a",
        ),
        (TRACE.format(error="ModuleNotFoundError: No module named 'waterclock'"), "a Python worker of Spark cannot"),
        (
            "An error occurred while calling o61.text.\n: java.lang.RuntimeException: java.lang.ClassNotFoundException:"
            " Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n\tat org.apache.x",
            "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found; Spark lacks the library of that filesystem",
        ),
        (
            "[STREAM_FAILED] Query terminated\nCaused by: java.net.UnknownHostException: nowhere",
            "[STREAM_FAILED] Query terminated (UnknownHostException: nowhere)",
        ),
        (
            "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided schema does not match\nmore",
            "Provided schema does not match; the checkpoint was written by another version or another pipeline: start",
        ),
        (
            "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] No\nCaused by: java.io.IOException: No space left on device",
            "(IOException: No space left on device); free some space, and start the pipeline again",
        ),
        (
            "An error occurred while calling o1.create.\n: java.io.IOException: Mkdirs failed to create file:/c/run=1",
            "IOException: Mkdirs failed to create file:/c/run=1; the pipeline must be able to write to its checkpoint",
        ),
        (
            TRACE.format(error="JSONDecodeError: Expecting value: line 1"),
            "a file of the checkpoint seems to be corrupt or missing: restore",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: Unexpected end-of-input in field name",
            "Unexpected end-of-input in field name; a file of the checkpoint seems to be corrupt or missing: restore",
        ),
        (
            "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart",
            "Cannot restart; a file of the checkpoint seems to be corrupt or missing: restore",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception:  SQLSTATE: XXKST",
            "one of Spark's processes ended",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Broken pipe SQLSTATE: XXKST",
            "Broken pipe SQLSTATE: XXKST; one of Spark's processes ended",
        ),
        (
            "[TASK_WRITE_FAILED] Task failed\n\tat x\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat x",
            "(OutOfMemoryError: Java heap space); raise spark.driver.memory",
        ),
        ("jdbc:postgresql://user:secret@host/db\n\tat x", "jdbc:postgresql://user:***@host/db"),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "its master was unreachable",
        ),
        ("", "Spark failed and gave no reason"),
    ],
)
def test_the_cause_of_an_error_of_spark_is_said_in_a_line(text: str, says: str) -> None:
    found = reason(text)
    assert says in found
    assert "\n" not in found
    assert "secret" not in found


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("gone"), EOFError()]
)
def test_a_java_process_that_has_ended_is_named(error: Exception) -> None:
    with pytest.raises(PipelineError, match="Spark's Java process ended"), in_a_line():
        raise error
    with pytest.raises(PipelineError, match=r"^broken$"), in_a_line():
        raise PySparkException("broken\n\tat x")


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query terminated\nCaused by: Job 3 cancelled because SparkContext was shut down",
        '[STREAM_FAILED] Cannot invoke "org.apache.spark.scheduler.DAGScheduler.cleanupQueryJobs(String)": it is null',
    ],
)
def test_an_error_of_a_context_that_java_stopped_as_it_ended_names_the_memory(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as java:
        monkeypatch.setattr(failures.SparkContext, "_gateway", SimpleNamespace(proc=java))
        with pytest.raises(PipelineError, match=r"ran out of memory\. Raise spark\.driver\.memory"), in_a_line():
            raise PySparkException(text)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as java:
        monkeypatch.setattr(failures.SparkContext, "_gateway", SimpleNamespace(proc=java))
        monkeypatch.setattr(failures, "_JAVA_ENDS_WITHIN_S", 0)
        with pytest.raises(PipelineError, match="STREAM_FAILED"), in_a_line():
            raise PySparkException(text)


def test_lag_counts_from_when_a_message_was_appended_also_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = START
    with wc.connect(f"sqlite:///{tmp_path}/f.db", clock=lambda: now) as database:
        topic = database.create_topic("telemetry")
        old = START - 147 * 86_400 * SECOND
        topic.append([wc.Message("a", "s", old, publish_time=old, receive_time=old)])
        topic.append([wc.Message("a", "s", old, publish_time=START + 999 * SECOND, receive_time=START + 5 * SECOND)])
    source = read(write(tmp_path)).source
    imported, live = (Progress("press", lag=1, position=position) for position in ("0:0:0", "0:1:0"))
    later = START + 13 * SECOND
    monkeypatch.setattr(progress, "connect", lambda url, ledgers: wc.connect(url, ledgers, clock=lambda: later))
    assert (imported.lag_seconds(source), live.lag_seconds(source)) == (13, 8)


def test_a_pipeline_says_at_once_that_it_starts_and_reports_its_first_micro_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("telemetry")
    with moments.replaced(ReadFrom(lambda: now)):
        reporter = Reporter([read(write(tmp_path))], as_json=False, quiet=False)
        with reporter.shown():
            assert capsys.readouterr().err == "press: starting Spark …\n"
        now = round(EVERY_S * SECOND)
        reporter.tell([Progress("press")])
        assert capsys.readouterr().err == "press: no micro-batch has ended yet\n"
        reporter.tell([Progress("press", micro_batches=1, messages=70, rate=7.0, lag=0)])
        assert capsys.readouterr().err.startswith("press: 70 messages, 7/s, 0 behind")
        reporter.tell([Progress("press", micro_batches=2, messages=140, rate=7.0, lag=0)])
        assert capsys.readouterr().err == ""


def test_a_long_first_micro_batch_is_reported_by_its_tasks_every_ten_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0
    with moments.replaced(ReadFrom(lambda: now)):
        reporter = Reporter([read(write(tmp_path))], as_json=False, quiet=False)
        for tenths in range(31):
            now = round(tenths * FIRST_EVERY_S / 10 * SECOND)
            reporter.tell([Progress("press", tasks=(tenths, 64))])
        assert capsys.readouterr().err.splitlines() == [
            f"press: first micro-batch: {done} of 64 tasks done" for done in (10, 20, 30)
        ]
        assert FIRST_EVERY_S <= 10
        for tenths in range(31, 71):
            now = round(tenths * FIRST_EVERY_S / 10 * SECOND)
            reporter.tell([Progress("press", reported="2026-07-01T10:00:00Z")])
        assert (
            capsys.readouterr().err.splitlines() == ["press: no micro-batch has ended yet"] * 2
        )  # it waits for messages


class Tracker:
    """What Spark knows of two jobs of a run, of which the first has ended and skipped a stage."""

    JOBS = MappingProxyType({1: SparkJobInfo(1, [1, 2], "SUCCEEDED"), 2: SparkJobInfo(2, [2, 3, 4, 5], "RUNNING")})
    TASKS = MappingProxyType({1: (0, 8), 2: (4, 4), 3: (1, 6), 4: (0, 2)})  # it does not know stage 5 yet

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return [1, 2, 3] if group == "run" else []

    def getJobInfo(self, job: int) -> SparkJobInfo | None:  # noqa: N802
        return self.JOBS.get(job)

    def getStageInfo(self, stage: int) -> SparkStageInfo | None:  # noqa: N802
        if stage not in self.TASKS:
            return None
        done, known = self.TASKS[stage]
        return SparkStageInfo(stage, 0, "stage", known, 0, done, 0)


def test_tasks_of_skipped_and_unknown_stages_are_not_counted() -> None:
    assert tasks_of(Tracker(), "run") == (5, 12)  # type: ignore[arg-type]
    assert tasks_of(Tracker(), "another") is None  # type: ignore[arg-type]


def test_a_missing_table_is_named_with_the_command_that_creates_it(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("telemetry")
        with pytest.raises(wc.NotFoundError, match=r"table add batches --id-type text --groups sequenced'"):
            check_places(read(write(tmp_path)))


def test_a_refused_rule_names_options_that_the_checkpoint_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, no_spark = read(write(tmp_path)), cast("Any", None)
    written = rules.fixed_options(pipeline)
    monkeypatch.setattr(rules, "rule_in", lambda *_: written)
    del written["boundaries"]  # its default is None: the rule is the same
    rules.refuse_changed_rule(no_spark, pipeline)
    del written["max_lead"]
    with pytest.raises(
        wc.InvalidArgumentError, match=r"was written with no max_lead, and the file has max_lead = 0s\. "
    ):
        rules.refuse_changed_rule(no_spark, pipeline)


BEGUN = """[source]
url = "sqlite:///f.db"
topic = "telemetry"
start = {start}
[batching]
by = "rate"
batch_length = "2s"
timeout = {timeout}
gated = {gated}
[[output]]
what = "batches"
table = "batches"
[run]
checkpoint = "checkpoint"
"""
WRITTEN = {"start": '"2026-07-01T10:00:00Z"', "timeout": '"2s"', "gated": '["b", "a"]'}


def begun(tmp_path: Path, **changed: str) -> Pipeline:
    return read(write(tmp_path, BEGUN.format(**WRITTEN | changed)))


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("start", WRITTEN["start"], "2026-07-01T12:00:00+02:00"),
        ("start", '"2h"', '"120min"'),
        ("timeout", WRITTEN["timeout"], '"2000ms"'),
        ("timeout", "inf", '"inf"'),
        ("gated", WRITTEN["gated"], '["a", "b"]'),
    ],
)
def test_another_spelling_of_an_option_is_the_one_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, before: str, after: str
) -> None:
    written = json.dumps(rules.fixed_options(begun(tmp_path, **{key: before})))
    monkeypatch.setattr(rules, "rule_in", lambda *_: json.loads(written))
    rules.refuse_changed_rule(cast("Any", None), begun(tmp_path, **{key: after}))


@pytest.mark.parametrize(
    ("key", "after", "named"),
    [
        ("start", '"latest"', "start = 2026-07-01T10:00:00Z, and the file has start = latest"),
        ("start", '"earliest"', "start = 2026-07-01T10:00:00Z, and the file has start = earliest"),
        ("start", '"2h"', "start = 2026-07-01T10:00:00Z, and the file has start = 2h"),
        ("start", '"3:0:0"', "start = 2026-07-01T10:00:00Z, and the file has start = 3:0:0"),
        ("timeout", '"3s"', "timeout = 2s, and the file has timeout = 3s"),
        ("timeout", "inf", "timeout = 2s, and the file has timeout = inf"),
        ("timeout", '"auto"', "timeout = 2s, and the file has timeout = auto"),
    ],
)
def test_a_changed_option_of_the_stream_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, after: str, named: str
) -> None:
    written = json.dumps(rules.fixed_options(begun(tmp_path)))
    monkeypatch.setattr(rules, "rule_in", lambda *_: json.loads(written))
    with pytest.raises(wc.InvalidArgumentError, match=re.escape(f"its checkpoint was written with {named}. ")):
        rules.refuse_changed_rule(cast("Any", None), begun(tmp_path, **{key: after}))
