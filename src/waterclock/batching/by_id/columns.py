"""The batcher by id over columns: the same rule as `IdBatcher`, for many messages at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.message_columns import column_of, numbered_texts, refuse_added, times_of, with_nulls
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.time import MAX_NS, Duration, Time, to_duration, to_time

_ADDED = ("closed_at", "rejected")
_REASONS = ("late", "duplicate")


def assign_batches_by_id(table: pa.Table, id_column: str, *, max_delay: Duration, now: Time | None = None) -> pa.Table:
    """Find which messages of a table are in the batches of their ids, for all its sources.

    The result equals that of an `IdBatcher` of each source for the same messages in order of receive time. It depends
    on the set of rows. Their order only decides which of equal rows (in source, stream, id and receive time) is the
    duplicate.

    Parameters
    ----------
    table
        With columns ``source`` and ``stream`` (text, or dictionary of text), ``receive_time`` (integers, ns, or
        timestamps with a time zone) and the column of the ids, none with nulls. Other columns are kept.
    id_column
        Name of the column of ids, which holds integers.
    max_delay
        As of `IdBatcher`.
    now
        A reading of the receive clock. Messages received after it, and those of batches with ``closed_at`` after it,
        are undecided. Default: all are decided.

    Returns
    -------
    pyarrow.Table
        The rows in their order, with ``closed_at`` (int64 ns, when the batch of its id closes; null if the message is
        in no batch, or not yet) and ``rejected`` (dictionary of text: late or duplicate; null if the message is not
        rejected, or not yet).

    Raises
    ------
    SchemaError
        For a missing column, one of another type, or one with the name of an added column.
    InvalidArgumentError
        For a column with nulls, a number that does not fit int64, and an invalid option.
    """
    delay = to_duration(max_delay, "max_delay")
    clock = MAX_NS if now is None else to_time(now, "now")
    refuse_added(table, _ADDED)
    (sources, _), (streams, _) = numbered_texts(table, "source"), numbered_texts(table, "stream")
    ids = _ids(table, id_column)
    received = times_of(table, "receive_time")
    closed_at, late, duplicate = _judge(sources, streams, ids, received, delay)
    known = received <= clock
    late, duplicate = late & known, duplicate & known
    accepted = known & ~late & ~duplicate & (closed_at <= clock)
    reasons = with_nulls(pa.int8(), duplicate.astype(np.int8), late | duplicate)
    columns = (
        with_nulls(pa.int64(), closed_at, accepted),
        pa.DictionaryArray.from_arrays(reasons, pa.array(_REASONS), safe=False),
    )
    for name, column in zip(_ADDED, columns, strict=True):
        table = table.append_column(name, column)
    return table


def _judge(
    sources: npt.NDArray[np.int32],
    streams: npt.NDArray[np.int32],
    ids: npt.NDArray[np.int64],
    received: npt.NDArray[np.int64],
    delay: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return for each row when the batch of its id closes, whether it is late, and whether it is a duplicate."""
    order = np.lexsort((received, ids, sources))
    begins = _changes(sources[order], ids[order])
    first = received[order][begins]
    closes = np.minimum(first, MAX_NS - delay) + delay
    closed_at = np.empty(len(order), np.int64)
    closed_at[order] = closes[np.cumsum(begins) - 1] if len(order) else closes
    late = received > closed_at
    # The first message of a stream and id is accepted. Sorting is stable, so equal ones stay in their order.
    order = np.lexsort((received, streams, ids, sources))
    duplicate = np.empty(len(order), np.bool_)
    duplicate[order] = ~_changes(sources[order], ids[order], streams[order])
    return closed_at, late, duplicate & ~late


def _changes(*keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    changes = np.ones(len(keys[0]), np.bool_)
    if len(changes):
        changes[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return changes


def _ids(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column = column_of(table, name)
    if not pa.types.is_integer(column.type):
        raise SchemaError(f"column {name!r} must hold integers, got {column.type}")
    try:
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"column {name!r} must hold integers that fit int64, got {error}") from error
