"""Appends mapped records and dead letters, and stores the offsets, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from waterclock.database.backend import Backend
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.kafka.partition import Arrived, Partition
from waterclock.ingest.kafka.record import Record, letter_of, too_large
from waterclock.ingest.storing.append_plan import AppendPlan, Stored
from waterclock.ingest.storing.dead_letters import KEPT_OF_LARGE
from waterclock.ingest.storing.partition_rows import PartitionTakenError, PositionMovedError
from waterclock.ingest.stream_lags import StreamName
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import JointAppend


class KafkaStore:
    """The topics and partitions of an ingest. One thread appends."""

    def __init__(
        self,
        backend: Backend,
        topics: Mapping[str, Topic],  # the topics that the rules name
        dead_letters: Topic,  # the topic of messages that cannot be mapped
        most_payload: int,  # maximum bytes of a value
        clock: Callable[[], int] | None = None,  # the database's clock, ns
    ) -> None:
        self._backend = backend
        self._topics = topics
        self._dead_letters = dead_letters
        self._most_payload = most_payload
        self._clock = clock or backend.now_about
        self._most_at_once = backend.largest_value // 2
        self._latest: dict[StreamName, int] = {}

    def use(self, topics: Mapping[str, Topic]) -> None:
        """Append to these topics as well from now on. Safe from any thread."""
        self._topics = {**self._topics, **topics}  # records that were mapped for the others may be under way

    def append(self, batch: Sequence[Arrived]) -> Stored:
        """Append some records, and mark partitions that another process has taken as lost.

        Raises `UnavailableError` if the database is unavailable. Whether it committed is unknown; call it again with
        the same batch, before any other.
        """
        while True:
            plan = AppendPlan(self._clock(), self._dead_letters, self._latest.copy())
            after = self._map_all(plan, batch)
            if not after:
                return plan.stored
            try:
                self._commit(plan, after)
            except PositionMovedError:
                if not self._read_again(after):
                    continue
            for partition, offset in after.items():
                partition.committed = offset
            self._latest = plan.latest
            return plan.stored

    def _map_all(self, plan: AppendPlan, batch: Sequence[Arrived]) -> dict[Partition, int]:
        after: dict[Partition, int] = {}
        for partition, record, is_end in batch:
            if partition.is_lost or record.offset < partition.committed:
                continue
            after[partition] = record.offset + 1
            if record.value is None:
                plan.stored.skipped += not is_end
            elif (reason := too_large(record, self._most_payload)) is not None:
                kept = f"; the first {min(KEPT_OF_LARGE, len(record.value))} of the value are kept"
                plan.bury(letter_of(record, reason + kept, plan.received, KEPT_OF_LARGE))
            else:
                self._map(plan, partition, record)
        return after

    def _map(self, plan: AppendPlan, partition: Partition, record: Record) -> None:
        rule = partition.rule  # another thread may replace it
        try:
            messages = rule.map(record, plan.received)
        except InvalidArgumentError as error:
            plan.bury(letter_of(record, str(error), plan.received))
            return
        plan.stored.skipped += not messages
        plan.add(rule.rule.topic, messages)

    def _commit(self, plan: AppendPlan, after: Mapping[Partition, int]) -> None:
        def write_offsets(connection: SqlConnection) -> None:
            for partition in sorted(after, key=lambda each: each.row.key):  # in the same order, against deadlocks
                partition.row.write(connection, partition.committed, after[partition], plan.received)

        entries = plan.encoded(self._topics, self._most_at_once, times_given=True)
        JointAppend(self._backend).commit(entries, write_offsets)

    @staticmethod
    def _read_again(after: Mapping[Partition, int]) -> bool:
        """Read the partitions' offsets; return whether all are those that this append wrote."""
        for partition in after:
            try:
                partition.committed = partition.row.read()
            except PartitionTakenError:
                partition.is_lost = True
        return all(not partition.is_lost and partition.committed == offset for partition, offset in after.items())
