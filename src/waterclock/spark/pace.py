"""Limits how many batches a task encodes at once, by messages and bytes, however many rows Spark passes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from waterclock.columnar.packing import row_counts

MESSAGES_AT_ONCE = 2**17
"""Maximum messages that a task lays out at once."""

BYTES_AT_ONCE = 64 << 20
"""Approximate bytes of messages with payloads that a task looks up at once: those of a row group of a file."""

MOST_BYTES = 2 * BYTES_AT_ONCE
"""Bytes of messages at which a look-up is abandoned and halved: earlier messages may have been far smaller."""

FIRST_LOOK = 2**10
"""Messages to look up first, to estimate the size of the others."""


class Pace:
    """Combines batches up to the messages that a task may have in memory, and cuts them there.

    Rows that come in order of position then share most of their reads of a file.
    """

    def __init__(self, most: int = FIRST_LOOK) -> None:
        self._most = most

    def learn(self, size: int, messages: int) -> None:
        """Choose the number of messages of the next rows from the bytes of some messages."""
        self._most = min(max(BYTES_AT_ONCE // max(size // max(messages, 1), 1), 1), MESSAGES_AT_ONCE)

    def runs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of at most that many messages, or a single row."""
        held: list[pa.RecordBatch] = []
        messages = 0
        for batch in batches:
            first = 0
            for row, count in enumerate(row_counts(batch).tolist()):
                if messages and messages + count > self._most:
                    held.append(batch.slice(first, row - first))
                    yield pa.concat_batches(held)
                    held, messages, first = [], 0, row
                messages += count
            held.append(batch.slice(first))
        if any(batch.num_rows for batch in held):
            yield pa.concat_batches(held)
