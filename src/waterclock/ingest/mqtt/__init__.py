"""Connections to MQTT brokers: what is received waits in a bounded inbox and is acked after it was appended."""
