"""Batches messages of several sources as they arrive, and closes the batches of sources that fall silent."""

import waterclock as wc

NOON = 1_782_907_200_000_000_000  # 2026-07-01T12:00:00Z in ns
MILLISECOND = 1_000_000

batcher = wc.BySource(lambda: wc.EventTimeBatcher(window="500ms", max_delay="400ms"))

arrivals = [  # source, stream, event time and receive time, in ms
    ("press-01", "load", 100, 120),
    ("oven-03", "heat", 110, 130),
    ("press-01", "heat", 150, 180),
    ("press-01", "load", 620, 640),
    ("press-01", "heat", 160, 650),  # late: received 490 ms after it happened, more than max_delay
]
closed = []
for source, stream, happened, received in arrivals:
    event_time, receive_time = NOON + happened * MILLISECOND, NOON + received * MILLISECOND
    closed += batcher.add(wc.Message(source, stream, event_time, receive_time=receive_time))

# No more messages arrive. A live program sleeps until batcher.next_deadline, then passes the time:
while (deadline := batcher.next_deadline) is not None:
    closed += batcher.advance(deadline)

for batch in closed:
    print(f"{batch.id:<22} {batch.reason:<9}", *(message.stream for message in batch.messages))
for message, reason in batcher.take_rejected():
    print(f"{message.source} {message.stream} is {reason}")
