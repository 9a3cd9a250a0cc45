"""Adapts the batch length of a pipeline, passes the length to the source, and records it for replays.

While a pipeline runs, `MeasuredLength` follows the time that micro-batches take, and writes the length to a file on the
driver. The source reads that file to plan a micro-batch, and adds the length to the micro-batch's offset, which Spark
writes to the checkpoint before the micro-batch begins. All messages carry the length to the tasks. So if a micro-batch
is repeated, its messages have the same batch length again, even if the file has changed.

Spark deletes old offsets. So before a micro-batch is written to the outputs, `LengthRecord` records its batch length in
the checkpoint. Each change of the length creates an empty file; the file's name holds the new length and the first
entry to which it applies. A replay reads the names, and stops at the end of the newest micro-batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from waterclock._support.quoting import quoted
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.columnar.streams.rate_stream import LengthFrom
from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.spark.pipeline.definition import Pipeline
from waterclock.spark.pipeline.fencing import newest_planned
from waterclock.spark.reading.source import FIRST
from waterclock.spark.runtime.filesystem import file_names, read_text, write_text
from waterclock.topics.finding.positions import Place

_FOLDER = "waterclock-lengths"
_NAME = re.compile(r"from=(\d+)-(\d+),length=(\d+)")


class MeasuredLength:
    """Follows the time that a running pipeline takes for a batch, and tells the source the length to use.

    That time is the time of a micro-batch divided by the windows that the busiest source closed in it. A micro-batch
    that closed none does not count: if Spark begins one right after another, they fill the time, however little there
    is to do.

    Parameters
    ----------
    length
        The rule of the length.
    file
        The file that the source reads.
    """

    def __init__(self, length: AdaptiveBatchLength, file: Path) -> None:
        self._length = length
        self._file = file
        self._rests_since: int | None = None
        self._write()

    @classmethod
    def of(cls, spark: SparkSession, pipeline: Pipeline, file: Path) -> MeasuredLength | None:
        """Begin, or continue from the checkpoint; None if the length is fixed."""
        if pipeline.adaptive is None:
            return None
        offset = _offset(spark, pipeline.checkpoint) or {}
        facts = offset["length"]["facts"] if "length" in offset else pipeline.adaptive.facts()
        return cls(AdaptiveBatchLength.from_facts(facts), file)

    @property
    def batch_length(self) -> int:
        """The length from the next micro-batch on, ns."""
        return self._length.batch_length

    def worked(self, took: int, windows: int, length: int) -> None:
        """Report a micro-batch: its time, ns, the windows that the busiest source closed, and its length, ns."""
        self._rests_since = None
        if windows and length == self.batch_length:  # otherwise it began before the last change
            self._length.processed(took // windows)
            self._write()

    def rested(self, now: int) -> None:
        """Report at a time, ns, that Spark has looked for messages and found none."""
        if self._rests_since is None:
            self._rests_since = now
        elif now - self._rests_since >= self.batch_length:
            self._rests_since = now
            self._length.nothing_came()
            self._write()

    def _write(self) -> None:
        hidden = self._file.with_suffix(".next")
        text = json.dumps({"batch_length": self.batch_length, "facts": self._length.facts()})
        hidden.write_text(text, encoding="ascii")
        hidden.replace(self._file)


class LengthRecord:
    """Records the lengths of a pipeline's micro-batches in its checkpoint.

    Parameters
    ----------
    pipeline
        The pipeline, whose length adapts.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._newest: LengthFrom | None = None

    def note(self, spark: SparkSession, micro_batch: int, check: Callable[[], None]) -> None:
        """Record the length of a micro-batch, before its outcomes are written.

        Raises `InvalidArgumentError` if a length of later messages is recorded: the checkpoint's offsets are older, and
        the messages would be in other batches than before.

        Parameters
        ----------
        micro_batch
            Its number.
        check
            Raises if a later run has entered, which may have recorded a later length.
        """
        length = _length(_offset(spark, self._pipeline.checkpoint, micro_batch))
        if length is None or length == self._newest:
            return
        for known in _recorded(spark, self._pipeline.checkpoint):
            if known != length and known[:2] >= length[:2]:
                check()
                raise InvalidArgumentError(
                    f"cannot run pipeline {quoted(self._pipeline.name)}: its checkpoint has a batch length for messages"
                    f" from {known.ledger}:{known.entry}:0 on, but does not show that these messages were read,"
                    " so they might be batched twice. Restore the whole checkpoint, or start with a new checkpoint and"
                    " other outputs"
                )
        name = f"from={length.ledger}-{length.entry},length={length.batch_length}"
        write_text(spark, f"{_folder(self._pipeline.checkpoint)}/{name}", "")
        self._newest = length


def recorded_lengths(spark: SparkSession, pipeline: Pipeline) -> tuple[list[LengthFrom], Place]:
    """Return the lengths of a pipeline's micro-batches, in order of the topic, and the end of the newest one.

    Raises `InvalidArgumentError` if the checkpoint has none, or lacks that of the first messages.
    """
    # In this order: a length that is recorded meanwhile belongs to messages behind that end.
    offset = _offset(spark, pipeline.checkpoint)
    newest = _length(offset)
    if offset is None or newest is None:
        raise InvalidArgumentError(
            f"cannot replay pipeline {quoted(pipeline.name)}: its batch length is adaptive, and its checkpoint"
            " holds no batch length yet. Run the pipeline first, or set batching.batch_length to a duration"
        )
    end = Place(Position.parse(offset["position"]), offset["ordinal"])
    found = sorted({*_recorded(spark, pipeline.checkpoint), newest})
    if found[0][:2] != FIRST[:2]:
        raise InvalidArgumentError(
            f"cannot replay pipeline {quoted(pipeline.name)}: its checkpoint lacks the batch length of messages before"
            f" {found[0].ledger}:{found[0].entry}:0. Restore the folder {_FOLDER} in the checkpoint"
        )
    return found, end


def refuse_remote(pipeline: Pipeline) -> None:
    """Raise InvalidArgumentError if the length of a pipeline adapts and the session is one of Spark Connect."""
    if pipeline.adaptive is not None and is_remote():
        raise InvalidArgumentError(
            f"batching.batch_length of pipeline {quoted(pipeline.name)} must be a duration with Spark Connect, got"
            " 'adaptive'. An adaptive length needs a file on the driver's machine, and direct access to Spark's"
            " filesystems"
        )


def _offset(spark: SparkSession, checkpoint: str, micro_batch: int | None = None) -> dict[str, Any] | None:
    """Read the end of a micro-batch, by default the newest one, from a checkpoint; None if it has no messages."""
    number = newest_planned(spark, checkpoint) if micro_batch is None else micro_batch
    if number < 0:
        return None
    lines = read_text(spark, f"{checkpoint.rstrip('/')}/offsets/{number}").splitlines()
    return next((json.loads(line) for line in lines if '"rule"' in line), None)


def _length(offset: dict[str, Any] | None) -> LengthFrom | None:
    """Return the length of the micro-batch that ends at an offset; None if it has no messages."""
    if offset is None or "length" not in offset:
        return None
    since = Position.parse(offset["length"]["since"])
    return LengthFrom(since.ledger, since.entry, offset["length"]["batch_length"])


def _recorded(spark: SparkSession, checkpoint: str) -> list[LengthFrom]:
    names = file_names(spark, _folder(checkpoint))
    return [LengthFrom(*map(int, found.groups())) for name in names if (found := _NAME.fullmatch(name))]


def _folder(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/{_FOLDER}"
