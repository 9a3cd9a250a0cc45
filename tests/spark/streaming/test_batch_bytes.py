"""Batches that are written many at once have the bytes of batches that are written one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.kernel_forms import in_form

from waterclock.arrow import to_arrow
from waterclock.batching.batch import Batch
from waterclock.columnar.batch_bytes import encode_batches
from waterclock.message import Message, Position

names = st.sampled_from(["a", "press-01", "öl", "x" * 70])
times = st.integers(-3, 3) | st.just(2**63 - 1)
flows = st.lists(
    st.builds(
        Message,
        names,
        names,
        times,
        st.sampled_from([b"", b"1", bytes(range(70))]),
        publish_time=st.none() | times,
        receive_time=times,
        headers=st.sampled_from([None, {}, {"k": "v"}, {"k": "", "ö": "2"}]),
        position=st.none() | st.just(Position(3, 1, 2)),
    ),
    min_size=1,
    max_size=20,
)


ROWS = pa.schema(
    [
        (name, pa.string() if name in ("source", "reason") else pa.int64())
        for name in ("source", "start", "end", "closed_at", "reason", "number", "run")
    ]
)


def together(batches: Sequence[Batch], first: int = 0) -> list[bytes]:
    """Write batches at once, their messages behind ``first`` others in the same columns."""
    names = ("source", "start", "end", "closed_at", "reason", "number", "run")
    rows = pa.RecordBatch.from_pylist([{name: getattr(batch, name) for name in names} for batch in batches], ROWS)
    if any(batch.offsets for batch in batches):
        maps = [list(batch.offsets.items()) or None for batch in batches]
        rows = rows.append_column("offsets", pa.array(maps, pa.map_(pa.string(), pa.int64())))
    others = [Message("other", "other", n, b"other", headers={"other": "x"}) for n in range(first)]
    columns = to_arrow([*others, *(message for batch in batches for message in batch.messages)], positions=True)
    counts = np.array([len(batch.messages) for batch in batches])
    return encode_batches(rows, columns.slice(first), counts).to_pylist()


def batches_of(flow: list[Message], counts: Sequence[int], source: str = "press-01") -> list[Batch]:
    bounds = pairwise([0, *np.cumsum(counts)])
    runs = [tuple(flow[first:stop]) for first, stop in bounds]
    return [
        Batch(source, n, n + 5, 10**n, "timeout", run, number=(None, -n)[n % 3 == 0], run=(None, 10**n)[n % 2])
        for n, run in enumerate(runs)
    ]


def are_equal(written: list[bytes], batches: Sequence[Batch]) -> bool:
    return written == [batch.to_bytes() for batch in batches]


# Comparing in an assert would spell out the difference of long bytes.


@given(flows, st.lists(st.integers(1, 9), max_size=4), st.booleans(), st.integers(0, 9), names, st.booleans())
def test_batches_written_together_have_the_bytes_of_batches_written_alone(
    flow: list[Message], counts: list[int], bare: bool, first: int, source: str, compiled: bool
) -> None:
    if bare:
        flow = [message.replace(headers=None, position=None) for message in flow]
    counts = [count for count, upto in zip(counts, np.cumsum(counts), strict=True) if upto <= len(flow)]
    batches = batches_of(flow, [*counts, len(flow) - sum(counts)], source)
    with in_form(compiled=compiled):
        same = are_equal(together(batches, first), batches)
    assert same


def test_large_batches_have_the_same_bytes_too() -> None:
    flow = [Message("s", "t", i, bytes(range(i % 200)) * 7, receive_time=i) for i in range(3000)]
    batches = batches_of(flow, [1000, 2, 1998])
    same = are_equal(together(batches), batches)
    assert same


def test_offsets_have_the_same_bytes_too() -> None:
    offsets: list[dict[str, int]] = [{}, {"ö": -5, "a": 2**62}, {"b": 0}]
    batches = batches_of([Message("s", "t", i, receive_time=i) for i in range(6)], [1, 2, 3])
    batches = [replace(batch, offsets=each) for batch, each in zip(batches, offsets, strict=True)]
    same = are_equal(together(batches), batches)
    assert same
    assert [dict(Batch.from_bytes(data).offsets) for data in together(batches)] == offsets


def test_whether_a_batch_is_worth_compressing_does_not_depend_on_what_is_written_with_it() -> None:
    sizes = set()
    for size in range(2400, 4100, 7):
        batches = batches_of([Message("s", "t", i, bytes(size), receive_time=i or None) for i in range(3)], [1, 2])
        written = together(batches)
        same = are_equal(written, batches)
        assert same
        sizes.add(len(written[0]) < size)
    assert sizes == {True, False}
