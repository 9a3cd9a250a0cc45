"""Finds files that a range covers completely. Another Parquet reader can read them as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.message import Position
from waterclock.topics.catalogue.pending_files import ledgers_named
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.reading.slicing import Slice


def whole_files(storage: Storage, slices: Iterable[Slice]) -> dict[str, range]:
    """Choose the files that slices cover completely, with the ledgers in each.

    A file holds more than the slices take if the range begins or ends inside it, if a ledger that shares it was
    deleted, imported from elsewhere or lost, or if some of its row groups are recorded as lost.

    Parameters
    ----------
    slices
        The result of `waterclock.topics.reading.planning.plan_slices`, in its order.

    Returns
    -------
    dict
        Ledgers by the file's name in the store. The name shows the ledger of a file with only one; a shared file has a
        column ``ledger``.
    """
    spans: defaultdict[str, list[tuple[Position, Position]]] = defaultdict(list)
    for part in slices:
        if part.path is not None:
            spans[part.path].append((part.start, part.stop))
    if not spans:
        return {}
    losing = sa.select(ledgers.c.path).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "sealed", ledgers.c.lost_in_file > 0
    )
    with storage.backend.snapshot() as connection:
        for path in connection.execute(losing).scalars():
            spans.pop(path, None)
    named = {path: ledgers_named(path) for path in spans}
    return {path: held for path, held in named.items() if held is not None and _are_all_of(spans[path], held)}


def _are_all_of(spans: list[tuple[Position, Position]], held: range) -> bool:
    ends = [Position(held.start, 0, 0), *(stop for _, stop in spans)]
    starts = [*(start for start, _ in spans), Position(held.stop, 0, 0)]
    return ends == starts
