"""Retries failed messages after growing delays, and moves messages that cannot succeed to a dead-letter table."""

import tempfile
from pathlib import Path

import waterclock as wc
from waterclock.testing import Clock, drain

HAS_PAPER_AT = 3  # the attempt at which the printer has paper again

clock = Clock("2026-07-01T12:00:00Z")  # stands still until clock.move(); without clock=, the real time counts


def handle(delivery: wc.Delivery) -> None:
    """Print a label. The printer is out of paper for the first two attempts."""
    if delivery.payload == "label 3":
        raise wc.DeadLetter("label 3 has no address")  # another attempt cannot help
    if delivery.payload == "label 2" and delivery.epoch < HAS_PAPER_AT:
        raise wc.Retry(after="30s")
    print(f"printed {delivery.payload} at attempt {delivery.epoch}")


with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'shop.db'}", clock=clock) as db:
    labels = db.create_table("labels", payload="text", max_attempts=5)
    labels.put_many([{"payload": f"label {number}"} for number in (1, 2, 3)])

    for _ in range(3):
        drain(labels, handle)  # handles all messages that are due
        clock.move("1m")

    for letter in labels.dead_letters():
        print(f"dead: {letter['payload']}, because {letter['dead_reason']}")
    print("redriven:", labels.redrive())  # once you have fixed the cause
