"""Caches the last decoded row groups, so that consecutive lookups decode each row group only once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa

from waterclock.topics.store.sealed_file import ROW_GROUP_BYTES

MOST_BYTES = ROW_GROUP_BYTES
"""Bytes of decoded row groups that are kept at most; a larger row group is not kept at all.

Batches in order of position overlap a little, so consecutive lookups share a row group or two.
"""


class DecodedGroups:
    """Keeps decoded row groups for one reader, bounded by bytes; the least recently used are dropped first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._tables: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, path: str, group: int, decode: Callable[[], pa.Table]) -> pa.Table:
        """Return a row group of a file; ``decode`` must always read the same columns."""
        key = path, group
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        table = decode()
        if table.nbytes <= self._most_bytes:
            self._tables[key] = table
            self._bytes += table.nbytes
        while self._bytes > self._most_bytes:
            _, dropped = self._tables.popitem(last=False)
            self._bytes -= dropped.nbytes
        return table
