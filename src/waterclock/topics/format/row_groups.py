"""The row groups of a sealed ledger's file: how messages are divided into them, and their bounds in the catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES
from waterclock.errors import DamagedError
from waterclock.topics.model.bounds import Bounds, raised


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a sealed ledger, as the catalogue describes it."""

    messages: int  # how many it holds
    # Place of its first message in the ledger.
    entry: int
    index: int
    bounds: Bounds  # bounds of its times
    peak: dict[str, int]  # running maximum of each time from the start of the ledger to the end of this row group, ns
    # If several ledgers share a file: which of its row groups holds these messages, and from which row on. None if
    # the ledger has the file to itself, so that the file's row groups are the ledger's.
    number: int | None = None
    row: int = 0
    # How many messages immediately before it are recorded as lost: they have numbers, but are not stored.
    skipped: int = 0

    @classmethod
    def of_table(cls, table: pa.Table, before: RowGroup | None, skipped: int = 0) -> RowGroup:
        """Measure a row group that follows ``before``, and before which messages were lost."""
        bounds = Bounds.of_messages(table)
        peak = dict(raised(before.peak if before else None, bounds.end))
        entry, index = table["entry"][0].as_py(), table["index"][0].as_py()
        return cls(table.num_rows, entry, index, bounds, peak, skipped=skipped)

    def is_in(self, table: pa.Table, ledger: int) -> bool:
        """Return whether a row group, read as a whole, has these messages of a ledger in the right place."""
        part = table.slice(self.row, self.messages)
        if part.num_rows < self.messages or (self.number is None and table.num_rows > self.messages):
            return False
        if "ledger" in part.column_names and part["ledger"].unique().to_pylist() != [ledger]:
            return False
        found = RowGroup.of_table(part, None)
        return (found.entry, found.index, found.bounds) == (self.entry, self.index, self.bounds)


def row_groups_to_json(groups: Sequence[RowGroup]) -> str:
    """Write row groups as the catalogue keeps them."""
    return json.dumps(
        [
            [
                group.messages,
                group.entry,
                group.index,
                [group.bounds.begin[time] for time in TIMES],
                [group.bounds.end[time] for time in BOUNDED],
                [group.peak[time] for time in BOUNDED],
                *([] if group.number is None and not group.skipped else [group.number, group.row]),
                *([group.skipped] if group.skipped else []),
            ]
            for group in groups
        ],
        separators=(",", ":"),
    )


def row_groups_from_json(text: str) -> list[RowGroup]:
    """Parse the output of `row_groups_to_json`.

    Raises `DamagedError` if it is something else.
    """
    try:
        return _row_groups(json.loads(text))
    except (ValueError, TypeError) as error:
        raise DamagedError(f"the catalogue's list of row groups is corrupt: {error}") from error


def _row_groups(lists: Any) -> list[RowGroup]:
    return [
        RowGroup(
            messages,
            entry,
            index,
            Bounds(dict(zip(TIMES, begin, strict=True)), dict(zip(BOUNDED, end, strict=True))),
            dict(zip(BOUNDED, peak, strict=True)),
            *place,
        )
        for messages, entry, index, begin, end, peak, *place in lists
    ]


def bounds_of(groups: Iterable[RowGroup]) -> Bounds | None:
    """Bound the messages of all row groups; None without row groups."""
    bounds: Bounds | None = None
    for group in groups:
        bounds = group.bounds.joined(bounds)
    return bounds


def starts_of(groups: Iterable[RowGroup], first: int = 0) -> list[int]:
    """Return the number of each row group's first message; ``first`` is the number of the ledger's first message."""
    starts: list[int] = []
    for group in groups:
        starts.append(first + group.skipped)
        first = starts[-1] + group.messages
    return starts


def row_of(entry: npt.NDArray[np.int64], index: npt.NDArray[np.int32], place: tuple[int, int]) -> int:
    """Find the first row whose (entry, index) is ``place`` or later; the number of rows if all are earlier."""
    start, stop = np.searchsorted(entry, [place[0], place[0] + 1])
    return int(start) + int(np.searchsorted(index[start:stop], place[1]))
