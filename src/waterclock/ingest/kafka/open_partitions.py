"""The partitions of an ingest: their start positions, and which of them wait, are stopped or have ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError
from waterclock.ingest.kafka.alignment import Alignment
from waterclock.ingest.kafka.client import ClusterFacts, text_of
from waterclock.ingest.kafka.kafka_plan import KafkaPlan
from waterclock.ingest.kafka.partition import Partition, Place
from waterclock.ingest.storing.partition_rows import PartitionKey, PartitionRow
from waterclock.topics.topic import Topic

LEEWAY = 60_000
"""ms by which a producer's clock may have been behind: reading begins this much before a start time."""

_ANSWER_IN = 2.0  # s
_TRY_AGAIN_AFTER = 1.0  # s

_REST = 5
"""After an attempt to open a partition failed, so many times as long no other is tried: brokers that do not answer must
not keep this thread from the partitions that it reads."""

Say = Callable[..., None]
"""Takes an event's name, its text and whether it is a warning."""


class OpenPartitions:
    """The partitions that this process reads."""

    def __init__(
        self,
        backend: Backend,
        plan: KafkaPlan,  # the rules, and where to begin
        topics: Mapping[str, Topic],  # our topics by name
        consumer: Consumer,  # reads the partitions
        alignment: Alignment,  # holds their records
        say: Say,  # called with events
    ) -> None:
        self.facts = ClusterFacts("", {})
        self.open: dict[Place, Partition] = {}
        self.stopped: set[Place] = set()
        self.ended: set[Place] = set()
        self._backend = backend
        self._plan = plan
        self._topics = topics
        self._rules = {rule.kafka_topic: rule for rule in plan.rules}
        self._consumer = consumer
        self._alignment = alignment
        self._say = say
        self._pending: dict[Place, float] = {}
        self._rest_until = 0.0
        self._reported: set[Place] = set()
        self._paused: set[Place] = set()
        self._assigned: set[Place] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether partitions wait to be opened."""
        return bool(self._pending)

    def use(self, plan: KafkaPlan, topics: Mapping[str, Topic]) -> None:
        """Map with the rules of another plan.

        Partitions without a rule are abandoned. Those whose records go to another topic are opened again.
        """
        rules = {rule.kafka_topic: rule for rule in plan.rules}
        moved: list[Place] = []
        for place in [*self.open, *self._pending]:
            rule, partition = rules.get(place[0]), self.open.get(place)
            if rule is None:
                self.drop([place])
            elif partition is not None and rule.rule.topic != partition.rule.rule.topic:
                self.drop([place])
                moved.append(place)
            elif partition is not None:
                partition.rule = rule
        self._plan, self._rules, self._topics = plan, rules, topics
        self.wish(moved)

    def wish(self, places: Iterable[Place], at: float = 0.0) -> None:
        """Schedule partitions for opening at a monotonic time, unless they are open, stopped or have ended."""
        for place in places:
            if place not in self.open and place not in self.stopped and place not in self.ended:
                self._pending.setdefault(place, at)

    def drop(self, places: Collection[Place], *, revoked: bool = False) -> None:
        """Abandon partitions, with their records that are not appended.

        Parameters
        ----------
        revoked
            Whether the group asks for it: then it waits for an answer, even if nothing is left to unassign.
        """
        dropped: list[Place] = []
        for place in places:
            self._pending.pop(place, None)
            self.stopped.discard(place)
            self.ended.discard(place)
            partition = self.open.pop(place, None)
            if partition is not None:
                partition.is_lost = True
                self._alignment.forget(partition)
                dropped.append(place)
        self._unassign(dropped, even_none=revoked)

    def stop(self, partition: Partition) -> None:
        """Read no more of a partition, and keep it."""
        self.stopped.add(partition.place)
        self._end(partition)

    def end(self, partition: Partition) -> None:
        """Read no more of a partition, since it has reached the end of the plan."""
        self.ended.add(partition.place)
        self._end(partition)

    def skip_to(self, partition: Partition, offset: int) -> None:
        """Continue with a later record of a partition."""
        partition.next = offset
        self._unassign([partition.place])
        self._assign(partition)

    def open_pending(self) -> None:
        """Open waiting partitions; one whose leader or database is unavailable is retried later."""
        for place, due in list(self._pending.items()):
            began = moments.monotonic()
            if began < max(due, self._rest_until):
                continue
            del self._pending[place]
            try:
                self._open(place)
            except (KafkaException, UnavailableError) as error:
                now = moments.monotonic()
                self._rest_until = now + _REST * (now - began)
                self._pending[place] = now + _TRY_AGAIN_AFTER  # behind the others
                if place not in self._reported:
                    self._reported.add(place)
                    topic, number = place
                    self._say("waits", f"cannot read partition {number} of {topic} yet: {_why(error)}", warns=True)
            else:
                self._reported.discard(place)

    def pause(self, wanted: Collection[Partition]) -> None:
        """Pause these partitions and resume the others. The consumer keeps polling, so it stays in its group."""
        places = {partition.place for partition in wanted} & self.open.keys() - self.stopped - self.ended
        if more := places - self._paused:
            self._consumer.pause([TopicPartition(*place) for place in more])
        if less := (self._paused - places) & self.open.keys():
            self._consumer.resume([TopicPartition(*place) for place in less])
        self._paused = places

    def offset_range(self, place: Place) -> tuple[int, int]:
        """Return the broker's first offset, and the one after its last; KafkaException if the broker is unavailable."""
        return self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_IN)

    def _open(self, place: Place) -> None:
        topic, number = place
        rule = self._rules[topic]
        key = PartitionKey(
            self._topics[rule.rule.topic].storage.topic_id, self.facts.id, self.facts.topics[topic].id, number
        )
        start = PartitionRow.read_offset(self._backend, key)
        if start is None:
            start = self._first(place, key)
        row, offset = PartitionRow.take(self._backend, key, topic, start)
        partition = Partition(place, row, rule, offset, offset)
        self.open[place] = partition
        self._alignment.track(partition, moments.monotonic())
        self._assign(partition)

    def _first(self, place: Place, key: PartitionKey) -> int:
        """Find the first offset of a partition that was never appended."""
        low, high = self.offset_range(place)
        topic, number = place
        if PartitionRow.was_created_again(self._backend, key, topic):
            self._say("topic_recreated", f"topic {topic} was created again: its partition {number} begins at its first")
            return low
        match self._plan.start:
            case "earliest":
                return low
            case "latest":
                return high
            case moment:
                asked = TopicPartition(topic, number, max(moment // 1_000_000 - LEEWAY, 0))
                [found] = self._consumer.offsets_for_times([asked], timeout=_ANSWER_IN)
                if found.error is not None:
                    raise KafkaException(found.error)
                return found.offset if found.offset >= 0 else high

    def _assign(self, partition: Partition) -> None:
        topic, number = partition.place
        self._consumer.incremental_assign([TopicPartition(topic, number, partition.next)])
        self._assigned.add(partition.place)

    def _end(self, partition: Partition) -> None:
        self._alignment.end(partition)
        self._unassign([partition.place])

    def _unassign(self, places: Collection[Place], *, even_none: bool = False) -> None:
        """Unassign those of some partitions that are assigned: librdkafka fails for others."""
        assigned = self._assigned.intersection(places)
        self._assigned -= assigned
        self._paused.difference_update(places)
        if assigned or even_none:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in assigned])


def _why(error: KafkaException | UnavailableError) -> str:
    inner = error.args[0]
    if isinstance(inner, KafkaError) and inner.code() == KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001  # named so
        return "it has no leader"
    return text_of(error)
