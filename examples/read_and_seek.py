"""Reads a topic with a subscription, which stores the reading position, and goes back to an earlier time."""

import tempfile
from pathlib import Path

import waterclock as wc

with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'factory.db'}") as db:
    topic = db.create_topic("telemetry")
    for minute in range(5):
        at = f"2026-07-01T12:0{minute}:00Z"
        topic.append([wc.Message("press-01", "load", at, str(minute).encode(), publish_time=at)])

    billing = topic.subscribe("billing", start="earliest")
    first = billing.read(limit=3)
    billing.commit()  # once the messages are handled, because uncommitted messages are read again
    print("read", [message.payload for message in first], "remaining", billing.backlog.messages)

    billing.seek("2026-07-01T12:01:00Z")
    print("again from 12:01", [message.payload for message in billing.read()])
