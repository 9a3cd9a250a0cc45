"""Skips messages that do not match a filter.

The catalogue and file statistics show which whole parts can be skipped. Then single rows are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.topics.model.bounds import Bounds


@dataclass(frozen=True)
class ReadFilter:
    """Limits within which messages are wanted. Pieces without such a message need not be read."""

    # By event_time, publish_time and receive_time: the smallest and the largest wanted, ns.
    times: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    # The sources and the streams wanted; None: all.
    sources: Collection[str] | None = None
    streams: Collection[str] | None = None

    def conditions(self, table: sa.Table) -> list[sa.ColumnElement[bool]]:
        """Build SQL conditions for ledgers or entries that may hold a wanted message; those without bounds may."""
        return [
            sa.or_(
                table.c[f"begin_{time}"].is_(None),
                sa.and_(table.c[f"begin_{time}"] <= last, table.c[f"end_{time}"] >= first),
            )
            for time, (first, last) in self.times.items()
        ]

    def meets(self, bounds: Bounds) -> bool:
        """Return whether messages with these bounds may hold a wanted one."""
        return all(
            bounds.begin[time] <= last and bounds.end[time] >= first for time, (first, last) in self.times.items()
        )

    @property
    def columns(self) -> list[str]:
        """The columns that `rows` needs."""
        return [name for name, chosen in self._names() if chosen is not None]

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages of the wanted sources and streams."""
        for name, chosen in self._names():
            if chosen is not None:
                values = pa.array(chosen, pa.string())
                batch = batch.filter(pc.call_function("is_in", [batch.column(name)], pc.SetLookupOptions(values)))
        return batch

    def _names(self) -> tuple[tuple[str, Collection[str] | None], ...]:
        return ("source", self.sources), ("stream", self.streams)

    def row_groups(self, metadata: pq.FileMetaData) -> list[bool]:
        """Return for each row group of a file whether, by its statistics, it may hold a wanted source."""
        return [self._has_source(metadata.row_group(number).column(0)) for number in range(metadata.num_row_groups)]

    def _has_source(self, column: pq.ColumnChunkMetaData) -> bool:
        # The first column of a ledger's file is the source. Its statistics compare bytes, and Python compares code
        # points: in UTF-8 the two orders are the same.
        statistics = column.statistics
        if self.sources is None or statistics is None or not statistics.has_min_max:
            return True
        return any(statistics.min <= source <= statistics.max for source in self.sources)


ALL = ReadFilter()
"""Everything."""


def check_names(given: str | Collection[str] | None, name: str) -> list[str] | None:
    """Check a choice of sources or streams, one name or several; None means all."""
    if given is None:
        return None
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Collection) or not all(isinstance(each, str) for each in names):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise InvalidArgumentError(f"{name} must be a name or a list of names, got {quoted(given)}")
    return list(names)
