"""Pipelines as files: mistakes are reported with key and line; replays write what one process gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.pipeline_files import PIPELINE, SECOND, START, expected, landed, write

import waterclock as wc
from waterclock.cli.app import run
from waterclock.spark.pipeline.file import AVAILABLE_NOW, PipelineFile
from waterclock.spark.pipeline.running import Progress, replay_pipeline, run_pipeline
from waterclock.spark.writing.message_writer import REASON_HEADER


@pytest.fixture
def database(tmp_path: Path) -> Iterator[wc.Database]:
    """A topic with a sealed ledger and an open one; one message is late."""
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        sent = [
            wc.Message(
                source,
                f"s{n % 3}",
                START + n * SECOND // 10,
                f"{source} {n}".encode(),
                publish_time=START + n * SECOND // 10 + 1,
                receive_time=START + n * SECOND // 10 + 5,
            )
            for n in range(60)
            for source in ("a", "b")
        ]
        sent.append(
            wc.Message("a", "s0", START, b"late", publish_time=START + 7 * SECOND, receive_time=START + 9 * SECOND)
        )
        topic.append(sent[:70])
        topic.roll()
        topic.seal()
        topic.append(sent[70:])
        database.create_table("batches", id_type="text", groups="sequenced")
        database.create_topic("rejected")
        yield database


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('window = "500ms"', 'windw = "500ms"', "line 9: batching.windw is not known; there are by, max_delay"),
        ('window = "500ms"', 'by = "chance"', "line 9: batching.by: 'chance' is none; there are event_time and rate"),
        ('window = "500ms"', 'by = "rate"', "line 10: batching.max_delay is not known; there are batch_length, by"),
        ('window = "500ms"', 'window = "500 parsecs"', "line 9: batching.window = '500 parsecs': window: "),
        ('max_delay = "400ms"', 'on_conflict = "merge"', "line 10: batching.on_conflict = 'merge': on_conflict: "),
        ('max_delay = "400ms"', "max_delay = 400", "line 10: batching.max_delay: 400 must be a text in quotes"),
        ('topic = "telemetry"\n', "", "line 2: source.topic is missing"),
        ('start = "2026-07-01T10:00:00Z"', 'start = "noon"', "line 5: source.start = 'noon': start: "),
        ('start = "2026-07-01T10:00:00Z"', 'start = "1:2"', "line 5: source.start = '1:2': position: '1:2'"),
        ("_trigger = 70", "_trigger = 0", "line 6: source.max_messages_per_trigger: 0 is no count"),
        ('table = "batches"', 'topic = "batches"', "line 14: an output of batches needs one of table and parquet"),
        ('topic = "rejected"', "", "line 20: an output of rejected needs one of topic and parquet"),
        ('what = "rejected"', 'what = "dejected"', "line 21: output.what: 'dejected' is none; there are batches"),
        ('trigger = "5s"', 'trigger = "often"', "line 26: run.trigger = 'often': trigger: "),
        ("[run]", "[runs]", "the table [run] is missing"),
        ("# The press shop.", "[extra]", "line 1: extra is not known; there are source, batching, output, run"),
        ("[batching]", "[batching", "this is no TOML: "),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_key_and_its_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert PIPELINE.count(old) == 1 or old == 'table = "batches"'
    path = write(tmp_path, PIPELINE.replace(old, new, 1))
    with pytest.raises(wc.InvalidArgumentError) as refused:
        PipelineFile.read(path)
    assert str(refused.value).startswith(str(path))
    assert says in str(refused.value)


def test_a_file_that_is_right_is_read(tmp_path: Path) -> None:
    file = PipelineFile.read(write(tmp_path))
    assert (file.name, file.trigger, file.source.max_messages_per_trigger) == ("press", "5s", 70)
    assert file.source.start == {"startingTimestamp": "2026-07-01T10:00:00Z"}
    assert [(output.what, output.kind) for output in file.outputs] == [
        ("batches", "table"),
        ("batches", "parquet"),
        ("rejected", "topic"),
    ]
    by_rate = PIPELINE.replace('window = "500ms"', 'by = "rate"').replace("max_delay", "batch_length")
    file = PipelineFile.read(write(tmp_path, by_rate))
    assert (file.by, file.rule) == ("rate", {"batch_length": "400ms"})
    least = PIPELINE.replace('trigger = "5s"', "").replace('start = "2026-07-01T10:00:00Z"', 'start = "3:0:1"')
    file = PipelineFile.read(write(tmp_path, least))
    assert (file.trigger, file.source.start) == (AVAILABLE_NOW, {"startingPosition": "3:0:1"})
    with pytest.raises(wc.NotFoundError, match="there is no file"):
        PipelineFile.read(tmp_path / "other.toml")


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_replay_writes_the_batches_of_one_process_to_every_output_and_again_changes_nothing(
    spark: SparkSession, database: wc.Database, tmp_path: Path, times: int
) -> None:
    file = PipelineFile.read(write(tmp_path))
    batches, rejected = expected(database)
    for _ in range(times):
        progress = replay_pipeline(spark, file, START, START + 60 * SECOND)
        assert (progress.messages, progress.rejected) == (121, 1)
    assert landed(database) == batches
    rows = spark.read.parquet(str(tmp_path / "batches")).collect()
    assert {row.id: bytes(row.payload) for row in rows} == batches
    assert len(rows) == len(batches)
    (refused,) = database.topic("rejected").read()
    assert (refused.payload, refused.headers[REASON_HEADER]) == (b"late", rejected[0].reason)


def test_a_pipeline_whose_places_are_not_there_is_refused(database: wc.Database, tmp_path: Path) -> None:
    file = PipelineFile.read(write(tmp_path, PIPELINE.replace('topic = "rejected"', 'topic = "nowhere"')))
    with pytest.raises(wc.NotFoundError, match="there is no topic 'nowhere'"):
        file.check_places()


def test_a_stream_writes_the_batches_of_one_process_however_often_it_is_killed_and_started(
    spark: SparkSession, database: wc.Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    assert run(["pipeline", "run", str(path), "--once", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["messages"], summary["lag"], summary["rejected"]) == (121, 0, 1)
    assert summary["micro_batches"] > 1
    # Killed after it wrote and before it said so: the last micro-batches run again.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda commit: int(commit.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    # So much later that every window of before has closed.
    end = START + 100 * SECOND
    database.topic("telemetry").append([wc.Message(s, "s0", end, publish_time=end, receive_time=end) for s in "ab"])
    latest: list[Progress] = []
    run_pipeline(spark, PipelineFile.read(path), tell=latest.append, stopping=lambda: latest[-1].lag == 0)
    assert not spark.streams.active
    batches, rejected = expected(database)
    closed = {name: payload for name, payload in batches.items() if int(name.partition("@")[2]) < end}
    assert landed(database) == closed
    rows = spark.read.parquet(str(tmp_path / "batches")).collect()
    assert {row.id: bytes(row.payload) for row in rows} == closed
    assert len(rows) == len(closed)
    assert [m.headers[REASON_HEADER] for m in database.topic("rejected").read()] == [r.reason for r in rejected]


@pytest.mark.parametrize("rule", ["event_time", "rate"])
def test_a_pipeline_that_is_started_before_the_first_message_waits_for_it(
    spark: SparkSession, tmp_path: Path, rule: str
) -> None:
    text = PIPELINE.replace('trigger = "5s"', 'trigger = "10ms"').replace('start = "2026-07-01T10:00:00Z"\n', "")
    if rule == "rate":
        text = text.replace('window = "500ms"', 'by = "rate"').replace('max_delay = "400ms"', 'batch_length = "1s"')
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        database.create_table("batches", id_type="text")
        database.create_topic("rejected")
        file = PipelineFile.read(write(tmp_path, text))
        assert run_pipeline(spark, file, once=True).messages == 0
        calls: list[int] = []

        def tell(progress: Progress) -> None:
            calls.append(progress.messages)
            if len(calls) == 2:
                topic.append([wc.Message("a", "s0", START + n * SECOND, receive_time=START) for n in range(3)])

        progress = run_pipeline(spark, file, tell=tell, stopping=lambda: calls[-1] > 0)
        assert (progress.messages, progress.lag) == (3, 0)


def test_a_stream_that_fails_says_why_in_a_line(spark: SparkSession, database: wc.Database, tmp_path: Path) -> None:
    path = write(tmp_path, PIPELINE.replace('start = "2026-07-01T10:00:00Z"', 'start = "0:0:0"'))
    database.topic("telemetry").truncate(wc.Position(1, 0, 0))
    with pytest.raises(wc.WaterclockError, match="0:0:0 of topic 'telemetry' has expired") as ended:
        run_pipeline(spark, PipelineFile.read(path), once=True)
    assert "\n" not in str(ended.value)


def test_a_pipeline_batches_by_rate_too(spark: SparkSession, database: wc.Database, tmp_path: Path) -> None:
    by_rate = PIPELINE.replace('window = "500ms"', 'by = "rate"').replace('max_delay = "400ms"', 'batch_length = "1s"')
    progress = replay_pipeline(spark, PipelineFile.read(write(tmp_path, by_rate)), START, START + 60 * SECOND)
    assert (progress.messages, progress.rejected) == (121, 0)
    assert sum(len(wc.Batch.from_bytes(payload).messages) for payload in landed(database).values()) == 121
