"""Prevents two runs of a pipeline on one checkpoint, or two replays of one range, from writing at the same time.

The later run takes over. Spark notices a second run only when a micro-batch ends, after both runs have written it. So
each run adds an entry to the checkpoint before it starts. Before each write, a run checks that no later run has added
an entry. Each replayed range has its own folder of entries, because replays of different ranges do not conflict.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it
from pyspark.sql.utils import is_remote

from waterclock._support.quoting import quoted
from waterclock.spark.pipeline.failures import PipelineError
from waterclock.spark.runtime.filesystem import file_names, read_text, remove_folder, write_text

_FOLDER = "waterclock-runs"
_REPLAYS = "waterclock-replays"
_REFUSED = "waterclock-refused"
_ENTRY = re.compile(r"run=(\d{10}-[0-9a-f]{32})")

_MOST_ENTRIES = 50
"""Through Spark Connect, a run that finds more entries replaces them, so that reading stays fast if a run starts every
minute.
"""


@dataclass(frozen=True)
class PipelineRun:
    """One run of a pipeline.

    Each entry is a separate folder, so that runs that start at the same time do not share Spark's temporary folder. A
    run may delete the entries of earlier runs, and a run whose entry is missing does not write.
    """

    pipeline: str  # the pipeline's name
    folder: str  # the folder that has the entries of its runs
    replay: str | None  # the name of a replay's range; None: a stream
    entry: str
    """A number one above the last run's, then a random part that orders runs which started at the same time. The run
    with the largest entry writes.
    """

    @classmethod
    def enter(cls, spark: SparkSession, pipeline: str, checkpoint: str, replay: str | None = None) -> PipelineRun:
        """Enter a checkpoint as its latest run, or as the latest replay of a range."""
        folder = f"{checkpoint.rstrip('/')}/{_FOLDER if replay is None else f'{_REPLAYS}/{replay}'}"
        earlier = _entries(spark, folder)
        number = 1 + int(max(earlier, default="0").partition("-")[0])
        entry = f"{number:010d}-{uuid.uuid4().hex}"
        if is_remote():
            line = spark.createDataFrame([(entry, entry)], "value STRING, run STRING").coalesce(1)
            if len(earlier) > _MOST_ENTRIES:
                line.write.mode("overwrite").partitionBy("run").text(folder)
            else:
                line.select("value").write.text(f"{folder}/run={entry}")
        else:
            write_text(spark, f"{folder}/run={entry}/entry", entry)  # read by runs through Spark Connect
            for each in earlier:
                remove_folder(spark, f"{folder}/run={each}")
        return cls(pipeline, folder, replay, entry)

    def check_latest(self, spark: SparkSession) -> None:
        """Raise PipelineError if a later run has entered, or the entry of this run is missing."""
        latest = max(_entries(spark, self.folder), default=None)
        if latest == self.entry:
            return
        if self.replay is not None:
            why = "another replay of this range has begun. Replay a range only once at a time"
        elif latest is not None:
            why = "another run has taken over the checkpoint. Run a pipeline only once at a time"
        else:
            why = (
                "its checkpoint was deleted. Restore the checkpoint, or start with a new checkpoint, and with another"
                " place for each output that is not a message table"
            )
        raise PipelineError(f"cannot write for pipeline {quoted(self.pipeline)}: {why}")

    @contextmanager
    def checked_on_error(self, spark: SparkSession) -> Generator[None]:
        """Raise PipelineError instead of another error if a later run has entered, which caused that error."""
        try:
            yield
        except (PySparkException, Py4JError, OSError):
            with suppress(PySparkException, Py4JError, ConnectionError):  # the first error counts
                self.check_latest(spark)
            raise

    def leave(self, spark: SparkSession) -> None:
        """Delete the entry of a replay that has ended; through Spark Connect it stays."""
        if not is_remote():
            remove_folder(spark, f"{self.folder}/run={self.entry}")


def newest_planned(spark: SparkSession, checkpoint: str) -> int:
    """Return the number of the newest micro-batch whose end is in the checkpoint; -1 before the first."""
    folder = f"{checkpoint.rstrip('/')}/offsets"
    names = file_names(spark, folder) if not is_remote() else _texts(spark, folder, F.input_file_name())
    return max((int(name) for place in names if (name := place.rpartition("/")[2]).isdigit()), default=-1)


def note_refused(spark: SparkSession, checkpoint: str, micro_batch: int) -> None:
    """Record that an output refused a planned micro-batch, which a copy of the checkpoint has written.

    Through Spark Connect it is not recorded.
    """
    if not is_remote():
        write_text(spark, f"{checkpoint.rstrip('/')}/{_REFUSED}", str(micro_batch))


def newest_begun(spark: SparkSession, checkpoint: str) -> int:
    """Return the number of the newest micro-batch that this checkpoint's runs may have written; -1 before the first."""
    planned = newest_planned(spark, checkpoint)
    if is_remote() or _REFUSED not in file_names(spark, checkpoint):
        return planned
    return min(planned, int(read_text(spark, f"{checkpoint.rstrip('/')}/{_REFUSED}")) - 1)


def forget_refused(spark: SparkSession, checkpoint: str) -> None:
    """Delete the record of a refused micro-batch whose number is free again in the outputs."""
    if not is_remote():
        remove_folder(spark, f"{checkpoint.rstrip('/')}/{_REFUSED}")


def topic_in(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the origin of the topic that a checkpoint belongs to; None if no message was read."""
    newest = newest_planned(spark, checkpoint)
    if newest < 0:
        return None
    place = f"{checkpoint.rstrip('/')}/offsets/{newest}"
    lines = _texts(spark, place, F.col("value")) if is_remote() else read_text(spark, place).splitlines()
    return next((json.loads(line).get("topic") for line in lines if '"rule"' in line), None)


def _entries(spark: SparkSession, folder: str) -> list[str]:
    if not is_remote():
        return [found[1] for name in file_names(spark, folder) if (found := _ENTRY.fullmatch(name))]
    return _texts(spark, folder, F.col("value"))


def _texts(spark: SparkSession, folder: str, column: Column) -> list[str]:
    """Read a column of the text files of a folder; empty if it does not exist."""
    try:
        return [row[0] for row in spark.read.text(folder).select(column).collect()]
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
