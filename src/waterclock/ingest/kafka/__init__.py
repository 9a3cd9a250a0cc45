"""Ingests from Kafka. The progress of each partition is stored in the database of the topic."""
