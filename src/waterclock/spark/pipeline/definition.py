"""The parts of a pipeline: source, batching, outputs for batches and rejected messages, and trigger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.topics.catalogue.damage_policy import OnDamage

By = Literal["event_time", "rate", "id"]
What = Literal["batches", "rejected"]
Kind = Literal["table", "topic", "parquet"]

AVAILABLE_NOW = "available now"
"""The trigger that reads the existing messages and ends."""


@dataclass(frozen=True)
class PipelineSource:
    """The topic that is read.

    Attributes
    ----------
    url, ledgers, topic
        The topic's place; ``ledgers`` is None if the default of `connect` is meant.
    start
        Options of the format for the start.
    max_messages_per_trigger
        About how many messages a micro-batch takes; None: half a million for each bucket of the state.
    fail_on_data_loss, on_damage
        The treatment of messages that were deleted before they were read or written, or are corrupt, lost or missing:
        the options of the format.
    """

    url: str = field(repr=False)  # it may hold a password
    ledgers: str | None = field(repr=False)
    topic: str
    start: Mapping[str, str]
    max_messages_per_trigger: int | None
    fail_on_data_loss: bool = True
    on_damage: OnDamage = "raise"

    @property
    def losses(self) -> dict[str, str]:
        """The options of the format for messages that cannot be read."""
        return {"failOnDataLoss": str(self.fail_on_data_loss).lower(), "onDamage": self.on_damage}


@dataclass(frozen=True)
class PipelineOutput:
    """One output of a pipeline.

    Attributes
    ----------
    name
        The producer name of this output in a topic; the target unless the file has one.
    what
        The batches, or the messages that are in no batch.
    kind, target
        A message table, a topic, or a folder of Parquet files, and its name.
    url, ledgers
        The database of the table or topic, as those of the source.
    """

    name: str
    what: What
    kind: Kind
    target: str
    url: str = field(repr=False)
    ledgers: str | None = field(repr=False)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, checked.

    Attributes
    ----------
    name
        The file's name without its ending; of several in one file, its name in the file.
    source, outputs
        The topic that is read, and the outputs.
    by, rule
        The way of batching, and the arguments of `waterclock.spark.event_time_batches`,
        `waterclock.spark.rate_aware_batches` or `waterclock.spark.id_batches`.
    adaptive
        The rule of the batch length, whose shortest is that of ``rule``; None if the length is fixed.
    checkpoint
        Folder or URL of the stream's progress.
    trigger
        How often there is a micro-batch, a duration, or `AVAILABLE_NOW`.
    state_partitions
        Number of partitions of the state; None: the cluster's cores at the creation of the checkpoint.
    state_buckets
        Number of buckets of sources in these; None: four per partition.
    """

    name: str
    source: PipelineSource
    by: By
    rule: Mapping[str, Any]
    adaptive: AdaptiveBatchLength | None
    outputs: tuple[PipelineOutput, ...]
    checkpoint: str
    trigger: str
    state_partitions: int | None
    state_buckets: int | None


def place_options(
    url: str, ledgers: str | None, url_name: str = "url", ledgers_name: str = "ledgers"
) -> dict[str, str]:
    """Return the options of the format ``waterclock`` that name a database."""
    return {url_name: url} | ({} if ledgers is None else {ledgers_name: ledgers})
