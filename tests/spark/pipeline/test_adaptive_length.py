"""A pipeline whose batch length adapts: its stream, its restarts and its replays write the same bytes, once."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.spark.pipeline.pipeline_files import SECOND, START, landed, read, write
from tests.spark.results import results_in_rows
from tests.spark.streaming.arrivals import packed
from tests.support.moments import ReadFrom

import waterclock as wc
from waterclock._support import moments
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.batch import RejectReason
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.columnar.many_sources import joined, many_from_cell, nothing
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import RateStream, judge_by_rate
from waterclock.message import Position
from waterclock.spark.pipeline import fencing, lengths, running
from waterclock.spark.pipeline.failures import PipelineError
from waterclock.spark.pipeline.lengths import LengthRecord, MeasuredLength, recorded_lengths
from waterclock.spark.pipeline.progress import Progress
from waterclock.spark.pipeline.reporting import Reporter, families, line
from waterclock.spark.pipeline.running import replay_pipeline, run_pipeline
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.reading.topic_stream import TopicStreamReader
from waterclock.time import MAX_NS, MIN_NS, to_duration
from waterclock.topics.finding.positions import Place, place_of

PIPELINE = """\
[source]
url = "sqlite:///{folder}/f.db"
topic = "telemetry"
max_messages_per_trigger = 150

[batching]
by = "rate"
batch_length = "adaptive"
longest = "4s"

[[output]]
what = "batches"
table = "batches"

[run]
checkpoint = "{folder}/checkpoint"
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[wc.Database]:
    with filled(tmp_path) as database:
        for table in ("batches", "replayed"):
            database.create_table(table, id_type="text", groups="sequenced")
        yield database


@pytest.fixture(scope="module")
def topic_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("topic")
    filled(folder).close()
    return folder


def filled(folder: Path) -> wc.Database:
    """Create a topic of two sources, 40 s long, with a sealed ledger."""
    chance = random.Random(7)  # noqa: S311  # traffic, no secret
    database = wc.connect(f"sqlite:///{folder}/f.db")
    topic = database.create_topic("telemetry")
    sent: list[wc.Message] = []
    for source in "ab":
        for stream, rate in (("x", 5), ("y", 2)):
            for number in range(40 * rate):
                at = START + number * SECOND // rate
                times = {"publish_time": at, "receive_time": at + chance.randrange(SECOND // 3)}
                sent.append(wc.Message(source, stream, at, b"%d" % number, **times))
    sent.sort(key=lambda each: each.receive_time or 0)
    for first in range(0, len(sent), 9):
        topic.append(sent[first : first + 9])
        if first == 270:
            topic.roll()
            topic.seal()
    return database


def recorded(folder: Path) -> dict[Position, int]:
    """Return the recorded lengths by the position from which they hold."""
    found = (lengths._NAME.fullmatch(path.name) for path in (folder / "checkpoint" / "waterclock-lengths").iterdir())
    return {Position(int(one[1]), int(one[2]), 0): int(one[3]) for one in found if one is not None}


def one_by_one(topic: Any, at: dict[Position, int], *, flush: bool) -> dict[str, bytes]:
    """Batch a topic with one batcher for each source, whose length changes at positions."""
    entries: dict[Position, dict[str, list[wc.Message]]] = defaultdict(lambda: defaultdict(list))
    for message in topic.read():
        entries[message.position._replace(index=0)][message.source].append(message)
    batchers: dict[str, RateAwareBatcher] = defaultdict(RateAwareBatcher)
    batches: list[wc.Batch] = []
    for place, by_source in sorted(entries.items()):
        for source, messages in by_source.items():
            batchers[source].set_batch_length(max(each for each in at.items() if each[0] <= place)[1])
            batches += batchers[source].add(messages)
    batches += [batch for batcher in batchers.values() for batch in batcher.flush() if flush]
    return {batch.id: batch.to_bytes() for batch in batches}


class ChosenLength(MeasuredLength):
    """Offers the length that a test chooses, whatever the micro-batches took."""

    running: ChosenLength

    def __init__(self, length: AdaptiveBatchLength, file: Path) -> None:
        super().__init__(length, file)
        ChosenLength.running = self

    def worked(self, took: int, windows: int, length: int) -> None: ...

    def rested(self, now: int) -> None: ...

    def choose(self, chance: random.Random) -> None:
        self._length._use(chance.choice([1, 2, 2, 3, 4]))
        self._write()


class CrashError(Exception):
    """The end of a process."""


class SmallSpark:
    """What Spark does with a stream of one bucket: its log of offsets, its state and its repetitions."""

    def __init__(self, folder: Path, topic_folder: Path, forget_after: str | None, chance: random.Random) -> None:
        silence = "" if forget_after is None else f'forget_after = "{forget_after}"\n'
        text = PIPELINE.replace("[[output]]", f"{silence}[[output]]").replace("{folder}/f.db", f"{topic_folder}/f.db")
        self.pipeline = read(write(folder, text))
        self.options = RateOptions.checked("1s", None, gated=True, forget_after=forget_after)
        self.folder = folder
        self.chance = chance
        self.states = [RateStream(self.options).state()]
        self.outcomes: list[pa.RecordBatch] = []
        self.lengths: list[int] = []
        self.committed = 0

    def run(self) -> None:
        """Process the topic until its end, or until a crash."""
        ChosenLength.of(cast("Any", None), self.pipeline, self.folder / "length")
        given = {"url": self.pipeline.source.url, "topic": "telemetry", "buckets": "1", "rule": "{}"}
        reader = TopicStreamReader(TopicReadOptions.checked({**given, "lengthFile": str(self.folder / "length")}))
        record = LengthRecord(self.pipeline)
        while self.plan(reader):
            self.process(reader, record)
            self.committed += 1
            self.may_crash()
        reader.stop()

    def plan(self, reader: TopicStreamReader) -> bool:
        """Log the end of the next micro-batch, unless it is logged."""
        log = self.folder / "checkpoint" / "offsets" / str(self.committed)
        if log.exists():
            return True
        start = self.start(reader)
        end = reader.latestOffset(start, ReadMaxRows(self.chance.choice([20, 60])))
        if end == start:
            return False
        self.may_crash()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("v1\n{}\n" + json.dumps(end))
        self.may_crash()
        return True

    def start(self, reader: TopicStreamReader) -> dict[str, Any]:
        if not self.committed:
            return reader.initialOffset()
        return self.logged(self.committed - 1)

    def logged(self, number: int) -> dict[str, Any]:
        return json.loads((self.folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()[-1])

    def process(self, reader: TopicStreamReader, record: LengthRecord) -> None:
        parts = reader.partitions(self.start(reader), self.logged(self.committed))
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        self.may_crash()
        (length,) = {row["batch_length"] for row in rows}
        stream = RateStream.restore(self.states[self.committed], self.options)
        stream.set_batch_length(length)
        outcomes = stream.take(joined([many_from_cell(row["rows"], POSITIONED) for row in rows], POSITIONED))
        del self.states[self.committed + 1 :]
        self.states.append(stream.state())
        self.may_crash()
        record.note(cast("Any", None), self.committed, lambda: None)
        self.may_crash()
        if self.committed < len(self.outcomes):  # it was written before the crash
            assert (self.outcomes[self.committed], self.lengths[self.committed]) == (outcomes, length)
        else:
            self.outcomes.append(outcomes)
            self.lengths.append(length)
        self.may_crash()

    def may_crash(self) -> None:
        """Continue at another time, when another length may be wanted, or end."""
        if self.chance.random() < 0.05:
            raise CrashError
        if self.chance.random() < 0.2:
            ChosenLength.running.choose(self.chance)


@pytest.fixture
def files_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(_: Any, folder: str) -> frozenset[str]:
        return frozenset(path.name for path in Path(folder).iterdir()) if Path(folder).exists() else frozenset()

    def write_file(_: Any, place: str, text: str) -> None:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(text)

    for module in (lengths, fencing):
        monkeypatch.setattr(module, "file_names", names)
    monkeypatch.setattr(lengths, "read_text", lambda _, place: Path(place).read_text())
    monkeypatch.setattr(lengths, "write_text", write_file)


@pytest.mark.usefixtures("files_without_spark")
@pytest.mark.parametrize("forget_after", [None, "150ms"])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_statement_changes_no_length_and_a_replay_finds_the_lengths(
    tmp_path: Path, topic_folder: Path, forget_after: str | None, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  # repeatable, nothing secret
    small = SmallSpark(tmp_path, topic_folder, forget_after, chance)
    crashes = 0
    while True:
        try:
            small.run()
            break
        except CrashError:
            crashes += 1
    assert crashes > 2
    assert len(set(small.lengths)) > 2
    last = RateStream.restore(small.states[-1], small.options).take(nothing(POSITIONED), flush=True)
    expected = results_in_rows([*small.outcomes, last])
    found, stop = recorded_lengths(cast("Any", None), small.pipeline)
    with wc.connect(small.pipeline.source.url) as database:
        topic = database.topic("telemetry")
        assert stop == place_of(topic.storage, topic.head)
        messages = list(topic.read())
    by_source = [[each for each in messages if each.source == source] for source in "ab"]
    rows = [row for each in by_source for row in packed(each, chance)]
    assert results_in_rows(judge_by_rate(rows, small.options, lengths=found)) == expected
    middle = START + chance.randrange(40 * SECOND)
    parts = [
        results_in_rows(judge_by_rate(rows, small.options, lengths=found, span=ReplayRange(*span)))
        for span in ((MIN_NS, middle), (middle, MAX_NS))
    ]
    assert {s: parts[0].batches.get(s, []) + parts[1].batches.get(s, []) for s in "ab"} == expected.batches


@pytest.mark.usefixtures("files_without_spark")
def test_a_checkpoint_that_is_older_than_its_lengths_is_refused(tmp_path: Path, topic_folder: Path) -> None:
    small = SmallSpark(tmp_path, topic_folder, None, random.Random(1))  # noqa: S311
    with pytest.raises(wc.InvalidArgumentError, match="'press': its batch length is adaptive, and its checkpoint"):
        recorded_lengths(cast("Any", None), small.pipeline)
    spark, offsets = cast("Any", None), tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for number, since, length in ((0, "0:0:0", 1), (1, "0:7:0", 2), (2, "0:7:0", 2), (3, "1:2:0", 1)):
        end = {"position": f"1:{number}:0", "ordinal": number, "rule": {}}
        end["length"] = {"batch_length": length, "since": since}
        (offsets / str(number)).write_text(f"v1\n{json.dumps(end)}")
        LengthRecord(small.pipeline).note(spark, number, overtaken)
    found = [(0, 0, 1), (0, 7, 2), (1, 2, 1)]
    assert recorded_lengths(spark, small.pipeline) == (found, Place(Position(1, 3, 0), 3))
    LengthRecord(small.pipeline).note(spark, 3, overtaken)  # the micro-batch is repeated
    with pytest.raises(PipelineError, match="overtaken"):
        LengthRecord(small.pipeline).note(spark, 2, overtaken)
    with pytest.raises(wc.InvalidArgumentError, match=r"'press': its checkpoint has a batch length .* from 1:2:0 on"):
        LengthRecord(small.pipeline).note(spark, 2, lambda: None)
    assert recorded_lengths(spark, small.pipeline)[0] == found
    (tmp_path / "checkpoint" / "waterclock-lengths" / "from=0-0,length=1").unlink()
    with pytest.raises(wc.InvalidArgumentError, match=r"lacks the batch length of messages before 0:7:0\. Restore"):
        recorded_lengths(spark, small.pipeline)


def test_an_adaptive_length_is_refused_through_spark_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "is_remote", lambda: True)
    pipeline = read(write(tmp_path, PIPELINE))
    for call in (run_pipeline, partial(replay_pipeline, since=0, until=1)):
        with pytest.raises(wc.InvalidArgumentError, match="'press' must be a duration with Spark Connect, got 'ada"):
            call(cast("Any", None), pipeline)


def overtaken() -> None:
    raise PipelineError("overtaken")


def report(number: int, took_ms: int, windows: int, length: str) -> SimpleNamespace:
    """Make Spark's report of a micro-batch with 9 messages, or of a look that found none."""
    offsets = [{"position": f"0:{number + n}:0", "ordinal": 9 * (number + n), "topic": "t"} for n in range(2)]
    offsets[1]["length"] = {"batch_length": to_duration(length, "length")}
    start, end = map(json.dumps, offsets)
    observed = Row(batches=windows, windows=windows, outside=0, **dict.fromkeys(get_args(RejectReason), 0))
    return SimpleNamespace(
        batchId=number,
        timestamp=f"{number} {took_ms}",
        durationMs={"triggerExecution": took_ms, **({"addBatch": took_ms} if windows else {})},
        observedMetrics={"outcomes": observed},
        sources=[SimpleNamespace(startOffset=start, endOffset=end, latestOffset=end)],
        stateOperators=[],
    )


def test_the_length_follows_the_time_of_a_batch_and_each_change_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = read(write(tmp_path, PIPELINE))
    assert pipeline.adaptive is not None
    progress, file, now = Progress.of(pipeline), tmp_path / "length", 0
    progress.state_partitions = progress.state_buckets = 1
    progress.length = MeasuredLength(pipeline.adaptive, file)
    reporters = [Reporter([pipeline], as_json=as_json, quiet=False) for as_json in (False, True)]

    def lengths_after(*reports: SimpleNamespace, seconds: int = 1) -> list[int]:
        nonlocal now
        found: list[int] = []
        for one in reports:
            now += seconds * SECOND
            with moments.replaced(ReadFrom(partial(int, now))):
                progress.follow(cast("Any", SimpleNamespace(lastProgress=one, recentProgress=[one], runId="")))
                for reporter in reporters:
                    reporter.tell([progress])
            found.append(json.loads(file.read_text())["batch_length"] // SECOND)
        return found

    compiling = report(0, 30_000, 1, "1s")
    assert lengths_after(compiling, report(1, 3_900, 3, "1s"), report(2, 2_600, 2, "1s")) == [1, 1, 2]
    begun_before = [report(number, 6_000, 2, "1s") for number in (3, 4)]
    assert lengths_after(*begun_before, report(5, 6_000, 2, "2s"), report(6, 6_000, 2, "2s")) == [2, 2, 2, 4]
    assert lengths_after(*(report(7, took, 0, "4s") for took in range(4)), seconds=4) == [4, 4, 4, 3]
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("press: batch length")]
    assert said == [f"press: batch length {change}, following the time that batches take" for change in CHANGES]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    changes = [one for one in events if one["event"] == "batch_length"]
    assert [(one["batch_length_before"], one["batch_length"]) for one in changes] == [
        tuple(to_duration(length, "length") for length in change.split(" → ")) for change in CHANGES
    ]
    assert "; batch length 3s" in line(progress, None)
    gauge = next(each for each in families([progress], {}) if each.name.endswith("batch_length_seconds"))
    assert [sample.value for sample in gauge.samples] == [3]


CHANGES = ("1s → 2s", "2s → 4s", "4s → 3s")


class FaultError(Exception):
    """The fault of a test."""


def test_a_stream_that_fails_between_its_writes_and_its_replays_write_the_same_batches_once(
    spark: SparkSession, database: wc.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [("record", 1), ("commit", 2)]  # each once, in this micro-batch or the next
    now = 0
    chance = random.Random(3)  # noqa: S311  # repeatable, nothing secret

    def may_fail(moment: str) -> None:
        if faults and faults[0][0] == moment and faults[0][1] <= now:
            faults.pop(0)
            raise FaultError

    def record(*args: Any) -> None:
        may_fail("record")
        write_text(*args)

    def write_and_choose(self: Any, outcomes: Any, number: int) -> None:
        nonlocal now
        now = number
        write_micro_batch(self, outcomes, number)
        may_fail("commit")
        ChosenLength.running.choose(chance)

    write_text, write_micro_batch = lengths.write_text, running.MicroBatchWriter.__call__
    monkeypatch.setattr(running, "MeasuredLength", ChosenLength)
    monkeypatch.setattr(running.MicroBatchWriter, "__call__", write_and_choose)
    monkeypatch.setattr(lengths, "write_text", record)
    pipeline = read(write(tmp_path, PIPELINE))
    while faults:
        with pytest.raises(PipelineError):
            run_pipeline(spark, pipeline, once=True)
    run_pipeline(spark, pipeline, once=True)
    at = recorded(tmp_path)
    assert len(set(at.values())) > 2
    topic = database.topic("telemetry")
    assert landed(database) == one_by_one(topic, at, flush=False)
    written = json.loads((tmp_path / "checkpoint" / "offsets" / "3").read_text().splitlines()[-1])
    assert written["rule"]["batch_length"] == "adaptive from 1s to 4s"
    topic.roll()  # the end of the topic moves to another ledger
    again = replace(pipeline, outputs=(replace(pipeline.outputs[0], name="replayed", target="replayed"),))
    replay_pipeline(spark, again, START - SECOND, START + 60 * SECOND)
    assert landed(database, "replayed") == one_by_one(topic, at, flush=True)  # nothing was published for an hour
