"""Reads the newest records of the topics of an ingest, for a dry run. Changes nothing in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import NotFoundError, UnavailableError
from waterclock.ingest.kafka.client import (
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
from waterclock.ingest.kafka.record import Record

_LOOK_EVERY = 0.05  # s
_ANSWER_IN = 2.0


def newest_records(plan: KafkaPlan, count: int, seconds: float) -> Iterator[Record]:
    """Yield the newest records of each partition, or the next ones if it is empty; at most so many, for so long.

    Raises `NotFoundError` if a Kafka topic does not exist. Raises `ClusterRefusedError` if the cluster refuses this
    client or a topic. Raises `UnavailableError` if it does not answer.
    """
    until = moments.monotonic() + seconds
    errors: list[KafkaError] = []
    consumer = open_consumer(replace(plan.cluster, group=None), errors.append)
    try:
        facts = _asked(plan)
        places = [(name, number) for name, topic in facts.topics.items() for number in topic.partitions]
        parts: list[Any] = []
        for place in places:
            low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_IN)
            parts.append(TopicPartition(*place, max(low, high - count)))
        consumer.incremental_assign(parts)
        seen, at_end = 0, set[tuple[str | None, int | None]]()
        while seen < count and moments.monotonic() < until and not (seen and len(at_end) == len(places)):
            for message in consumer.consume(count - seen, _LOOK_EVERY):
                error = message.error()
                if error is None:
                    seen += 1
                    yield record_from(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # named so by confluent_kafka
                    at_end.add((message.topic(), message.partition()))
            if refused := next(filter(is_refusal, errors), None):
                raise ClusterRefusedError(f"cluster {plan.cluster.servers} refused this client: {text_of(refused)}")
    except KafkaException as error:
        raise UnavailableError(f"cluster {plan.cluster.servers} does not respond: {text_of(error)}") from None
    finally:
        consumer.close()


def _asked(plan: KafkaPlan) -> ClusterFacts:
    lookup = TopicLookup(plan.cluster, [rule.kafka_topic for rule in plan.rules])
    lookup.ask()
    while (facts := lookup.answer()) is None:
        moments.sleep(_LOOK_EVERY)
    for name, topic in facts.topics.items():
        if topic.error == UNKNOWN:
            raise NotFoundError(f"no Kafka topic named {quoted(name)}")
        if topic.error is not None:
            raise ClusterRefusedError(
                f"cannot read Kafka topic {quoted(name)}: this client is not authorised. Grant this client READ and"
                " DESCRIBE"
            )
    return facts
