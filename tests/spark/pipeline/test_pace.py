"""Batches are taken together until they are as large as memory allows."""

from __future__ import annotations

import pyarrow as pa

from waterclock.columnar.packing import ROWS, row_counts
from waterclock.spark.pace import BYTES_AT_ONCE, MESSAGES_AT_ONCE, Pace


def rows(*counts: int) -> pa.RecordBatch:
    columns = {"source": "a", "streams": ["s"], "count": 0, "messages": b""}
    return pa.RecordBatch.from_pylist([{**columns, "count": count} for count in counts], ROWS)


def runs(pace: Pace, *given: pa.RecordBatch) -> list[list[int]]:
    return [row_counts(run).tolist() for run in pace.runs(iter(given))]


def test_rows_are_taken_together_and_cut_between_batches() -> None:
    given = [rows(3, 4), rows(), rows(1, 9, 2), rows(30), rows(2, 2)]
    assert runs(Pace(10), *given) == [[3, 4, 1], [9], [2], [30], [2, 2]]


def test_large_messages_are_taken_fewer_at_a_time() -> None:
    pace = Pace()
    pace.learn(2 * BYTES_AT_ONCE // 8, 2)
    assert runs(pace, rows(*[1] * 20)) == [[1] * 8, [1] * 8, [1] * 4]


def test_empty_messages_are_bounded_by_their_number() -> None:
    pace = Pace()
    pace.learn(1, 1)
    assert runs(pace, rows(MESSAGES_AT_ONCE, 1, 2)) == [[MESSAGES_AT_ONCE], [1, 2]]
