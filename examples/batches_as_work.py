"""Batches a topic and puts each batch into a message table, which delivers the batches of each machine in order."""

import tempfile
from pathlib import Path

import waterclock as wc
from waterclock.testing import drain

NOON = 1_782_907_200_000_000_000  # 2026-07-01T12:00:00Z in ns
MILLISECOND = 1_000_000


def handle(delivery: wc.Delivery) -> None:
    """Print the average of a batch."""
    batch = wc.Batch.from_bytes(delivery.payload)
    values = [float(message.payload) for message in batch.messages]
    print(f"{batch.id}: {len(values)} messages, {sum(values) / len(values):.1f} on average")


with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'factory.db'}") as db:
    topic = db.create_topic("telemetry")
    topic.append(
        [
            wc.Message(source, stream, NOON + at * MILLISECOND, payload, receive_time=NOON + (at + 20) * MILLISECOND)
            for source, stream, at, payload in [
                ("press-01", "load", 0, b"10"),
                ("press-01", "heat", 50, b"20"),
                ("oven-03", "heat", 60, b"7"),
                ("press-01", "load", 1_000, b"40"),
            ]
        ],
        producer="gateway-1",
        sequence=1,
    )

    work = db.create_table("work", id_type="text", groups="sequenced")
    for _ in range(2):  # if the program starts again, it puts the same batches, which changes nothing
        batcher = wc.BySource(lambda: wc.EventTimeBatcher(window="500ms", max_delay="400ms"))
        batches = [batch for message in topic.read() for batch in batcher.add(message)] + batcher.flush()
        for batch in batches:
            work.put(batch.to_bytes(), id=batch.id, group=batch.source)
        print("handled:", drain(work, handle))
