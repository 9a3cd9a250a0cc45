"""Assigns every row of an Arrow table to its batch, millions of rows a second."""

import pyarrow as pa

import waterclock as wc

NOON = 1_782_907_200_000_000_000  # 2026-07-01T12:00:00Z in ns
MILLISECOND = 1_000_000

rows = pa.table(
    {
        "source": ["press-01"] * 4,
        "stream": ["load", "heat", "load", "heat"],
        "event_time": [NOON + at * MILLISECOND for at in (100, 150, 620, 160)],
        "receive_time": [NOON + at * MILLISECOND for at in (120, 180, 640, 650)],
        "value": [17, 64, 18, 65],  # other columns do not change
    }
)
assigned = wc.assign_batches(rows, window="500ms", max_delay="400ms")
for row in assigned.to_pylist():
    start = None if row["batch_start"] is None else (row["batch_start"] - NOON) // MILLISECOND
    print(row["stream"], row["value"], f"batch of {start} ms", row["rejected"] or "")
