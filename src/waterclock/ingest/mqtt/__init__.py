"""Connections to MQTT brokers: received messages wait in a bounded inbox and are acked after they were appended."""
