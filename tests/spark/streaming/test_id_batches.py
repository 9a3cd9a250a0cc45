"""Batching by id on Spark gives the batches of one process: a replay, a stream and pipelines, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from tests.live.conftest import START, traffic
from tests.spark.pipeline.pipeline_files import PIPELINE, landed, read, write
from tests.spark.results import results_in_frames, results_of

import waterclock as wc
from waterclock.batching.batch import Batch, Rejection
from waterclock.spark import id_outcomes, register
from waterclock.spark.pipeline.running import replay_pipeline, run_pipelines
from waterclock.time import MAX_NS

STREAMS = ["m0", "m1", "m2", "m3"]
SECOND = 1_000_000_000
WRITTEN = ("-7", "007", str(MAX_NS), str(-MAX_NS), str(MAX_NS + 1), str(-MAX_NS - 1), "1\n", " 1", "", "٣")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[wc.Database]:
    """A topic with a sealed ledger and an open one; some messages have no id, an invalid one, or another stream."""
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("telemetry")
        sent = [
            message.replace(headers={"pulse": str(n // 9), "other": "1"} if n % 13 else None)
            for n, message in enumerate(traffic())
        ]
        sent += [sent[-1].replace(headers={"pulse": written}) for written in WRITTEN]
        sent[70] = sent[70].replace(stream="log")
        for first in range(0, 90, 7):
            topic.append(sent[first : min(first + 7, 90)])
        topic.roll()
        topic.seal()
        topic.append(sent[90:])
        database.create_table("batches", id_type="text")
        database.create_topic("rejected")
        yield database


def one_by_one(database: wc.Database) -> tuple[list[Batch], list[Rejection]]:
    batcher = wc.BySource(lambda: wc.IdBatcher("pulse", STREAMS, max_delay="2s"))
    batches = [batch for message in database.topic("telemetry").read() for batch in batcher.add(message)]
    return batches + batcher.advance(MAX_NS), batcher.take_rejected()


def test_a_replay_has_the_batchers_results_however_the_messages_are_read(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    register(spark)
    topic = {"url": f"sqlite:///{tmp_path}/f.db", "topic": "telemetry"}
    rows = spark.read.format("waterclock").options(**topic).load()
    packed = spark.read.format("waterclock").options(**topic, packed="true", idOf="pulse").load()
    written = F.col("headers")["pulse"]
    number = F.when(written.rlike(r"\A-?[0-9]+\z"), written.try_cast("bigint"))
    wanted = results_of(*one_by_one(database))
    reasons = {reason for each in wanted.rejected.values() for reason, _ in each}
    assert reasons == {"late", "duplicate", "no_id", "undeclared"}
    for df, id_of in ((packed, "pulse"), (rows, "pulse"), (rows, number)):
        assert results_in_frames(id_outcomes(df, id_of, "2s", STREAMS)) == wanted


def test_a_pipeline_writes_the_batches_of_one_process_and_counts_what_is_missing(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    rule = f'by = "id"\nid_of = "pulse"\nmax_delay = "2s"\nstreams = {STREAMS}'
    text = PIPELINE.replace('window = "500ms"\nmax_delay = "400ms"', rule).replace('start = "2026', '# start = "2026')
    pipeline = read(write(tmp_path, text.replace("_trigger = 70", "_trigger = 1000")))
    batches, rejected = one_by_one(database)
    [progress] = run_pipelines(spark, [pipeline], once=True)
    last = START + 3600 * SECOND
    database.topic("telemetry").append([wc.Message("clock", "m0", last, receive_time=last, headers={"pulse": "1"})])
    [again] = run_pipelines(spark, [pipeline], once=True)  # a new process would continue so
    assert landed(database) == {batch.id: batch.to_bytes() for batch in batches}
    both = {name: progress.rejections[name] + again.rejections[name] for name in progress.rejections}
    assert both == {name: sum(each.reason == name for each in rejected) for name in both}
    assert (progress.incomplete or 0) + (again.incomplete or 0) == sum(b.reason == "timeout" for b in batches) > 0
    assert (progress.missing_ids, again.missing_ids) == (0, MAX_NS)  # the last ids, the least and the largest


def test_adjoining_replays_of_a_pipeline_give_each_batch_once(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    rule = 'by = "id"\nid_of = "pulse"\nmax_delay = "2s"'
    text = PIPELINE.replace('window = "500ms"\nmax_delay = "400ms"', rule).replace('start = "2026', '# start = "2026')
    pipeline = read(write(tmp_path, text))
    counts = [
        replay_pipeline(spark, pipeline, since, until)
        for since, until in ((START - 60 * SECOND, START + 15 * SECOND), (START + 15 * SECOND, START + 90 * SECOND))
    ]
    batcher = wc.BySource(lambda: wc.IdBatcher("pulse", max_delay="2s"))
    batches = [batch for message in database.topic("telemetry").read() for batch in batcher.add(message)]
    batches += batcher.advance(MAX_NS)
    assert landed(database) == {batch.id: batch.to_bytes() for batch in batches}
    assert [progress.batches > 5 for progress in counts] == [True, True]
    assert sum(progress.rejected for progress in counts) == len(batcher.take_rejected())


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda rows, _: id_outcomes(rows, ""), "id_of must be the name of a header or a function, got ''"),
        (
            lambda rows, _: id_outcomes(rows.drop("index"), "pulse"),
            "df must have a column 'index': batching by id needs",
        ),
        (lambda rows, _: id_outcomes(rows.drop("headers"), "pulse"), "df must have a column 'headers' of type map"),
        (lambda rows, _: id_outcomes(rows, F.col("stream")), "or an integer column, got string"),
        (lambda rows, _: id_outcomes(rows, "pulse", streams=[]), "streams must name all streams"),
        (lambda _, packed: id_outcomes(packed, "train"), "df was read, got 'train' in this call and 'pulse' in df"),
        (
            lambda _, packed: id_outcomes(packed, F.col("count")),
            "id_of must equal the option idOf with which df was read",
        ),
    ],
)
def test_mistakes_are_named_before_a_job_runs(
    spark: SparkSession,
    database: wc.Database,  # it makes the topic
    tmp_path: Path,
    ask: Callable[[DataFrame, DataFrame], object],
    says: str,
) -> None:
    register(spark)
    topic = {"url": f"sqlite:///{tmp_path}/f.db", "topic": "telemetry"}
    rows = spark.read.format("waterclock").options(**topic).load()
    packed = spark.read.format("waterclock").options(**topic, packed="true", idOf="pulse").load()
    with pytest.raises(wc.InvalidArgumentError, match=says):
        ask(rows, packed)
