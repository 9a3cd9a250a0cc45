"""Connects to MQTT brokers. Received messages wait in a bounded inbox, and are acked after they were appended."""
