"""Ingest from Kafka: partitions with checkpoints in the topic's own database."""
