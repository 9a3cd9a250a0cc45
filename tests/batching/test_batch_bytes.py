"""The bytes of a batch: plain Arrow to other tools, guarded by a checksum to us."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bytes.forms import batches

from waterclock.arrow import POSITIONED_SCHEMA, to_arrow, to_ipc
from waterclock.batching.batch import Batch
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.checksum import trailer
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message, Position

BATCHES = batches()
BATCH = BATCHES[0]
DATA = BATCH.to_bytes()
KEY = b"waterclock.batch"


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.id)
def test_a_batch_comes_back_whole_from_its_bytes(batch: Batch) -> None:
    assert Batch.from_bytes(batch.to_bytes()) == batch


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.id)
def test_other_tools_read_a_batch_as_a_plain_arrow_stream(batch: Batch) -> None:
    with pa.ipc.open_stream(batch.to_bytes()) as reader:
        table = reader.read_all()
    assert table.schema == POSITIONED_SCHEMA
    assert json.loads(table.schema.metadata[KEY])["source"] == batch.source
    assert table.num_rows == len(batch.messages)


def test_equal_batches_have_equal_bytes() -> None:
    assert [batch.to_bytes() for batch in batches()] == [batch.to_bytes() for batch in BATCHES]


@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_damage_wherever_it_is(place: int, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[place] ^= 1 << bit
    with pytest.raises(DamagedError):
        Batch.from_bytes(bytes(damaged))


@given(st.integers(4, len(DATA) - 1))
def test_a_batch_that_was_cut_is_damaged(length: int) -> None:
    with pytest.raises(DamagedError):
        Batch.from_bytes(DATA[:length])


def test_a_batch_without_its_checksum_is_damaged() -> None:
    for data in (DATA[:-8], DATA[:-8] + bytes(8), DATA + b"x"):
        with pytest.raises(DamagedError):
            Batch.from_bytes(data)


def with_facts(columns: pa.RecordBatch | None = None, **changes: object) -> bytes:
    """Write a batch with other facts or columns, and a checksum that matches them."""
    facts: dict[str, Any] = {"source": "s", "start": 1, "end": 2, "closed_at": 3, "reason": "timeout"} | changes
    columns = to_arrow(BATCH.messages, positions=True) if columns is None else columns
    stream = to_ipc(columns.replace_schema_metadata({KEY: json.dumps(facts).encode()}))
    return stream + trailer(b"WCB1", stream)


@pytest.mark.parametrize(
    "changes", [{"source": 1}, {"start": None}, {"end": 1.5}, {"closed_at": 2**64}, {"reason": ["timeout"]}]
)
def test_facts_that_were_never_written_are_damage(changes: dict[str, object]) -> None:
    with pytest.raises(DamagedError, match="the batch is corrupt"):
        Batch.from_bytes(with_facts(**changes))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cannot read 0 bytes: they are not an Arrow IPC stream"),
        (b"garbage", "cannot read 7 bytes: they are not an Arrow IPC stream"),
        (to_ipc(to_arrow([])), "are not a batch"),
        (EventTimeBatcher("1s", "1s").state(), "are not an Arrow IPC stream"),
        (with_facts(reason="bored"), "its close reason 'bored' is unknown to this version"),
        (with_facts(to_arrow(BATCH.messages)), "cannot read messages"),
    ],
)
def test_bytes_of_another_kind_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        Batch.from_bytes(data)


def test_other_buffers_are_read_and_what_is_no_buffer_is_refused() -> None:
    assert Batch.from_bytes(memoryview(DATA)) == BATCH  # type: ignore[arg-type]
    assert Batch.from_bytes(bytearray(DATA)) == BATCH  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="data must be the bytes of a batch, got 'text'"):
        Batch.from_bytes("text")  # type: ignore[arg-type]


def test_a_text_that_utf_8_cannot_write_is_refused_when_the_batch_is_written() -> None:
    batch = Batch("s", 0, 1, 2, "gap", (Message("s", "half \ud800", 1, position=Position(0, 0, 0)),))
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        batch.to_bytes()
