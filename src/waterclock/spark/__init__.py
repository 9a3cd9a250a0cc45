"""Runs pipelines on Apache Spark, with topics as sources, and message tables and topics as sinks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waterclock.spark.reading.mapping import as_messages, messages_from_kafka
    from waterclock.spark.reading.topic_table import table
    from waterclock.spark.registering import register
    from waterclock.spark.runtime.session import session
    from waterclock.spark.streaming.batch_messages import messages_of
    from waterclock.spark.streaming.batching import (
        batches_of,
        event_time_batches,
        event_time_outcomes,
        id_batches,
        id_outcomes,
        rate_aware_batches,
        rate_aware_outcomes,
        rejected_of,
    )
    from waterclock.spark.upkeep import archive_tables, compact_topic, seal_topic

__all__ = [
    "archive_tables",
    "as_messages",
    "batches_of",
    "compact_topic",
    "event_time_batches",
    "event_time_outcomes",
    "id_batches",
    "id_outcomes",
    "messages_from_kafka",
    "messages_of",
    "rate_aware_batches",
    "rate_aware_outcomes",
    "register",
    "rejected_of",
    "seal_topic",
    "session",
    "table",
]

_HOMES = {
    "register": "registering",
    "as_messages": "reading.mapping",
    "messages_from_kafka": "reading.mapping",
    "table": "reading.topic_table",
    "messages_of": "streaming.batch_messages",
    "archive_tables": "upkeep",
    "compact_topic": "upkeep",
    "seal_topic": "upkeep",
    "session": "runtime.session",
}


def __getattr__(name: str) -> object:
    # Imported on first use, because `waterclock doctor` looks for Java even without PySpark, and because each of
    # Spark's Python workers imports this package for a single module.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'streaming.batching')}"), name)
