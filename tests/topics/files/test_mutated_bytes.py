"""Bytes of entries and files that were changed at random: original messages or a DamagedError, and no process dies.

They are decoded in a child process, which may die: then the test says at which mutation.
"""

from __future__ import annotations

import io
import os
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.topics.flows import pseudo_random

from waterclock.arrow import from_arrow, to_arrow
from waterclock.errors import DamagedError
from waterclock.message import Message
from waterclock.topics.format.entries import PLACED_SCHEMA, decode_entries, encode_entry
from waterclock.topics.reading.footers import checked_unknown_footer
from waterclock.topics.store import sealed_file
from waterclock.topics.store.sealed_file import SealedFile, write_ledger

SEED = 5
AT_ONCE = 250  # mutations a child process
MEMORY = 8 << 30  # of addresses, bytes
Decode = Callable[[bytes], object]


def some_messages(count: int) -> list[Message]:
    source = pseudo_random(SEED)
    return [
        Message(
            f"press {i % 3}",
            "load ü",
            i,
            source.randbytes(i % 20),
            publish_time=i,
            receive_time=i,
            headers={"k": str(i)} if i % 2 else None,
        )
        for i in range(count)
    ]


def mutated(data: bytes, source: random.Random) -> bytes:
    """Change some bytes as disks, memory and truncation do."""
    changed = bytearray(data)
    kind = source.randrange(6)
    at = source.randrange(len(changed))
    if kind <= 2:
        changed[at] ^= 1 << source.randrange(8)
    elif kind == 3:
        changed[at : at + 8] = source.randbytes(len(changed[at : at + 8]))
    elif kind == 4:
        del changed[at:]
    else:
        changed[at : at + 4] = source.choice([b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f"])
    return bytes(changed)


def decode_mutations(data: bytes, decode: Decode, count: int, seed: int) -> Counter[str]:
    """Decode mutations in children: how many came out as they were, other than they were, damaged, or killed."""
    whole = decode(data)
    source = pseudo_random(seed)
    cases = [mutated(data, source) for _ in range(count)]
    found: Counter[str] = Counter()
    while cases:
        lines = _in_a_child(cases[:AT_ONCE], decode, whole)
        found.update(lines)
        if len(lines) < len(cases[:AT_ONCE]):
            found["killed"] += 1
            lines.append("")
        cases = cases[len(lines) :]
    return found


def _in_a_child(cases: Iterable[bytes], decode: Decode, whole: object) -> list[str]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # what asks for more than there is must not get it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a dying process says
        for case in cases:
            os.write(write, f"{_fate(case, decode, whole)}\n".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        lines = answers.read().splitlines()
    os.waitpid(child, 0)
    return lines


def _fate(case: bytes, decode: Decode, whole: object) -> str:
    try:
        return "as it was" if decode(case) == whole else "other"
    except DamagedError:
        return "damaged"
    except Exception as error:  # noqa: BLE001  # each other one is a fault
        return type(error).__name__


def decode_entry(data: bytes) -> object:
    batch = decode_entries(0, [(0, data)], PLACED_SCHEMA.names).batch
    batch.validate(full=True)
    return from_arrow(batch)


def framed_entry() -> bytes:
    return encode_entry(some_messages(40), lambda: 0).data


def file_of(count: int) -> tuple[bytes, bytes]:
    """Give a ledger's file and its footer."""
    sink = io.BytesIO()
    places = [pa.array([0] * count), pa.array(range(count), pa.int32())]
    batch = pa.RecordBatch.from_arrays([*to_arrow(some_messages(count)).columns, *places], schema=PLACED_SCHEMA)
    _, footer, _ = write_ledger(sink, [(0, batch)])
    return sink.getvalue(), footer


class _InMemory:
    """One file, as `LedgerFiles` gives it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def name(self, path: str) -> str:
        return path

    def open(self, _path: str) -> pa.BufferReader:
        return pa.BufferReader(self._data)

    def read_range(self, _path: str, size: int, offset: int, length: int) -> pa.Buffer:
        if len(self._data) != size:
            raise DamagedError(f"{len(self._data)} bytes")
        return pa.py_buffer(self._data[offset : offset + length])


def decode_file(size: int) -> Decode:
    """Decode a file that the catalogue does not know, with the checksums that are in it."""

    def decode(data: bytes) -> object:
        files = _InMemory(data)
        footer = checked_unknown_footer(files, "a file")  # type: ignore[arg-type]
        file = SealedFile(files, "a file", size, footer, None)  # type: ignore[arg-type]
        return [from_arrow(file.read(number, file.columns)) for number in range(file.row_groups)]

    return decode


def test_no_mutation_of_an_entry_is_read_as_another() -> None:
    found = decode_mutations(framed_entry(), decode_entry, 500, SEED)
    assert found.keys() <= {"damaged", "as it was"}, found
    assert found["damaged"] > 475


def test_no_mutation_of_a_file_outside_the_catalogue_is_read_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 30)
    data, _ = file_of(60)
    found = decode_mutations(data, decode_file(len(data)), 150, SEED)
    assert found.keys() <= {"damaged", "as it was"}, found


def test_no_mutation_of_a_footer_outside_the_catalogue_is_read_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 30)
    data, footer = file_of(60)
    body = data[: len(data) - len(footer) + 4]
    decode = decode_file(len(data))
    found = decode_mutations(footer[4:], lambda tail: decode(body + tail), 250, SEED)
    assert found.keys() <= {"damaged", "as it was"}, found
    assert found["damaged"] > 235


def test_footer_of_another_program_is_refused() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"source": ["press"]}), sink)
    with pytest.raises(DamagedError, match=r"footer of a file .* not a ledger file"):
        decode_file(sink.tell())(sink.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["entry", "file", "footer"])
def test_no_mutation_ends_the_process_however_many_there_are(form: str) -> None:
    data, footer = file_of(60)
    body = data[: len(data) - len(footer) + 4]
    decode = decode_file(len(data))
    given: dict[str, tuple[bytes, Decode]] = {
        "entry": (framed_entry(), decode_entry),
        "file": (data, decode),
        "footer": (footer[4:], lambda tail: decode(body + tail)),
    }
    found = decode_mutations(*given[form], 100_000, SEED)
    assert found.keys() <= {"damaged", "as it was"}, found
