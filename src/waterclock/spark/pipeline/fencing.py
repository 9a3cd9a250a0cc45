"""Keeps two runs of a pipeline on one checkpoint from writing at the same time: the later one takes over.

Spark notices a second run when a micro-batch ends, and by then both have written it. So each run enters the checkpoint
under a number of its own before it starts, and looks before each write whether a later run has entered since.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from waterclock._support.quoting import quoted
from waterclock.spark.pipeline.failures import PipelineError
from waterclock.spark.runtime.filesystem import file_names

_FOLDER = "waterclock-runs"

_MOST_ENTRIES = 50
"""With more, the next run writes the list again: reading it stays fast where a run is started every minute."""

_Number = tuple[int, str]


@dataclass(frozen=True)
class PipelineRun:
    """One run of a pipeline.

    Attributes
    ----------
    pipeline, checkpoint
        The pipeline's name, and its checkpoint's folder.
    number
        One more than that of the last run that had entered, and a name for runs that entered at the same time. The run
        with the largest writes.
    seen
        Names of the files in which the runs lay when this one had entered: looking whether there are others is faster
        than reading them.
    """

    pipeline: str
    checkpoint: str
    number: _Number
    seen: frozenset[str]

    @classmethod
    def enter(cls, spark: SparkSession, pipeline: str, checkpoint: str) -> PipelineRun:
        """Enter a checkpoint as its latest run."""
        folder = _folder(checkpoint)
        entered = _entered(spark, folder)
        number = (max(entered, default=(0, ""))[0] + 1, uuid.uuid4().hex)
        line = spark.createDataFrame([(json.dumps(number),)], "value STRING").coalesce(1)
        line.write.mode("overwrite" if len(entered) > _MOST_ENTRIES else "append").text(folder)
        return cls(pipeline, checkpoint, number, frozenset() if is_remote() else file_names(spark, folder))

    def check_latest(self, spark: SparkSession) -> None:
        """Raise PipelineError if a later run has entered the checkpoint."""
        folder = _folder(self.checkpoint)
        if not is_remote() and file_names(spark, folder) == self.seen:
            return
        if any(other > self.number for other in _entered(spark, folder)):
            raise PipelineError(
                f"cannot write for pipeline {quoted(self.pipeline)}: another run has taken over its"
                " checkpoint. Run a pipeline only once at a time"
            )


def _entered(spark: SparkSession, folder: str) -> list[_Number]:
    try:
        lines = [json.loads(row[0]) for row in spark.read.text(folder).collect()]
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return [(number, name) for number, name in lines]


def _folder(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/{_FOLDER}"
