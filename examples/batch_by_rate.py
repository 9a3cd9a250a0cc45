"""Batches streams of different rates: a batch closes once each stream has sent its last message of that second."""

import waterclock as wc

NOON = 1_782_907_200_000_000_000  # 2026-07-01T12:00:00Z in ns
SECOND = 1_000_000_000

pulses = [(NOON + number * SECOND // 14, "detector") for number in range(4 * 14)]
pulses += [(NOON + number * SECOND // 5, "monitor") for number in range(4 * 5)]
messages = [wc.Message("beamline", stream, time) for time, stream in sorted(pulses)]

batcher = wc.RateAwareBatcher("1s", gated={"detector", "monitor"})
while messages:
    polled, messages = messages[:5], messages[5:]  # a program adds the messages of a poll in one call
    for batch in batcher.add(polled):
        counts = {name: sum(message.stream == name for message in batch.messages) for name in ("detector", "monitor")}
        print(f"second {round((batch.start - NOON) / SECOND)}, closed by {batch.reason}: {counts}")
