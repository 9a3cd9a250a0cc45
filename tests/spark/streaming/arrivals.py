"""Messages on their way into a stream: packed rows in no order, and files that arrive one after another."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.results import METADATA

from waterclock.arrow import to_arrow
from waterclock.columnar.many_sources import ManySources, from_packed, nothing
from waterclock.columnar.packing import ROWS, pack
from waterclock.columnar.records import POSITIONED
from waterclock.message import Message

SCHEMA = (
    "source STRING, stream STRING, event_time BIGINT, receive_time BIGINT, ledger BIGINT, entry BIGINT, `index` INT"
)


def packed(messages: list[Message], chance: random.Random) -> list[pa.RecordBatch]:
    cut = chance.randrange(len(messages) + 1)
    pieces = [piece for piece in (messages[cut:], messages[:cut]) if piece]
    return list(pack([to_arrow(m, positions=True).select(METADATA) for m in pieces], POSITIONED))


def many(messages: list[Message], chance: random.Random) -> ManySources:
    every = [p.select(ROWS.names).cast(ROWS) for p in packed(messages, chance)]
    rows = [rows.slice(number, 1) for rows in every for number in range(len(rows))]
    chance.shuffle(rows)
    return from_packed(pa.Table.from_batches(rows), POSITIONED) if rows else nothing(POSITIONED)


def write(folder: Path, number: int, messages: list[Message]) -> None:
    table = pa.Table.from_batches([to_arrow(messages, positions=True)]).select(METADATA)
    path = folder / f"{number:03}.parquet"
    pq.write_table(table, folder / f".{path.name}")
    os.utime(folder / f".{path.name}", (1_000_000 + number, 1_000_000 + number))
    (folder / f".{path.name}").rename(path)
