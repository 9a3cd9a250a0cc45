"""Stores a recording of real messages in a topic, finds a time in it, and reads from there."""

import tempfile
from pathlib import Path

import waterclock as wc
from waterclock.ingest.recording import read_recording

with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'factory.db'}") as db:
    topic = db.create_topic("telemetry")
    for part in read_recording().slice(0, 20_000).to_batches(max_chunksize=5_000):
        topic.append(part)
    topic.roll()
    print(f"sealed {topic.seal()} ledger")

    found = topic.find("2026-11-21T08:39:00Z", by="receive_time")
    print(f"08:39 begins at {found.position}")
    for message in topic.read(found.position, limit=3):
        print(message.source, message.stream, message.payload)
