"""Runs an ingest from Kafka: one thread reads partitions, and another appends their records with their offsets."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.connection import Database
from waterclock.errors import NotFoundError, UnavailableError
from waterclock.ingest.appender import Appender
from waterclock.ingest.inbox import Inbox
from waterclock.ingest.kafka.alignment import Alignment
from waterclock.ingest.kafka.client import (
    UNAUTHORISED,
    UNKNOWN,
    ClusterFacts,
    ClusterRefusedError,
    TopicLookup,
    is_refusal,
    open_consumer,
    record_from,
    text_of,
)
from waterclock.ingest.kafka.kafka_plan import KafkaPlan
from waterclock.ingest.kafka.kafka_store import KafkaStore
from waterclock.ingest.kafka.open_partitions import OpenPartitions
from waterclock.ingest.kafka.partition import Arrived, Partition, Place
from waterclock.ingest.kafka.record import Record
from waterclock.ingest.progress import Event, IngestProgress, Tell
from waterclock.ingest.storing.dead_letters import check_most_payload
from waterclock.ingest.storing.partition_rows import PartitionTakenError

_INBOX_BYTES, _INBOX_RECORDS = 2 << 20, 1_000
"""Bytes and records that wait for their append: less than from MQTT, since Kafka keeps unread records."""

_AT_ONCE = 500
_WAIT = 0.02
"""Seconds in which records are collected; they should be readable within 250 ms."""

LOOK_EVERY = 10.0
"""Seconds between two checks of the cluster for new partitions, and for topics that were deleted or created again."""

_SILENT = 0.1  # s; without known topics there are no records to consume

_HOLD = 1.0
"""Seconds without room in the inbox after which the partitions are paused. Earlier, this thread only waits: librdkafka
drops its queue at a pause and needs 0.3 s to fetch again.
"""

_NO_OFFSET = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001  # the client's names
_DOWN = frozenset({KafkaError._ALL_BROKERS_DOWN})  # noqa: SLF001  # as above


class KafkaIngest:
    """Moves records from Kafka into topics until it is stopped, or all partitions have reached the end of the plan.

    Parameters
    ----------
    database
        The database of the topics.
    plan
        The cluster, the rules and the limits.
    tell
        Called with each event, from any thread.
    """

    def __init__(self, database: Database, plan: KafkaPlan, tell: Tell) -> None:
        self.progress = IngestProgress()
        self._database = database
        self._backend = database.backend
        self._plan = plan
        self._tell = tell
        self._new_plan: Callable[[], KafkaPlan] | None = None
        topics = plan.open_topics(database)
        check_most_payload(plan.most_payload, database.backend.largest_value)
        dead_letters = database.create_topic(plan.dead_letters, exist_ok=True)
        self._store = KafkaStore(database.backend, topics, dead_letters, plan.most_payload)
        self._inbox = Inbox[Arrived](_INBOX_BYTES, _INBOX_RECORDS)
        self._appender = Appender(database.backend, self._inbox, self._store.append, self.progress, tell)
        self.lags = self._appender.lags
        self._topics = topics
        self._alignment = Alignment()
        self._ready: deque[Arrived] = deque()
        self._moved_at = 0.0
        self.progress.waiting = lambda: len(self._inbox) + len(self._ready)
        self._at_end: set[Place] = set()
        self._errors: deque[KafkaError] = deque()
        self._unusable: dict[str, int] = {}
        self._subscribed: list[str] = []
        self._look_at = 0.0
        self._asked_at = 0.0
        self._in_doubt: dict[Partition, float] = {}
        self._is_connected: bool | None = None
        self._failure: Exception | None = None
        self._wishes_stop = False

    def stop(self) -> None:
        """Stop soon: append received records, and leave the rest to Kafka. Safe in a signal handler."""
        self._wishes_stop = True

    def reload(self, read: Callable[[], KafkaPlan]) -> None:
        """Switch to the rules of another plan. Safe in a signal handler."""
        self._new_plan = read

    def run(self) -> None:
        """Read until it is stopped.

        Raises `NotFoundError` if a Kafka topic does not exist at the start. Raises `ClusterRefusedError` if the cluster
        refuses this client, or all partitions are stopped. Raises `PartitionTakenError` if another process has taken a
        partition, and no group is set. Raises `WaterclockError` if the database refuses an append permanently.
        """
        consumer = open_consumer(self._plan.cluster, self._errors.append)
        self._partitions = OpenPartitions(self._backend, self._plan, self._topics, consumer, self._alignment, self._say)
        appending = threading.Thread(target=self._append_all, name="waterclock-ingest-append", daemon=True)
        moments.start(appending)
        try:
            self._read_all(consumer, self._lookup())
        finally:
            if self._wishes_stop or self._failure is not None:
                self._appender.stop()
            self._inbox.close()
            moments.join(appending)
            consumer.close()
        if self._failure is not None:
            raise self._failure
        self._say("stopped", "stopped", facts=self.progress.facts())

    def _append_all(self) -> None:
        try:
            self._appender.run()
        except Exception as error:  # noqa: BLE001  # a thread has no caller to raise to: the main thread does
            self._failure = error

    def _read_all(self, consumer: Consumer, lookup: TopicLookup) -> None:
        while not self._wishes_stop and self._failure is None and not self._has_ended():
            if self._new_plan is not None:
                lookup = self._reloaded() or lookup
            self._look(consumer, lookup)
            self._partitions.open_pending()
            if self._is_held():
                self._inbox.wait_for_take(_WAIT)
            else:
                for message in consumer.consume(_AT_ONCE, _WAIT if self._partitions.open else _SILENT):
                    self._take(message)
            while self._errors:
                self._note_error(self._errors.popleft())
            self._end_by_clock()
            self._hand_over()
            self._drop_taken()
            self.progress.stopped = len(self._partitions.stopped)
            self._appender.report_lags()

    def _lookup(self) -> TopicLookup:
        return TopicLookup(self._plan.cluster, [rule.kafka_topic for rule in self._plan.rules])

    def _reloaded(self) -> TopicLookup | None:
        """Use the rules of the new plan, and return what looks for its topics; None if the plan cannot be used."""
        read, self._new_plan = self._new_plan, None
        assert read is not None  # noqa: S101  # the caller looked
        try:
            plan = read()
            topics = plan.open_topics(self._database)
        except Exception as error:  # noqa: BLE001  # a mistake in the file must not end the running ingest
            self._say(
                "not_reloaded", f"cannot reload the file, so the ingest keeps its current rules: {error}", warns=True
            )
            return None
        is_other = replace(plan, rules=self._plan.rules, start=self._plan.start) != self._plan
        self._plan = replace(self._plan, rules=plan.rules)
        self._topics = topics
        self._store.use(topics)
        self._partitions.use(self._plan, topics)
        self._say("reloaded", "reloaded; all but [[subscribe]] changes at the next start" if is_other else "reloaded")
        self._look_at = 0.0
        return self._lookup()

    def _has_ended(self) -> bool:
        partitions = self._partitions
        if self._ready or partitions.is_waiting or not partitions.open:
            return False
        if partitions.stopped >= partitions.open.keys():
            raise ClusterRefusedError(
                "all partitions are stopped, because the next records were deleted on the brokers. See the warnings"
                " above"
            )
        return self._plan.until is not None and partitions.ended | partitions.stopped >= partitions.open.keys()

    def _look(self, consumer: Consumer, lookup: TopicLookup) -> None:
        """Query the cluster from time to time, and process the answer when it has arrived."""
        if moments.monotonic() >= self._look_at:
            self._look_at = moments.monotonic() + LOOK_EVERY
            if lookup.ask():
                self._asked_at = moments.monotonic()
        try:
            facts = lookup.answer()
        except UnavailableError as error:
            self._look_at = moments.monotonic() + 1.0
            self._note_connected(False, str(error))
            return
        if facts is not None:
            self._note_facts(consumer, facts)

    def _note_facts(self, consumer: Consumer, facts: ClusterFacts) -> None:
        partitions = self._partitions
        is_first, before, partitions.facts = not partitions.facts.id, partitions.facts, facts
        self._note_connected(True, f"connected to cluster {facts.id}")
        usable: list[str] = []
        for name, topic in facts.topics.items():
            known = before.topics.get(name)
            here = [place for place in partitions.open if place[0] == name]
            if topic.error is not None:
                self._note_unusable(name, topic.error, is_first=is_first)
                partitions.drop(here)
                continue
            self._unusable.pop(name, None)
            usable.append(name)
            if known is not None and known.id and known.id != topic.id:
                partitions.drop(here)
                partitions.wish(here)
            if self._plan.cluster.group is None:
                partitions.wish((name, number) for number in topic.partitions)
        self._judge_lost()
        if is_first and not usable:
            raise ClusterRefusedError(
                f"cannot read any of the topics from cluster {self._plan.cluster.servers}. Grant this client READ and"
                " DESCRIBE on these topics"
            )
        if self._plan.cluster.group is not None and usable != self._subscribed:
            self._subscribed = usable
            consumer.subscribe(usable, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _note_unusable(self, name: str, code: int, *, is_first: bool) -> None:
        if is_first and code == UNKNOWN:
            raise NotFoundError(f"no Kafka topic named {quoted(name)}")
        if self._unusable.get(name) == code:
            return
        self._unusable[name] = code
        reason = {UNAUTHORISED: "this client may not read it", UNKNOWN: "it does not exist any more"}.get(
            code, f"error {code}"
        )
        self._say(
            "topic_dropped",
            f"Kafka topic {name} is left out: {reason}. The ingest will look for this topic again",
            warns=True,
        )

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        consumer.incremental_assign([])  # opened later, each at its own offset
        self._partitions.wish((each.topic, each.partition) for each in partitions)
        self._say("assigned", f"the group assigned {len(partitions)} partitions")

    def _revoked(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._partitions.drop([(each.topic, each.partition) for each in partitions], revoked=True)
        self._say("revoked", f"the group revoked {len(partitions)} partitions")

    def _lost(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._partitions.drop([(each.topic, each.partition) for each in partitions], revoked=True)
        self._say("revoked", f"lost {len(partitions)} partitions to other members of the group", warns=True)

    def _take(self, message: Message) -> None:
        place: Any = message.topic(), message.partition()
        partitions = self._partitions
        if place in partitions.ended or place in partitions.stopped:
            return  # fetched before that
        partition = partitions.open.get(place)
        error = message.error()
        if error is not None:
            self._note_error(error, partition, message.offset() or 0)
            return
        offset: Any = message.offset()
        if partition is None or partition.is_lost or offset < partition.next:
            return
        record = record_from(message)
        plan = self._plan
        if plan.until is not None and record.time is not None and record.time * 1_000_000 >= plan.until:
            self._partitions.end(partition)
            return
        partition.next = offset + 1
        self.progress.received += 1
        self._at_end.discard(place)
        self._alignment.add(Arrived(partition, record), moments.monotonic())

    def _note_error(self, error: KafkaError, partition: Partition | None = None, offset: int = 0) -> None:
        code = error.code()
        if is_refusal(error):
            raise ClusterRefusedError(f"cluster {self._plan.cluster.servers} refused this client: {text_of(error)}")
        if code in _DOWN:
            self._note_connected(False, f"cluster {self._plan.cluster.servers} does not respond: {text_of(error)}")
        elif partition is None:
            self._look_at = min(self._look_at, moments.monotonic() + 1.0)
        elif code == KafkaError._PARTITION_EOF:  # noqa: SLF001  # named so by confluent_kafka
            self._note_end(partition, offset)
        elif code in _NO_OFFSET:
            # The next offset may be that of a topic that was deleted and created again: look at its id first.
            self._in_doubt[partition] = self._look_at = moments.monotonic()
        elif code in (UNAUTHORISED, UNKNOWN):
            self._look_at = moments.monotonic()
        else:
            self._say("broker_error", f"{partition.name}: {text_of(error)}", warns=True)

    def _note_end(self, partition: Partition, offset: int) -> None:
        self._note_connected(True, f"connected to cluster {self._partitions.facts.id}")
        partition.next = max(partition.next, offset)
        self._at_end.add(partition.place)
        end = Record(*partition.place, partition.next - 1, None)
        self._alignment.add(Arrived(partition, end, is_end=True), moments.monotonic())

    def _judge_lost(self) -> None:
        """Decide about partitions without their next offset that were noticed before the cluster was queried."""
        for partition, noticed in list(self._in_doubt.items()):
            if partition.is_lost:
                del self._in_doubt[partition]
            elif noticed < self._asked_at:
                del self._in_doubt[partition]
                self._note_lost(partition)
            else:
                self._look_at = 0.0

    def _note_lost(self, partition: Partition) -> None:
        """Stop a partition whose next records the broker has lost, or skip them."""
        try:
            low, high = self._partitions.offset_range(partition.place)
        except KafkaException as error:
            self._say("broker_error", f"{partition.name}: {text_of(error)}", warns=True)
            self._partitions.skip_to(partition, partition.next)  # fails again until a leader answers
            return
        at = partition.next
        if low <= at <= high:  # these records exist by now
            self._partitions.skip_to(partition, at)
            return
        if at > high:
            text = f"{partition.name} ends at offset {high}, but {at} comes next: the brokers lost later records"
        else:
            text = f"offsets {at} to {low - 1} of {partition.name} were deleted by the brokers, and were not appended"
        facts: dict[str, object] = {"partition": partition.place[1], "kafka_topic": partition.place[0]}
        facts |= {"lost_from": min(at, high), "lost_to": max(at, low) - 1}
        if self._plan.lost == "skip" and at < low:
            self._say("records_lost", f"{text}. The ingest skips these records", facts=facts, warns=True)
            skipped = Record(*partition.place, low - 1, None)
            self._alignment.add(Arrived(partition, skipped, is_end=True), moments.monotonic())
            self._partitions.skip_to(partition, low)
            return
        remedy = (
            "To continue after these records, start the ingest with lost = skip"
            if at < low
            else "Is this the right cluster?"
        )
        self._say("records_lost", f"{text}. This partition is stopped. {remedy}", facts=facts, warns=True)
        self._partitions.stop(partition)

    def _end_by_clock(self) -> None:
        """End partitions that were read to their end after the time of the plan's end."""
        if self._plan.until is None or not self._at_end or self._backend.now_about() < self._plan.until:
            return
        for place in self._at_end & self._partitions.open.keys() - self._partitions.ended:
            self._partitions.end(self._partitions.open[place])

    def _hand_over(self) -> None:
        """Move records into the inbox, in the order of their times; pause partitions whose records do not fit."""
        self._ready.extend(self._alignment.take(moments.monotonic()))
        while self._ready and (self._ready[0].partition.is_lost or self._inbox.put(self._ready[0])):
            self._ready.popleft()
            self._moved_at = moments.monotonic()
        is_stuck = self._ready and not self._is_held()
        self._partitions.pause(self._partitions.open.values() if is_stuck else self._alignment.full())

    def _is_held(self) -> bool:
        """Return whether records wait for room in the inbox that they had a moment ago."""
        return bool(self._ready) and moments.monotonic() < self._moved_at + _HOLD

    def _drop_taken(self) -> None:
        taken = [partition for partition in self._partitions.open.values() if partition.is_lost]
        if not taken:
            return
        text = f"another process has taken {taken[0].name}"
        if self._plan.cluster.group is None:
            raise PartitionTakenError(
                f"cannot append: {text}. Stop one of the two processes, or run both in the same group"
            )
        # A member that the group has replaced may take a partition until it notices, and so may an ingest without the
        # group. As long as the group assigns it to this member, it is taken back.
        self._say("revoked", f"{text}. This process takes it back in {LOOK_EVERY:g} s", warns=True)
        places = [partition.place for partition in taken]
        self._partitions.drop(places)
        self._partitions.wish(places, moments.monotonic() + LOOK_EVERY)

    def _note_connected(self, is_connected: bool, text: str) -> None:  # the state itself
        if self._is_connected != is_connected:
            self._is_connected = is_connected
            self.progress.connected = int(is_connected)
            self._say("connected" if is_connected else "disconnected", text, warns=not is_connected)

    def _say(self, name: str, text: str, *, facts: dict[str, object] | None = None, warns: bool = False) -> None:
        self._tell(Event(name, text, facts or {}, warns))
