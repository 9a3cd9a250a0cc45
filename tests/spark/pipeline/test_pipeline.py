"""Pipelines as files: mistakes are reported with key and line; replays write what one process gives."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from tests.spark.pipeline.pipeline_files import PIPELINE, SECOND, START, expected, landed, read, write

import waterclock as wc
from waterclock.batching.event_time import replay
from waterclock.cli.app import run
from waterclock.spark import batches_of, register
from waterclock.spark.pace import BYTES_AT_ONCE
from waterclock.spark.pipeline import outputs, replaying, running
from waterclock.spark.pipeline.definition import AVAILABLE_NOW
from waterclock.spark.pipeline.file import PipelineFile
from waterclock.spark.pipeline.outputs import refuse_written
from waterclock.spark.pipeline.preflight import check_places
from waterclock.spark.pipeline.progress import Progress
from waterclock.spark.pipeline.replaying import replayed
from waterclock.spark.pipeline.running import replay_pipeline, run_pipeline, run_pipelines
from waterclock.spark.runtime.filesystem import move_into_place
from waterclock.spark.runtime.partitions import PARTITIONS, chosen_partitions, parts_in
from waterclock.spark.writing.message_writer import REASON_HEADER
from waterclock.time import MAX_NS


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
        ('window = "500ms"', 'windw = "500ms"', "line 9: no key named batching.windw; choose from boundaries, by, gap"),
        ('window = "500ms"', 'by = "chance"', "line 9: batching.by must be one of event_time, rate, id, got 'chance'"),
        (
            'window = "500ms"',
            'by = "rate"',
            "line 10: no key named batching.max_delay; choose from batch_length, boundaries",
        ),
        (
            'window = "500ms"\nmax_delay = "400ms"',
            'by = "rate"\nbatch_length = "adaptive"\nlongest = "31d"',
            "line 10: batching.batch_length = 'adaptive': batch_length must be at most 30d, got 2678400000000000",
        ),
        (
            'window = "500ms"\nmax_delay = "400ms"',
            'by = "rate"\nlongest = "2s"',
            "line 10: batching.longest needs batch_length = 'adaptive', got '1s'",
        ),
        (
            'window = "500ms"',
            'window = "500 parsecs"',
            "line 9: batching.window = '500 parsecs': window must be a duration",
        ),
        (
            'max_delay = "400ms"',
            'on_conflict = "merge"',
            "line 10: batching.on_conflict = 'merge': on_conflict must be one of",
        ),
        (
            'window = "500ms"',
            'by = "id"\nid_of = "pulse"\nstreams = []',
            "line 11: batching.streams = []: streams must name all streams of the source",
        ),
        ('max_delay = "400ms"', "max_delay = 400", "line 10: batching.max_delay must be a string, got 400"),
        ('max_delay = "400ms"', "boundaries = [1]", "line 10: batching.boundaries must hold non-empty strings"),
        ('topic = "telemetry"\n', "", "line 2: source.topic is missing"),
        ('start = "2026-07-01T10:00:00Z"', 'start = "noon"', "line 5: source.start = 'noon': start must be ISO 8601"),
        (
            'start = "2026-07-01T10:00:00Z"',
            'start = "1:2"',
            "line 5: source.start = '1:2': position must be ledger:entry:index",
        ),
        ("_trigger = 70", "_trigger = 0", "line 6: source.max_messages_per_trigger must be an integer from 1"),
        (
            'table = "batches"',
            'topic = "batches"',
            "line 14: an output of batches must have exactly one target: table or parquet",
        ),
        ('topic = "rejected"', "", "line 20: an output of rejected must have exactly one target: topic or parquet"),
        (
            'what = "rejected"',
            'what = "dejected"',
            "line 21: output.what must be one of batches, rejected, got 'dejected'",
        ),
        ('trigger = "5s"', 'trigger = "often"', "line 26: run.trigger = 'often': trigger must be a duration"),
        ("[run]", "[runs]", "the table [run] is missing"),
        ("# The press shop.", "[extra]", "line 1: no key named extra; choose from source, batching, output, run"),
        ("[batching]", "[batching", "is not valid TOML: "),
        (
            'topic = "telemetry"',
            'topic = "${NO_SUCH}"',
            "line 4: source.topic: environment variable 'NO_SUCH' is not set",
        ),
        ('topic = "telemetry"', 'topic = "$NO_SUCH"', "line 4: source.topic: $ must start a variable"),
        ('topic = "telemetry"', 'topic = "${NO_SUCH"', "line 4: source.topic: $ must start a variable"),
        ('start = "2026-07-01T10:00:00Z"', "start = 2026-07-01T10:00:00", "line 5: source.start = datetime.datetime("),
        (
            'start = "2026-07-01T10:00:00Z"',
            'start = "2 h and some"',
            "line 5: source.start = '2 h and some': start must be a duration",
        ),
        ('start = "2026-07-01T10:00:00Z"', "start = true", "line 5: source.start must be a time, how long ago"),
        ('topic = "rejected"', 'topic = "rejected"\nledgers = "x"', "line 23: output.ledgers needs output.url"),
        (
            'topic = "rejected"',
            'parquet = "{folder}/x/../batches/"',
            "line 22: output.parquet must not overlap the folder",
        ),
        (
            'topic = "rejected"',
            'parquet = "file://{folder}/batches/late"',
            "line 22: output.parquet must not overlap the folder",
        ),
        (
            'topic = "rejected"',
            'parquet = "{folder}/./checkpoint/late"',
            "line 22: output.parquet must not overlap the folder",
        ),
        (
            'topic = "rejected"',
            'parquet = "file:{folder}/b%61tches"',
            "line 22: output.parquet must not overlap the folder",
        ),
        ('url = "sqlite:///{folder}/f.db"', 'url = "nope"', "line 3: source.url = 'nope': url must be a database URL"),
        ('topic = "telemetry"', 'topic = ""', "line 4: source.topic must be a non-empty string"),
        (
            'topic = "telemetry"',
            'topic = " t"',
            "line 4: source.topic = ' t': name must not begin or end with a space, got ' t'",
        ),
        (
            'topic = "rejected"',
            'topic = "t "',
            "line 22: output.topic = 't ': name must not begin or end with a space, got 't '",
        ),
        (
            'checkpoint = "{folder}/checkpoint"',
            'checkpoint = "\\u0000"',
            "line 25: run.checkpoint must be a non-empty string without NUL characters, got '\\x00'",
        ),
        (
            'checkpoint = "{folder}/checkpoint"',
            'checkpoint = "/line[1]"',
            "line 25: run.checkpoint must not contain any of {}[]*?\\, which Spark reads as a pattern, got '/line[1]'",
        ),
        (
            'parquet = "{folder}/batches"',
            'parquet = "/all*"',
            "line 18: output.parquet must not contain any of {}[]*?\\, which Spark reads as a pattern, got '/all*'",
        ),
        ('trigger = "5s"', f"state_partitions = {10**30}", "line 26: run.state_partitions must be an integer from 1"),
        (
            'table = "batches"',
            'table = "batches"\nname = " x"',
            "line 15: output.name = ' x': name must not begin or end with a space",
        ),
        (
            'what = "rejected"\ntopic = "rejected"',
            'what = "batches"\ntable = "batches"',
            "output names must be unique, got 'batches' twice",
        ),
        ('trigger = "5s"', "state_partitions = 0", "line 26: run.state_partitions must be an integer from 1"),
        (
            'trigger = "5s"',
            "state_buckets = 961",
            "line 26: run.state_buckets = 961: buckets must be an integer",
        ),
        (
            "# The press shop.",
            "[spark]\ndriver = [1]",
            "line 2: spark.driver must be a string, a number or a boolean, got [1]",
        ),
        ("# The press shop.", "pipeline = 3", "line 1: pipeline must be an array of tables"),
        ("# The press shop.", "pipeline = []", "line 1: pipeline must be an array of tables"),
        ("# The press shop.", "[[pipeline]]", "no table named source"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_key_and_its_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert PIPELINE.count(old) == 1 or old == 'table = "batches"'
    path = write(tmp_path, PIPELINE.replace(old, new, 1))
    with pytest.raises(wc.InvalidArgumentError) as refused:
        read(path)
    assert str(refused.value).startswith(str(path))
    assert says in str(refused.value)


def test_a_file_that_is_right_is_read(tmp_path: Path) -> None:
    file = read(write(tmp_path))
    assert (file.name, file.trigger, file.source.max_messages_per_trigger) == ("press", "5s", 70)
    assert file.source.start == {"startingTimestamp": str(START)}
    assert file.source.losses == {"failOnDataLoss": "true", "onDamage": "raise"}
    assert [(output.what, output.kind) for output in file.outputs] == [
        ("batches", "table"),
        ("batches", "parquet"),
        ("rejected", "topic"),
    ]
    by_rate = PIPELINE.replace('window = "500ms"', 'by = "rate"').replace("max_delay", "batch_length")
    file = read(write(tmp_path, by_rate))
    assert (file.by, file.rule) == ("rate", {"batch_length": "400ms"})
    assert file.adaptive is None
    adaptive = by_rate.replace('batch_length = "400ms"', 'batch_length = "adaptive"\nlongest = "3s"')
    file = read(write(tmp_path, adaptive))
    assert file.rule == {"batch_length": "1s"}
    assert file.adaptive is not None
    assert file.adaptive.text == "adaptive from 1s to 3s"
    lossy = PIPELINE.replace("[batching]", 'fail_on_data_loss = false\non_damage = "skip"\n[batching]')
    assert read(write(tmp_path, lossy)).source.losses == {"failOnDataLoss": "false", "onDamage": "skip"}
    least = PIPELINE.replace('trigger = "5s"', "").replace('start = "2026-07-01T10:00:00Z"', 'start = "3:0:1"')
    file = read(write(tmp_path, least))
    assert (file.trigger, file.source.start) == (AVAILABLE_NOW, {"startingPosition": "3:0:1"})
    with pytest.raises(wc.NotFoundError, match=r"no file .* found"):
        read(tmp_path / "other.toml")
    with pytest.raises(wc.InvalidArgumentError, match="is a folder"):
        read(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(wc.InvalidArgumentError, match="must be UTF-8 text"):
        read(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("start", "option"),
    [
        ('"latest"', {"startingPosition": "latest"}),
        ('"earliest"', {}),
        ('"2h"', {"startingTimestamp": "2h"}),
        ('"120min"', {"startingTimestamp": "2h"}),
        ('"03:0:0"', {"startingPosition": "3:0:0"}),
        ("2026-07-01T12:00:00+02:00", {"startingTimestamp": str(START)}),
    ],
)
def test_a_start_is_written_in_any_way_that_names_a_moment(tmp_path: Path, start: str, option: dict[str, str]) -> None:
    assert read(write(tmp_path, PIPELINE.replace('"2026-07-01T10:00:00Z"', start))).source.start == option


def test_values_of_the_environment_are_inserted_and_never_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", "hidden, and no moment")
    path = write(tmp_path, PIPELINE.replace('"telemetry"', '"${WHERE}/$$5"'))
    assert read(path).source.topic == "hidden, and no moment/$5"
    with pytest.raises(wc.InvalidArgumentError) as refused:
        read(write(tmp_path, PIPELINE.replace('"5s"', '"${WHERE}"')))
    assert "line 26: run.trigger = '${WHERE}': trigger must be a duration" in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "secret", ["hunter2", "hunter2'\"x", "hunter2\\x", "hunter2\n", "hunter2" * 40, "x://hunter2@y"]
)
@pytest.mark.parametrize("value", ["telemetry", "500ms", "5s", "rejected", "2026-07-01T10:00:00Z"])
def test_no_error_about_a_file_shows_what_a_variable_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, value: str
) -> None:
    monkeypatch.setenv("SECRET", secret)
    written = PIPELINE.replace(f'"{value}"', '"a${SECRET}"', 1)
    with pytest.raises(wc.InvalidArgumentError, match="line ") as refused:
        read(write(tmp_path, written.replace("[run]", "[run]\nlast = 1")))
    assert "hunter" not in str(refused.value)


def test_several_pipelines_in_a_file_share_its_settings(tmp_path: Path) -> None:
    file = PipelineFile.read(write(tmp_path, SEVERAL))
    assert file.spark == {"spark.driver.memory": "1g", "spark.sql.ansi.enabled": "true"}
    by_time, by_rate = file.pipelines
    assert (by_time.name, by_rate.name) == ("by-time", "by-rate")
    chosen = {"gated": frozenset({"s0"}), "timeout": math.inf, "forget_after": "1h", "clocks": "align"} | {
        "max_disorder": "900ms",
        "boundaries": frozenset({"run"}),
    }
    assert by_rate.rule == chosen
    in_quotes = write(tmp_path, SEVERAL.replace("timeout = inf", 'timeout = "inf"'))
    assert PipelineFile.read(in_quotes).pipelines[1].rule == chosen
    assert [output.url.rpartition("/")[2] for output in by_time.outputs] == ["f.db", "other.db"]
    for old, new, says in (
        ('"by-rate"\n[', '"by-time"\n[', "pipeline names must be unique, got 'by-time' twice"),
        (
            '/by-rate"',
            '/./by-time/"',
            "line 42: run.checkpoint must not overlap the folder of another output or checkpoint",
        ),
        (
            'table = "rates"',
            'parquet = "{folder}/b"\n[[pipeline.output]]\nwhat = "batches"\nparquet = "{folder}/b/c"',
            "line 43: output.parquet must not overlap the folder",
        ),
        ('gated = ["s0"]', "gated = [0]", "line 32: batching.gated must be true, false, or a list of streams, got [0]"),
        ("timeout = inf", "timeout = 2.0", "line 33: batching.timeout = 2.0: timeout must be a string such as '1.5s'"),
        (
            'forget_after = "1h"',
            'forget_after = "0s"',
            "line 34: batching.forget_after = '0s': forget_after must be at least 1ns",
        ),
        (
            'clocks = "align"',
            'clocks = "aligned"',
            "line 35: batching.clocks = 'aligned': clocks must be one of 'as_sent', 'align'",
        ),
        (
            'max_disorder = "900ms"',
            'max_disorder = "4s"',
            "line 36: batching.max_disorder = '4s': max_disorder must be at most 3 batch lengths (3s), got '4s'",
        ),
        ('name = "by-rate"', "", "line 25: pipeline.name is missing"),
        (
            'table = "rates"',
            'table = "batches"\nurl = "sqlite:///{folder}/other.db"',
            "line 40: output.table must differ between pipelines that read the same topic, got 'batches' twice",
        ),
    ):
        with pytest.raises(wc.InvalidArgumentError) as refused:
            PipelineFile.read(write(tmp_path, SEVERAL.replace(old, new)))
        assert says in str(refused.value)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_replay_writes_the_batches_of_one_process_to_every_output_and_again_changes_nothing(
    spark: SparkSession, database: wc.Database, tmp_path: Path, times: int
) -> None:
    file = dataclasses.replace(read(write(tmp_path)), name="p" * 255)  # the longest
    batches, rejected = expected(database)
    # What messages behind a range may still change is left out: it would be there first.
    only_table = dataclasses.replace(file, outputs=file.outputs[:1])
    replay_pipeline(spark, only_table, START, START + 3 * SECOND + SECOND // 20)
    assert 0 < len(batches.keys() - landed(database).keys()) < len(batches)
    parts = spark.conf.get(PARTITIONS)
    for more in range(times):
        spark.conf.set(PARTITIONS, int(str(parts)) + more)  # as on a machine with more cores
        progress = replay_pipeline(spark, file, START, START + 60 * SECOND)
        assert (progress.messages, progress.rejected) == (121, 1)
    spark.conf.set(PARTITIONS, str(parts))
    assert landed(database) == batches
    rows = spark.read.parquet(str(tmp_path / "batches")).collect()
    assert {row.id: bytes(row.payload) for row in rows} == batches
    assert len(rows) == len(batches)
    (refused,) = database.topic("rejected").read()
    assert (refused.payload, refused.headers[REASON_HEADER]) == (b"late", rejected[0].reason)
    run = f"replay-{START}-{START + 60 * SECOND}"
    refuse_written(spark, file, run, 1, lambda: None)
    with pytest.raises(wc.InvalidArgumentError, match="the checkpoint is older than the output"):
        refuse_written(spark, file, run, 0, lambda: None)


def test_many_tasks_put_batches_that_were_written_where_the_files_are_read(
    spark: SparkSession, database: wc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MOST_READING_ALL", 1)
    names = ("spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.adaptive.enabled")
    before = [spark.conf.get(name) for name in names]
    while_written: list[list[str | None]] = []

    def noting(writer: DataFrameWriter) -> None:
        while_written.append([spark.conf.get(name) for name in names])
        save(writer)

    save = DataFrameWriter.save
    monkeypatch.setattr(DataFrameWriter, "save", noting)
    file = read(write(tmp_path))
    only_table = dataclasses.replace(file, outputs=file.outputs[:1])
    replay_pipeline(spark, only_table, START, START + 60 * SECOND)
    assert while_written == [[str(BYTES_AT_ONCE), "false"]]
    assert [spark.conf.get(name) for name in names] == before
    found = landed(database)
    assert found == expected(database)[0]
    table = database.table("batches").context
    with table.backend.snapshot() as connection:
        put = connection.execute(table.rows.select().order_by(table.rows.c.group_id, table.rows.c.seq)).all()
    assert [(row.group_id, row.id) for row in put] == sorted(((row.group_id, row.id) for row in put), key=_start)


def _start(row: tuple[str, str]) -> tuple[str, int]:
    group, name = row
    return group, int(name.rpartition("@")[2])


@pytest.mark.parametrize("by", ["event_time", "rate"])
def test_adjoining_replays_give_each_batch_of_the_topic_once_and_overlapping_ones_the_same(
    spark: SparkSession,
    database: wc.Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    by: str,
) -> None:
    """The windows of the fixture's sources hang on each other from the first to the pause that is added here."""
    monkeypatch.setattr(replay, "WINDOWS_BACK", (2, 4))
    later = [
        wc.Message(source, f"s{n % 3}", START + at, publish_time=START + at, receive_time=START + at + 5)
        for n in range(40)
        for source in ("a", "b")
        for at in [10 * SECOND + n * SECOND // 10]
    ]
    database.topic("telemetry").append(later)
    text = PIPELINE
    if by == "rate":
        text = text.replace('window = "500ms"', 'by = "rate"').replace('max_delay = "400ms"', 'batch_length = "1s"')
    file = read(write(tmp_path, text))
    cuts = [START + int(s * SECOND) for s in (0, 4.05, 10.85, 60)]
    alone = dataclasses.replace(file, outputs=file.outputs[1:2])
    rejected = [replay_pipeline(spark, alone, *ends).rejected for ends in pairwise(cuts)]
    whole = {batch.id: batch.to_bytes() for batch in whole_topic(database, by)}
    written = spark.read.parquet(str(tmp_path / "batches"))
    assert sorted((row.id, bytes(row.payload)) for row in written.collect()) == sorted(whole.items())
    assert rejected == ([0, 1, 0] if by == "event_time" else [0, 0, 0])
    overlapping = dataclasses.replace(alone.outputs[0], target=str(tmp_path / "overlapping"))
    replay_pipeline(spark, dataclasses.replace(file, outputs=(overlapping,)), START + 11 * SECOND, START + 12 * SECOND)
    again = spark.read.parquet(overlapping.target).collect()
    assert again
    assert {row.id: bytes(row.payload) for row in again}.items() <= whole.items()
    assert caplog.text.count("depend on messages more than 4 windows") == (by == "event_time")


def test_a_replay_reads_back_to_the_run_of_a_source_that_was_silent_before_its_range(
    spark: SparkSession, database: wc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "WINDOWS_BACK", (2,))
    monkeypatch.setattr(replay, "_RUNS_BACK", 4)
    begun, later = START + 10 * SECOND, START + 25 * SECOND
    sent = [("run", begun), ("s0", later), ("s0", START + 40 * SECOND)]
    database.topic("telemetry").append(wc.Message("a", stream, at, receive_time=at) for stream, at in sent)
    file = read(write(tmp_path, PIPELINE.replace('max_delay = "400ms"', 'max_delay = "400ms"\nboundaries = ["run"]')))
    register(spark)
    found = batches_of(replayed(spark, file, START + 20 * SECOND, START + 30 * SECOND)).collect()
    assert [(batch["start"], batch["run"]) for batch in found] == [(later, begun)]


def test_a_replay_leaves_the_last_batch_open_while_the_clock_is_set_back(
    spark: SparkSession, database: wc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = START + 20 * SECOND
    database.topic("telemetry").append([wc.Message("a", "s0", last, publish_time=last, receive_time=last)])
    monkeypatch.setattr(replaying, "connect", lambda *place: wc.connect(*place, clock=lambda: START))
    file = read(write(tmp_path, PIPELINE.replace('max_delay = "400ms"', 'max_delay = "400ms"\nmax_skew = "0s"')))
    register(spark)
    found = {batch["id"] for batch in batches_of(replayed(spark, file, START, START + 60 * SECOND)).collect()}
    assert expected(database)[0].keys() - found == {f"a@{last}"}


@pytest.mark.parametrize("by", ["rate", "id"])
def test_a_replay_whose_windows_may_depend_on_deleted_messages_warns(
    spark: SparkSession, database: wc.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    rule = {"rate": 'by = "rate"', "id": 'by = "id"\nid_of = "pulse"'}[by]
    text = PIPELINE.replace('start = "2026-07-01T10:00:00Z"\n', "").replace('window = "500ms"', rule)
    file = read(write(tmp_path, text.replace('max_delay = "400ms"\n', "")))
    register(spark)
    replayed(spark, file, START, START + SECOND)
    assert "were deleted" not in caplog.text
    topic = database.topic("telemetry")
    assert topic.truncate(topic.head) == len(["sealed", "open"])
    replayed(spark, file, START, START + SECOND)
    assert "Windows may depend on these messages, so a live stream may have batched differently" in caplog.text


def test_a_folder_takes_the_place_of_another_and_lies_never_within_it(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    move_into_place(spark, str(tmp_path / "new"), str(tmp_path / "old"))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["old", "old/new"]


def whole_topic(database: wc.Database, by: str) -> list[wc.Batch]:
    messages = list(database.topic("telemetry").read())
    if by == "event_time":
        batcher = wc.BySource(lambda: wc.EventTimeBatcher(window="500ms", max_delay="400ms"))
        return [b for m in messages for b in batcher.add(m)] + batcher.advance(MAX_NS)
    batcher = wc.BySource(lambda: wc.RateAwareBatcher("1s"))
    entries = groupby(messages, key=lambda m: m.position and m.position[:2])
    return [b for _, entry in entries for b in batcher.add(list(entry))] + batcher.flush()


def test_a_pipeline_whose_places_are_not_there_is_refused(database: wc.Database, tmp_path: Path) -> None:
    file = read(write(tmp_path, PIPELINE.replace('topic = "rejected"', 'topic = "nowhere"')))
    with pytest.raises(wc.NotFoundError, match=r"^press, output 'nowhere': no topic named 'nowhere'"):
        check_places(file)
    database.create_topic("nowhere")
    check_places(file)
    database.create_table("numbered")
    other_ids = read(write(tmp_path, PIPELINE.replace('table = "batches"', 'table = "numbered"')))
    with pytest.raises(
        wc.InvalidArgumentError, match=r"^press, output 'numbered': table 'numbered' must have id_type=.text."
    ):
        check_places(other_ids)
    database.create_table("texts", id_type="text", payload="text")
    with pytest.raises(
        wc.InvalidArgumentError, match="table 'texts' must have payload=\"bytes\" to hold batches, got text"
    ):
        check_places(read(write(tmp_path, PIPELINE.replace('table = "batches"', 'table = "texts"'))))
    no_database = read(write(tmp_path, PIPELINE.replace("/f.db", "/g.db")))
    with pytest.raises(wc.NotFoundError, match=r"^press, source: no database file"):
        check_places(no_database)
    assert not (tmp_path / "g.db").exists()
    endless = read(write(tmp_path, PIPELINE.replace('topic = "rejected"', 'topic = "telemetry"')))
    with pytest.raises(wc.InvalidArgumentError, match="would read them again"):
        check_places(endless)
    database.create_topic("ahead", max_ahead="5m")
    refusing = read(write(tmp_path, PIPELINE.replace('topic = "rejected"', 'topic = "ahead"')))
    with pytest.raises(wc.InvalidArgumentError, match="topic 'ahead': its option max_ahead may refuse them"):
        check_places(refusing)
    database.create_topic("kept", max_ahead="5m", on_ahead="keep")
    check_places(read(write(tmp_path, PIPELINE.replace('topic = "rejected"', 'topic = "kept"'))))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_spark_starts_ends_the_command(
    database: wc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def start(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        pytest.fail("Spark goes on starting")

    monkeypatch.setattr("waterclock.spark.runtime.session.session", start)
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        run(["pipeline", "run", str(write(tmp_path))])
    assert ended.value.code == 0
    assert signal.getsignal(number) is before


@pytest.mark.slow
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
    run_pipeline(spark, read(path), tell=latest.append, stopping=lambda: latest[-1].lag == 0)
    assert not spark.streams.active
    batches, rejected = expected(database)
    closed = {name: payload for name, payload in batches.items() if int(name.partition("@")[2]) < end}
    assert landed(database) == closed
    rows = spark.read.parquet(str(tmp_path / "batches")).collect()
    assert {row.id: bytes(row.payload) for row in rows} == closed
    assert len(rows) == len(closed)
    assert [m.headers[REASON_HEADER] for m in database.topic("rejected").read()] == [r.reason for r in rejected]


SEVERAL = """\
[spark]
driver.memory = "1g"
"spark.sql.ansi.enabled" = true

[[pipeline]]
name = "by-time"
[pipeline.source]
url = "sqlite:///{folder}/f.db"
topic = "telemetry"
max_messages_per_trigger = 10
[pipeline.batching]
window = "500ms"
max_delay = "400ms"
[[pipeline.output]]
what = "rejected"
topic = "rejected"
[[pipeline.output]]
what = "batches"
table = "batches"
url = "sqlite:///{folder}/other.db"
[pipeline.run]
checkpoint = "{folder}/by-time"
trigger = "500ms"

[[pipeline]]
name = "by-rate"
[pipeline.source]
url = "sqlite:///{folder}/f.db"
topic = "telemetry"
[pipeline.batching]
by = "rate"
gated = ["s0"]
timeout = inf
forget_after = "1h"
clocks = "align"
max_disorder = "900ms"
boundaries = ["run"]
[[pipeline.output]]
what = "batches"
table = "rates"
[pipeline.run]
checkpoint = "{folder}/by-rate"
trigger = "10ms"
"""


def test_several_pipelines_wait_for_the_first_message_and_end_with_the_micro_batch_under_way(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PipelineFile.read(write(tmp_path, SEVERAL))
    monkeypatch.setattr(running, "FINISH_WITHIN_S", 600.0)  # on a busy machine a micro-batch may take a minute
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database, wc.connect(f"sqlite:///{tmp_path}/other.db") as other:
        topic = database.create_topic("telemetry")
        database.create_topic("rejected")
        other.create_table("batches", id_type="text")
        database.create_table("rates", id_type="text")
        calls: list[tuple[int, ...]] = []

        def tell(all_progress: Sequence[Progress]) -> None:
            calls.append(tuple(progress.messages for progress in all_progress))
            if len(calls) == 2:
                for n in range(200):
                    at = START + n * SECOND
                    some = [wc.Message("a", "s0", at - k * SECOND, publish_time=at, receive_time=at) for k in range(5)]
                    topic.append(some)

        by_time, by_rate = run_pipelines(spark, file.pipelines, tell=tell, stopping=lambda: min(calls[-1]) > 0)
        assert (by_rate.messages, by_rate.lag) == (1000, 0)
        for one in (by_time, by_rate):  # Spark knows the jobs of each by its run
            assert one.tasks is not None
            assert 0 <= one.tasks[0] <= one.tasks[1]
            assert one.tasks[1] > 0
        assert 0 < by_time.messages < 1000
        assert by_time.messages + (by_time.lag or 0) == 1000
        for checkpoint in ("by-time", "by-rate"):
            begun, ended = (
                {each.name for each in (tmp_path / checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits")
            )
            assert begun == ended
        late = by_time.rejections.pop("late")
        assert late > 0 == sum(by_time.rejections.values())
        assert sum(message.headers[REASON_HEADER] == "late" for message in database.topic("rejected").read()) == late
        # So far each window has one message, whose payload is in the other database.
        assert len(landed(other)) == by_time.batches
        assert (
            (by_time.state_partitions, by_time.state_buckets) == parts_in(spark, str(tmp_path / "by-time")) == (3, 12)
        )
        assert parts_in(spark, str(tmp_path / "nowhere")) is None
        for other_number in ({"state_partitions": 5}, {"state_buckets": 5}):
            says = rf"run\.{next(iter(other_number))} of pipeline 'by-time' must be \d+, as in its checkpoint, got 5\. "
            with pytest.raises(wc.InvalidArgumentError, match=says):
                run_pipeline(spark, dataclasses.replace(file.pipelines[0], **other_number))
        changed = dict(file.pipelines[0].rule) | {"max_delay": "9s"}
        with pytest.raises(
            wc.InvalidArgumentError,
            match=r"cannot start pipeline 'by-time': its checkpoint was written with max_delay = \d+m?s,"
            r" and the file has max_delay = 9s\. ",
        ):
            run_pipeline(spark, dataclasses.replace(file.pipelines[0], rule=changed))
        # A micro-batch that takes too long is given up, which is no error.
        monkeypatch.setattr(running, "FINISH_WITHIN_S", 0.0)
        given_up = run_pipeline(spark, file.pipelines[0], stopping=lambda: True)
        assert given_up.messages < 1000 - by_time.messages
        assert not spark.streams.active


def test_state_has_as_many_partitions_as_there_are_cores_where_the_session_says_nothing(spark: SparkSession) -> None:
    before = spark.conf.get(PARTITIONS)
    assert chosen_partitions(spark) == 3
    spark.conf.set(PARTITIONS, "200")
    try:
        assert chosen_partitions(spark) == 2
        spark.conf.set(PARTITIONS, "7")  # buckets do not spread evenly over 7
        assert chosen_partitions(spark) == 6
    finally:
        spark.conf.set(PARTITIONS, before)


def test_a_stream_that_fails_says_why_in_a_line(spark: SparkSession, database: wc.Database, tmp_path: Path) -> None:
    path = write(tmp_path, PIPELINE.replace('start = "2026-07-01T10:00:00Z"', 'start = "0:0:0"'))
    database.topic("telemetry").truncate(wc.Position(1, 0, 0))
    with pytest.raises(wc.WaterclockError, match="0:0:0 of topic 'telemetry' has expired") as ended:
        run_pipeline(spark, read(path), once=True)
    assert "\n" not in str(ended.value)


def test_a_pipeline_batches_by_rate_too(spark: SparkSession, database: wc.Database, tmp_path: Path) -> None:
    by_rate = PIPELINE.replace('window = "500ms"', 'by = "rate"').replace('max_delay = "400ms"', 'batch_length = "1s"')
    progress = replay_pipeline(spark, read(write(tmp_path, by_rate)), START, START + 60 * SECOND)
    assert (progress.messages, progress.rejected) == (121, 0)
    assert sum(len(wc.Batch.from_bytes(payload).messages) for payload in landed(database).values()) == 121
