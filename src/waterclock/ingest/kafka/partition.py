"""A partition from which this process appends, and the records that have arrived from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from waterclock.ingest.kafka.record import KafkaRule, Record
from waterclock.ingest.storing.partition_rows import PartitionRow

Place = tuple[str, int]
"""Name of a Kafka topic, and the partition's number."""


@dataclass(eq=False)
class Partition:
    """A partition that this process appends."""

    place: Place  # its name
    row: PartitionRow  # its row in the catalogue
    rule: KafkaRule  # maps its records
    committed: int  # offset of the first record that is not appended
    next: int  # offset of the first record that has not arrived
    is_lost: bool = False
    """Whether this process has abandoned it: taken by another process, revoked, or its topic was created again."""

    @property
    def name(self) -> str:
        """Its name, for people."""
        topic, number = self.place
        return f"partition {number} of {topic}"


class Arrived(NamedTuple):
    """A record on its way into a topic."""

    partition: Partition
    record: Record  # the record; without a value if it only marks how far the partition was read
    is_end: bool = False
    """Whether it marks the end of the partition: records before it may be markers of transactions, or compacted."""

    @property
    def size(self) -> int:
        """Approximate bytes that it takes."""
        return self.record.size

    @property
    def qos(self) -> int:
        """1: Kafka keeps records that are not appended."""
        return 1
