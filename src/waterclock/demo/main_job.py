"""Runs the main job of the demo step by step: topic, find, Spark, message table, workers, reconciliation, picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from waterclock._support.quoting import counted
from waterclock.batching.batch import Batch, Rejection, RejectReason
from waterclock.connection import Database, connect
from waterclock.demo.crew import CrewReport, run_crew
from waterclock.demo.demo_folder import make_fresh, stored_batches
from waterclock.demo.reconciliation import Reconciliation, count_astray
from waterclock.demo.report import Report
from waterclock.figures.timeline import timeline
from waterclock.ingest.recording import read_recording
from waterclock.message import Message, Position
from waterclock.spark import batches_of, event_time_outcomes, register, rejected_of, session
from waterclock.spark.runtime.class_archive import find_archive, is_wanted
from waterclock.spark.runtime.java import find_java
from waterclock.spark.writing.message_writer import REASON_HEADER
from waterclock.time import format_time
from waterclock.topics.topic import Topic

WINDOW = "500ms"
MAX_DELAY = "5100ms"
"""The slowest machine publishes every 5 s. Only 141 messages are later than this: the broker had stalled for 2.4 s."""

MAX_LEAD = "5ms"
"""collectd rounds its times up to some milliseconds; without this lead those messages would be from the future."""

ENTRY = 2_500
"""Messages an append."""

LEDGER = 25_000
"""Messages per ledger: few, so that the recording fills several."""

ACK_WAIT = "2s"
"""How long to wait for a killed worker's batches: short, to keep the demo short."""

PICTURED = ("2026-11-21T08:42:04Z", "2026-11-21T08:42:14Z")
"""The stretch of the recording that is drawn."""

NOTES = [("2026-11-21T08:42:08.070Z", "the broker stalled for 2.4 s: 141 messages arrived too late")]
"""Explains the late messages in the picture; the longest gap between two receive times is 2.443 s."""


def run_main_job(folder: Path, report: Report) -> Reconciliation:
    """Run the whole flow on the recording, in ``folder``, which is recreated.

    Raises `AlreadyExistsError` if ``folder`` holds anything except an earlier demo, and `UnavailableError` if Java for
    Spark is missing.
    """
    make_fresh(folder)
    with connect(f"sqlite:///{folder / 'factory.db'}") as database:
        telemetry = database.create_topic("telemetry", roll_after=None)
        database.create_topic("telemetry-rejected")
        batches = database.create_table(
            "batches", id_type="text", groups="sequenced", ack_wait=ACK_WAIT, max_backoff=ACK_WAIT
        )
        appended = _append_recording(telemetry, report)
        start = _find_start(telemetry, report)
        count = _batch_on_spark(database, start, report)
        with report.step("two workers take the batches; one is killed midway", count) as progress:
            crew = run_crew(str(database.backend.url), batches.name, count, progress)
        landed = stored_batches(database, batches.name, acked=True)
        rejected = list(database.topic("telemetry-rejected").read())
        with report.step("reconcile"):
            books = _reconcile(telemetry, start, appended, landed, rejected, count, crew)
        picture = folder / "timeline.svg"
        picture.write_text(draw(landed, rejected), encoding="utf-8")
        report.say(f"drew {picture}")
    return books


def draw(batches: list[Batch], rejected: list[Message]) -> str:
    """Draw ten seconds of the recording, with one burst of late messages."""
    rejections = [
        Rejection(message, cast("RejectReason", (message.headers or {})[REASON_HEADER])) for message in rejected
    ]
    start, end = PICTURED
    title = "Four machines, batched by when things happened"
    return timeline(batches, rejections, start=start, end=end, title=title, notes=NOTES)


def _append_recording(topic: Topic, report: Report) -> int:
    recording = read_recording()
    with report.step(
        f"append {counted(recording.num_rows, 'message')} to topic {topic.name}", recording.num_rows
    ) as progress:
        for first in range(0, recording.num_rows, ENTRY):
            topic.append(recording.slice(first, ENTRY))
            if (first + ENTRY) % LEDGER == 0:
                topic.roll()
            progress(min(first + ENTRY, recording.num_rows))
        topic.roll()
    with report.step("seal its ledgers to Parquet"):
        sealed = topic.seal()
    report.say(f"{counted(sealed, 'ledger')} sealed")
    return recording.num_rows


def _find_start(topic: Topic, report: Report) -> Position:
    bounds = [ledger.bounds for ledger in topic.ledgers() if ledger.bounds]
    first, last = bounds[0].begin["receive_time"], bounds[-1].end["receive_time"]
    moment = first + (last - first) // 3
    with report.step(f"find {format_time(moment)}, a third of the way in"):
        found = topic.find(moment, by="receive_time")
    report.say(f"it is at position {found.position}")
    return found.position


def _batch_on_spark(database: Database, start: Position, report: Report) -> int:
    place = {"url": str(database.backend.url), "ledgers": database.ledgers}
    with report.step("start Spark"):
        spark = session(app_name="waterclock demo")
        register(spark)
    if is_wanted() and find_archive(find_java()) is None:
        report.say("it starts in half the time after `waterclock spark prepare`, which takes a minute, once")
    with report.step("batch by event time, per host, and write the batches and the rejected messages"):
        messages = (
            spark.read.format("waterclock")
            .options(**place, topic="telemetry", startingPosition=str(start), packed=True)
            .load()
        )
        outcomes = event_time_outcomes(messages, window=WINDOW, max_delay=MAX_DELAY, max_lead=MAX_LEAD).persist()
        batches = batches_of(outcomes)
        sink = {**place, "payloads": "telemetry"}
        batches.write.format("waterclock").options(**sink, table="batches").mode("append").save()
        rejected_of(outcomes).write.format("waterclock").options(**sink, topic="telemetry-rejected").mode(
            "append"
        ).save()
        count = batches.count()
        spark.stop()
    report.say(f"{counted(count, 'batch', 'batches')} in message table batches")
    return count


def _reconcile(
    telemetry: Topic,
    start: Position,
    appended: int,
    landed: list[Batch],
    rejected: list[Message],
    batches: int,
    crew: CrewReport,
) -> Reconciliation:
    return Reconciliation(
        appended=appended,
        before_start=sum(part.num_rows for part in telemetry.read_arrow(stop=start, columns=["ledger"])),
        batched=sum(len(batch.messages) for batch in landed),
        rejected=Counter((message.headers or {})[REASON_HEADER] for message in rejected),
        astray=count_astray(_positions(telemetry, start), landed, rejected),
        batches=batches,
        acked=len(landed),
        held_when_killed=crew.held_when_killed,
        delivered_again=crew.delivered_again,
    )


def _positions(topic: Topic, start: Position) -> Iterator[Position]:
    for part in topic.read_arrow(start, columns=["ledger", "entry", "index"]):
        yield from map(Position, *(column.to_pylist() for column in part.columns))
