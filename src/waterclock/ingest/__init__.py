"""Moves messages from MQTT, Kafka and files into topics."""
