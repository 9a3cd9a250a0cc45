"""Batches many messages at once by id, as columns, with the same rule as `IdBatcher`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.batching.by_id.judging import ACCEPTED, REASONS, judge_ids
from waterclock.batching.by_id.rule import LARGEST_ID, NO_ID, IdRule
from waterclock.batching.by_id.taken_ids import TakenIds
from waterclock.batching.message_columns import column_of, numbered_texts, refuse_added, times_of, with_nulls
from waterclock.errors import SchemaError
from waterclock.time import MAX_NS, Duration, Time, to_time

_ADDED = ("closed_at", "rejected")


def assign_batches_by_id(
    table: pa.Table,
    id_column: str,
    *,
    max_delay: Duration,
    streams: Iterable[str] | None = None,
    now: Time | None = None,
) -> pa.Table:
    """Find which messages of a table are in the batches of their ids, for all its sources.

    The result equals that of an `IdBatcher` of each source for the same messages in order of receive time. It depends
    on the set of rows. Their order only decides which of equal rows (in source, stream, id and receive time) is the
    duplicate.

    Parameters
    ----------
    table
        With columns ``source`` and ``stream`` (text, or dictionary of text) and ``receive_time`` (integers, ns, or
        timestamps with a time zone), none with nulls, and the column of the ids. Other columns are kept.
    id_column
        Name of the column of ids, which holds integers; null for a message without an id.
    max_delay, streams
        As of `IdBatcher`.
    now
        A reading of the receive clock. Messages received after it, and those of batches with ``closed_at`` after it,
        are undecided. Default: all are decided.

    Returns
    -------
    pyarrow.Table
        The rows in their order, with ``closed_at`` (int64 ns, when the batch of its id closes; null if the message is
        in no batch, or not yet) and ``rejected`` (dictionary of text: no_id, undeclared, late or duplicate; null if the
        message is not rejected, or not yet).

    Raises
    ------
    SchemaError
        For a missing column, one of another type, or one with the name of an added column.
    InvalidArgumentError
        For a column with nulls, and an invalid option.
    """
    rule = IdRule.checked(id_column, max_delay, streams)
    clock = MAX_NS if now is None else to_time(now, "now")
    refuse_added(table, _ADDED)
    (sources, source_names), (of_stream, stream_names) = (
        numbered_texts(table, "source"),
        numbered_texts(table, "stream"),
    )
    numbers = _ids(table, id_column)
    received = times_of(table, "receive_time")
    known = np.flatnonzero(received <= clock)
    known = known[np.argsort(received[known], kind="stable")]
    found = judge_ids(
        sources[known],
        of_stream[known],
        numbers[known],
        received[known],
        rule.undeclared(stream_names),
        rule.max_delay,
        [TakenIds() for _ in range(len(source_names))],
        np.full(len(source_names), clock),
    )
    verdicts, closes = np.zeros(len(table), np.uint8), np.zeros(len(table), np.int64)
    verdicts[known], closes[known] = found.verdicts, found.closes
    accepted = np.zeros(len(table), np.bool_)
    accepted[known] = (found.verdicts == ACCEPTED) & (found.closes <= clock)
    rejected = verdicts != ACCEPTED
    reasons = with_nulls(pa.int8(), np.where(rejected, verdicts - 1, 0).astype(np.int8), rejected)
    columns = (
        with_nulls(pa.int64(), closes, accepted),
        pa.DictionaryArray.from_arrays(reasons, pa.array(REASONS), safe=False),
    )
    for name, column in zip(_ADDED, columns, strict=True):
        table = table.append_column(name, column)
    return table


def _ids(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return the ids, `NO_ID` for nulls and integers that do not fit."""
    column = column_of(table, name, nulls=True)
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise SchemaError(f"column {name!r} must hold integers, got {column.type}")
    if pa.types.is_uint64(column.type):
        fits = pc.call_function("less_equal", [column, pa.scalar(LARGEST_ID, pa.uint64())])
        column = pc.call_function("if_else", [fits, column, pa.scalar(None, pa.uint64())])
    return column.cast(pa.int64()).fill_null(NO_ID).to_numpy()
