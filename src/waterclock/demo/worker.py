"""A worker process of the demo's main job: receives batches, checks each against its window, and acks it.

The worker prints the messages that it takes and acks, one JSON object per line, and waits for a line on stdin before it
handles them. So its parent can kill it while it holds messages. It exits when the parent is gone.
"""

from __future__ import annotations

import json
import sys

from waterclock.batching.batch import Batch
from waterclock.connection import connect
from waterclock.errors import LeaseLostError, SchemaError
from waterclock.tables.message_table import MessageTable

LIMIT = 10
"""Deliveries that a worker takes at a time."""


def check_batch(batch: Batch, group: str | None) -> None:
    """Check that the messages of a batch fit its window.

    Raises `SchemaError` if a message is of another source or outside the window.
    """
    if batch.source != group or not batch.messages:
        raise SchemaError(
            f"batch {batch.id} must not be empty, and its source must be its group {group!r}, got"
            f" {len(batch.messages)} messages of source {batch.source!r}"
        )
    # A cut window ends just before the message that cut it.
    last = batch.end - 1 if batch.reason in ("conflict", "boundary") else batch.end
    for message in batch.messages:
        if message.source != batch.source or not batch.start <= message.event_time <= last:
            raise SchemaError(
                f"each message of batch {batch.id} must have the batch's source, and a time from {batch.start} to"
                f" {last}, got {message}"
            )


def work(table: MessageTable, consumer: str) -> None:
    """Take, check and ack until every batch is acked, by this worker or another."""
    while True:
        deliveries = table.receive(limit=LIMIT, wait="100ms", consumer=consumer)
        if deliveries:
            _say(taken=len(deliveries), again=sum(delivery.epoch > 1 for delivery in deliveries))
            if not sys.stdin.readline():
                return
        for delivery in deliveries:
            check_batch(Batch.from_bytes(delivery.payload), delivery.group)
            try:
                delivery.ack()
            except LeaseLostError:
                continue  # the machine was slower than the lease: the worker that now has the message acks it
            _say(acked=1)
        if not deliveries and not _is_anything_left(table):
            return


def _is_anything_left(table: MessageTable) -> bool:
    stats = table.stats()
    return bool(stats.ready or stats.scheduled or stats.in_flight or stats.delayed)


def _say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _url, _name, _consumer = sys.argv[1:]
    with connect(_url) as _database:
        work(_database.table(_name), _consumer)
