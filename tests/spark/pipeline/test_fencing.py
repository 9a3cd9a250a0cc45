"""Two runs of a pipeline on one checkpoint, or of one replay: one writes, and nothing is lost or there twice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.pipeline.pipeline_files import SECOND, START, read, write

import waterclock as wc
from waterclock.spark.pipeline import fencing, outputs, running
from waterclock.spark.pipeline.definition import Pipeline
from waterclock.spark.pipeline.failures import PipelineError
from waterclock.spark.pipeline.fencing import PipelineRun
from waterclock.spark.pipeline.outputs import AlreadyWrittenError, remove_unfinished
from waterclock.spark.pipeline.progress import Progress
from waterclock.spark.pipeline.running import MicroBatchWriter, replay_pipeline, run_pipeline, state_parts
from waterclock.spark.runtime.partitions import PARTITIONS, rule_in

OVERTAKEN = "'press': another run has taken over the checkpoint"
ROWS = 12
FOLDER = "run=r-0000000000"


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    whole = read(write(tmp_path))
    return replace(whole, outputs=whole.outputs[1:2])


@pytest.fixture(params=["classic", "connect"])
def session_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take the way of Spark Connect, whose DataFrames a classic session has as well."""
    for module in (fencing, outputs):
        monkeypatch.setattr(module, "is_remote", lambda: request.param == "connect")
    return request.param


def enter(spark: SparkSession, pipeline: Pipeline) -> PipelineRun:
    return PipelineRun.enter(spark, pipeline.name, pipeline.checkpoint)


def may_write(spark: SparkSession, run: PipelineRun) -> bool:
    try:
        run.check_latest(spark)
    except PipelineError:
        return False
    return True


def write_rows(
    spark: SparkSession,
    tmp_path: Path,
    check: Callable[[], None],
    arriving: Callable[[], None] = lambda: None,
    *,
    repeats: bool = True,
) -> None:
    """Write `ROWS` rows as a micro-batch of an output; ``arriving`` is called in the task, before the first."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arriving()
        yield from batches

    rows = spark.range(0, ROWS, 1, 1).mapInArrow(pass_on, "id BIGINT")
    pipeline = read(tmp_path / "press.toml")
    place = f"{tmp_path}/batches/{FOLDER}"
    outputs.write_parquet(rows, pipeline, place, what="rejected", repeats=repeats, check=check)


def sent(number: int) -> wc.Message:
    at = START + number * SECOND
    return wc.Message("a", "s", at, publish_time=at, receive_time=at)


def written(spark: SparkSession, tmp_path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(f"{tmp_path}/batches").collect())


@pytest.mark.usefixtures("session_kind")
def test_only_the_last_run_that_entered_may_write(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "_MOST_ENTRIES", 1)  # the third replaces the entries of the others
    runs: list[PipelineRun] = []
    for _ in range(3):
        runs.append(enter(spark, pipeline))
        assert [may_write(spark, run) for run in runs] == [False] * (len(runs) - 1) + [True]


@pytest.mark.usefixtures("session_kind")
def test_one_of_two_runs_that_enter_at_the_same_time_may_write(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = [enter(spark, pipeline).entry]
    with monkeypatch.context() as patched:
        patched.setattr(fencing, "_entries", lambda *_: earlier)
        runs = [enter(spark, pipeline) for _ in range(2)]
    assert sorted(may_write(spark, run) for run in runs) == [False, True]


def test_a_classic_run_takes_over_from_one_through_spark_connect(
    spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "is_remote", lambda: True)
    remote = enter(spark, pipeline)
    monkeypatch.setattr(fencing, "is_remote", lambda: False)
    classic = enter(spark, pipeline)
    monkeypatch.setattr(fencing, "is_remote", lambda: True)
    assert [may_write(spark, run) for run in (remote, classic)] == [False, True]


def test_parquet_of_an_overtaken_run_stays_hidden_and_is_removed(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    first = enter(spark, pipeline)

    def overtake() -> None:  # the first run has written its files, and they do not show yet
        second = enter(spark, pipeline)
        write_rows(spark, tmp_path, partial(second.check_latest, spark))
        first.check_latest(spark)

    with pytest.raises(PipelineError, match=OVERTAKEN):
        write_rows(spark, tmp_path, overtake)
    assert [path.name for path in (tmp_path / "batches").iterdir()] == [FOLDER]
    assert written(spark, tmp_path) == list(range(ROWS))


def test_a_run_that_pauses_before_it_moves_its_files_does_not_delete_those_of_the_later_one(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    def pause() -> None:  # after this run's last check
        second = enter(spark, pipeline)
        remove_unfinished(spark, pipeline, "r", partial(second.check_latest, spark))
        write_rows(spark, tmp_path, partial(second.check_latest, spark))

    with pytest.raises(OSError, match="No such file"):
        write_rows(spark, tmp_path, pause)
    assert [path.name for path in (tmp_path / "batches").iterdir()] == [FOLDER]
    assert written(spark, tmp_path) == list(range(ROWS))


@pytest.mark.usefixtures("session_kind")
def test_parquet_holds_each_row_once_if_another_run_writes_it_meanwhile(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    began, go = str(tmp_path / "began"), str(tmp_path / "go")
    os.mkfifo(began)
    os.mkfifo(go)

    def wait() -> None:
        Path(began).write_text("", encoding="ascii")  # opening either waits for the other end
        Path(go).read_text(encoding="ascii")

    assert pipeline.outputs[0].kind == "parquet"
    with ThreadPoolExecutor(1) as slow:
        first = slow.submit(write_rows, spark, tmp_path, lambda: None, wait)
        Path(began).read_text(encoding="ascii")
        write_rows(spark, tmp_path, lambda: None)
        Path(go).write_text("", encoding="ascii")
        with suppress(PySparkException):
            first.result()
    assert written(spark, tmp_path) == list(range(ROWS))


def test_an_overtaken_run_deletes_nothing_of_the_later_one(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    first = enter(spark, pipeline)
    killed, later = (tmp_path / "batches" / f".{FOLDER}-{name}" for name in ("killed", "later"))
    killed.mkdir(parents=True)

    def check() -> None:
        first.check_latest(spark)
        later.mkdir()  # of a run that enters right after the check

    remove_unfinished(spark, pipeline, "r", check)
    assert list((tmp_path / "batches").iterdir()) == [later]
    enter(spark, pipeline)
    with pytest.raises(PipelineError, match=OVERTAKEN):
        remove_unfinished(spark, pipeline, "r", partial(first.check_latest, spark))
    assert later.exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_a_killed_run_was_replacing_is_shown_again(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, replaced: bool
) -> None:
    hidden = f"{tmp_path}/batches/.{FOLDER}-{'0' * 32}"
    spark.range(ROWS).write.parquet(f"{hidden}-replaced")
    spark.range(1).write.parquet(f"{tmp_path}/batches/{FOLDER}" if replaced else hidden)
    remove_unfinished(spark, pipeline, "r", lambda: None)
    assert [path.name for path in (tmp_path / "batches").iterdir()] == [FOLDER]
    assert written(spark, tmp_path) == list(range(1 if replaced else ROWS))


def test_a_new_micro_batch_does_not_replace_the_folder_of_a_run_on_a_copy_of_the_checkpoint(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    assert pipeline.outputs[0].kind == "parquet"
    write_rows(spark, tmp_path, lambda: None, repeats=False)
    with pytest.raises(AlreadyWrittenError, match="0000 already exists, so the checkpoint is older"):
        write_rows(spark, tmp_path, lambda: None, repeats=False)
    assert [path.name for path in (tmp_path / "batches").iterdir()] == [FOLDER]
    assert written(spark, tmp_path) == list(range(ROWS))


@pytest.fixture
def writer(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> MicroBatchWriter:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1", encoding="ascii")
    (tmp_path / "checkpoint" / "metadata").write_text('{"id": "r"}', encoding="ascii")
    return MicroBatchWriter.enter(spark, pipeline, enter(spark, pipeline))


@pytest.mark.parametrize("fails", [False, True])
def test_an_overtaken_run_does_not_commit_the_micro_batch_that_the_later_one_repeats(
    spark: SparkSession, pipeline: Pipeline, writer: MicroBatchWriter, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def overtake(*_: object, **__: object) -> None:
        enter(spark, pipeline)
        if fails:  # as if the later run had written what this one writes
            raise PySparkException("micro-batch 0 already has other messages")

    monkeypatch.setattr(running, "write_outcomes", overtake)
    with pytest.raises(PipelineError, match=OVERTAKEN):
        writer(spark.range(1), 0)


def test_an_overtaken_run_does_not_blame_the_checkpoint_for_what_the_later_one_has_written(
    spark: SparkSession, pipeline: Pipeline, writer: MicroBatchWriter, tmp_path: Path
) -> None:
    enter(spark, pipeline)
    spark.range(1).write.parquet(f"{tmp_path}/batches/run=r-0000000001")
    with pytest.raises(PipelineError, match=OVERTAKEN):
        writer(spark.range(1), 1)


@pytest.mark.usefixtures("writer")
def test_a_checkpoint_that_is_older_than_a_topic_is_refused_before_a_micro_batch_begins(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = read(tmp_path / "press.toml")
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("rejected")
        topic.append([sent(0)], producer="r-rejected-1", sequence=5)  # of micro-batch 0, which is repeated
        MicroBatchWriter.enter(spark, pipeline, enter(spark, pipeline))
        topic.append([sent(1)], producer="r-rejected-0", sequence=2 << 32)
    with pytest.raises(wc.InvalidArgumentError, match="micro-batch 2, but the checkpoint ends with 0"):
        MicroBatchWriter.enter(spark, pipeline, enter(spark, pipeline))


def test_a_run_repeats_only_micro_batches_that_its_checkpoint_knew(
    spark: SparkSession, writer: MicroBatchWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated: list[int] = []
    monkeypatch.setattr(running, "write_outcomes", lambda *_, micro_batch, **__: repeated.append(micro_batch))
    for number in (0, 2):  # 1 is missing, as if it had written no output
        spark.range(1).write.parquet(f"{tmp_path}/batches/run=r-{number:010d}")
    for number in (0, 1, 1):
        writer(spark.range(1), number)
    with pytest.raises(wc.InvalidArgumentError, match="0002 already exists, so the checkpoint is older"):
        writer(spark.range(1), 2)
    assert repeated == [0, 1, 1]


@pytest.mark.parametrize("during", [False, True])
def test_a_refused_micro_batch_is_refused_at_each_start_until_its_folder_is_removed(
    spark: SparkSession,
    pipeline: Pipeline,
    writer: MicroBatchWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    during: bool,
) -> None:
    folder = tmp_path / "batches" / "run=r-0000000001"
    (tmp_path / "checkpoint" / "offsets" / "1").write_text("v1", encoding="ascii")  # the run has planned it

    def write_of_another(*_: object, repeats: bool, **__: object) -> None:
        assert not repeats
        spark.range(1).write.parquet(str(folder))
        raise AlreadyWrittenError(f"{folder} already exists")

    if during:
        monkeypatch.setattr(running, "write_outcomes", write_of_another)
    else:
        spark.range(1).write.parquet(str(folder))
    with pytest.raises(AlreadyWrittenError, match="0001 already exists"):
        writer(spark.range(1), 1)
    for _ in range(2):
        with pytest.raises(AlreadyWrittenError, match="0001 already exists"):
            MicroBatchWriter.enter(spark, pipeline, enter(spark, pipeline))
    shutil.rmtree(folder)
    MicroBatchWriter.enter(spark, pipeline, enter(spark, pipeline))
    assert fencing.newest_begun(spark, pipeline.checkpoint) == 1


@pytest.mark.usefixtures("writer")
def test_a_checkpoint_that_is_older_than_an_output_is_refused_before_a_micro_batch_begins(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    spark.range(1).write.parquet(f"{tmp_path}/batches/run=r-0000000001")
    with pytest.raises(wc.InvalidArgumentError, match="0001 already exists, so the checkpoint is older"):
        MicroBatchWriter.enter(spark, pipeline, enter(spark, pipeline))


@pytest.mark.usefixtures("session_kind")
def test_the_newest_micro_batch_of_a_checkpoint_is_found_by_its_number(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    assert fencing.newest_planned(spark, pipeline.checkpoint) == -1
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for name in ("9", "10", ".11.crc"):
        (offsets / name).write_text("v1", encoding="ascii")
    assert fencing.newest_planned(spark, pipeline.checkpoint) == 10


def test_a_checkpoint_whose_run_ended_before_its_first_micro_batch_counts_as_new(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    assert state_parts(spark, pipeline) == (3, 12)
    assert rule_in(spark, pipeline.checkpoint) is None


@pytest.mark.usefixtures("session_kind")
def test_a_run_whose_checkpoint_is_deleted_says_so(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> None:
    run = enter(spark, pipeline)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(PipelineError, match="'press': its checkpoint was deleted"):
        run.check_latest(spark)


def test_a_checkpoint_without_its_stream_id_is_refused(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    lines = ["v1", json.dumps({"conf": {PARTITIONS: "2"}}), json.dumps({"buckets": 8})]
    (offsets / "0").write_text("\n".join(lines), encoding="ascii")
    with pytest.raises(wc.InvalidArgumentError, match="its checkpoint lacks the file 'metadata'"):
        state_parts(spark, pipeline)
    (offsets.parent / "metadata").write_text('{"id": "r"}', encoding="ascii")
    assert state_parts(spark, pipeline) == (2, 8)


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_run_whose_next_micro_batch_another_run_has_begun_continues_unless_it_is_overtaken(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overtaken: bool
) -> None:
    pipeline = replace(pipeline, trigger="10ms")
    offsets = tmp_path / "checkpoint" / "offsets"
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        _ = topic.append([sent(0)])
        collisions: list[None] = []

        def collide(progress: Progress) -> None:
            if progress.micro_batches and not collisions:  # the run waits for messages
                collisions.append(None)
                if overtaken:
                    enter(spark, pipeline)
                shutil.copy(offsets / "0", offsets / "1")  # as if the other had begun a micro-batch first
                _ = topic.append([sent(1)])

        def run() -> int:
            committed = (offsets.parent / "commits" / "2").exists
            return run_pipeline(spark, pipeline, tell=collide, stopping=committed).messages

        if overtaken:
            with pytest.raises(PipelineError, match=OVERTAKEN):
                run()
        else:
            assert run() == len([sent(0), sent(1)])
            origin = topic.storage.origin
            topic.remove()
            database.create_topic("telemetry")
            with pytest.raises(wc.NotFoundError, match="its checkpoint belongs to a topic other than 'telemetry'"):
                replay_pipeline(spark, pipeline, START, START + SECOND)
            (offsets / ".1.crc").unlink(missing_ok=True)  # of the file that was replaced by a copy
            with monkeypatch.context() as patched:
                patched.setattr(fencing, "is_remote", lambda: True)
                assert fencing.topic_in(spark, pipeline.checkpoint) == origin
    assert collisions


def test_a_replay_that_another_one_of_its_range_has_overtaken_does_not_write(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("telemetry").append([sent(0)])
    write_outcomes = running.write_outcomes
    written: list[str] = []

    def overtake(*_: object, check: Callable[[], None], **__: object) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(running, "write_outcomes", write_outcomes)
            written.append(replay_pipeline(spark, pipeline, START, START + SECOND).pipeline)
        check()

    monkeypatch.setattr(running, "write_outcomes", overtake)
    with pytest.raises(PipelineError, match="'press': another replay of this range has begun"):
        replay_pipeline(spark, pipeline, START, START + SECOND)
    assert written == ["press"]
    assert [path.name for path in (tmp_path / "batches").iterdir()] == [
        f"run=replay-{START}-{START + SECOND}-0000000000"
    ]
