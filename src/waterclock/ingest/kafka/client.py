"""Creates librdkafka's consumer for an ingest, and looks up the topics of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE  # isort: skip
from confluent_kafka.admin import AdminClient

from waterclock.errors import UnavailableError, WaterclockError
from waterclock.ingest.kafka.kafka_plan import KafkaCluster
from waterclock.ingest.kafka.record import Record

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # librdkafka logs each attempt to connect, of which events tell once

_ANSWER_IN = 10.0  # s

_QUEUED_KILOBYTES = 2_048
"""KiB that librdkafka fetches ahead; its default is 64 MiB, half of an ingest's memory limit."""

_QUEUED_RECORDS = 1_000
"""Records that librdkafka fetches ahead; its default is 100,000, and each takes some 600 bytes in addition to its
content.
"""

_FETCHED_BYTES = 64 << 10
"""Bytes that librdkafka fetches of one partition at a time; a larger record arrives alone. Its default, 1 MiB, holds
10,000 records of one partition, most of which it drops when that partition must wait for others.
"""

_FETCH_AGAIN_MS = 20
"""How long librdkafka waits to fetch again after its queue was full. Its default, a second, empties so short a queue:
100,000 records of 90 bytes took 18 s instead of 4.
"""

_headers = methodcaller("headers")
"""Reads headers.

For a name that is not UTF-8, confluent_kafka returns a broken list and sets an exception. A direct call in a loop skips
Python's check for that (seen with 3.11), and the process crashes. With this call, it is a SystemError.
"""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic of a cluster that has no ids, as before Kafka 2.8."""

_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001  # named so by confluent_kafka
        KafkaError._SSL,  # noqa: SLF001  # as above
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
UNAUTHORISED = KafkaError.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


class ClusterRefusedError(WaterclockError):
    """The cluster refuses this client."""


class TopicFacts(NamedTuple):
    """A topic of the cluster."""

    id: str  # its id, which distinguishes it from another topic of the same name
    partitions: Sequence[int]  # the numbers of its partitions
    error: int | None = None
    """Code of the error that prevents reading: `UNAUTHORISED`, `UNKNOWN` or another; None without one."""


class ClusterFacts(NamedTuple):
    """A cluster's id, and its topics."""

    id: str
    topics: Mapping[str, TopicFacts]


def open_consumer(cluster: KafkaCluster, note_error: Callable[[KafkaError], None]) -> Consumer:
    """Open a consumer that commits and resets no offsets, and reports the ends of partitions.

    Parameters
    ----------
    note_error
        Called during consumption with errors that concern no single partition.
    """
    properties: dict[str, Any] = {
        "queued.max.messages.kbytes": _QUEUED_KILOBYTES,
        "queued.min.messages": _QUEUED_RECORDS,
        "fetch.message.max.bytes": _FETCHED_BYTES,
        "fetch.queue.backoff.ms": _FETCH_AGAIN_MS,
        **cluster.properties,
        "bootstrap.servers": cluster.servers,
        # librdkafka requires a name even without a group; no group is joined, and no offset is committed.
        "group.id": cluster.group or "waterclock",
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "error_cb": note_error,
    }
    try:
        return Consumer(properties, logger=_log)
    except (AttributeError, KafkaException, TypeError, ValueError) as error:  # by the kind of property
        raise ClusterRefusedError(f"cannot use the Kafka properties: {text_of(error)}") from None


class TopicLookup:
    """Asks the cluster for its id and its topics, without waiting for the answer.

    Parameters
    ----------
    cluster
        The cluster.
    names
        The topics.
    """

    def __init__(self, cluster: KafkaCluster, names: Sequence[str]) -> None:
        self._servers = cluster.servers
        self._names = names
        self._admin = AdminClient({**cluster.properties, "bootstrap.servers": cluster.servers}, logger=_log)
        self._asked: list[Any] | None = None

    def ask(self) -> bool:
        """Ask, and return True, unless an answer is pending."""
        if self._asked is not None:
            return False
        answers = self._admin.describe_topics(TopicCollection(list(self._names)), request_timeout=_ANSWER_IN)
        self._asked = [self._admin.describe_cluster(request_timeout=_ANSWER_IN), answers]
        return True

    def answer(self) -> ClusterFacts | None:
        """Return the answer; None while it is pending, or without a question.

        Raises `UnavailableError` if the cluster does not answer. Raises `ClusterRefusedError` if it refuses this
        client.
        """
        if self._asked is None:
            return None
        cluster, topics = self._asked
        if not (cluster.done() and all(each.done() for each in topics.values())):
            return None
        self._asked = None
        try:
            found = cluster.result()
            return ClusterFacts(found.cluster_id, {name: self._facts(each) for name, each in topics.items()})
        except KafkaException as error:
            raise self._translated(error) from None

    def _facts(self, answer: Any) -> TopicFacts:
        try:
            topic = answer.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code in (UNAUTHORISED, UNKNOWN):
                return TopicFacts("", (), code)
            raise
        name = str(topic.topic_id)
        known = f"name:{topic.name}" if name == _NO_ID else name
        return TopicFacts(known, [each.id for each in topic.partitions])

    def _translated(self, error: KafkaException) -> WaterclockError:
        if is_refusal(error.args[0]):
            return ClusterRefusedError(f"cluster {self._servers} refused this client: {text_of(error)}")
        return UnavailableError(f"cluster {self._servers} does not respond: {text_of(error)}. Is a broker running?")


def is_refusal(error: KafkaError) -> bool:
    """Return whether an error is permanent."""
    return error.code() in _REFUSED or error.fatal()


def text_of(error: Exception | KafkaError) -> str:
    """Return the text of an error, for people."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    return (inner.str() if isinstance(inner, KafkaError) else str(inner)).strip()


def record_from(message: Message) -> Record:
    """Return a consumed message as a record."""
    kind, time = message.timestamp()
    fault: str | None = None
    topic: Any = message.topic()
    partition: Any = message.partition()
    offset: Any = message.offset()
    key: Any = message.key()
    value: Any = message.value()
    try:
        headers: Any = _headers(message) or ()
    except SystemError:
        headers, fault = (), "header names must be UTF-8; the record is kept without its headers"
    has_time = kind != TIMESTAMP_NOT_AVAILABLE
    is_append_time = kind == TIMESTAMP_LOG_APPEND_TIME
    return Record(topic, partition, offset, value, key, headers, time if has_time else None, is_append_time, fault)
