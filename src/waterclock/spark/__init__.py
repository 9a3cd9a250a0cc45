"""The pipeline on Apache Spark: topics as a source, batching as an operator, message tables and topics as sinks."""

from waterclock.spark.batching import batches_of, event_time_batches, event_time_outcomes, rejected_of
from waterclock.spark.registering import register

__all__ = ["batches_of", "event_time_batches", "event_time_outcomes", "register", "rejected_of"]
