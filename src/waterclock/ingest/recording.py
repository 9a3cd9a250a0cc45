"""Opens the recording that ships with Waterclock: real traffic of four collectd daemons."""

from __future__ import annotations

from importlib.resources import files

import pyarrow as pa
import pyarrow.parquet as pq

from waterclock.ingest.mapping.collectd import parse_columns


def read_recording() -> pa.Table:
    """Read the 200,000 messages of the recording, in the order in which they were received.

    Its README, in the same folder, describes how it was made. For entries of many messages take
    ``read_recording().to_batches(max_chunksize=…)``.

    Returns
    -------
    pyarrow.Table
        In `waterclock.arrow.MESSAGE_SCHEMA`; publish_time is null, because collectd does not send it.
    """
    recording = files("waterclock.ingest") / "recordings" / "collectd.parquet"
    with recording.open("rb") as file:
        raw = pq.read_table(file)
    return parse_columns(raw["topic"], raw["payload"], raw["receive_time"])
