"""Finds ids that have no batch, and batches that lack messages of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch, check_batch
from waterclock.batching.declared_streams import declared_streams
from waterclock.errors import InvalidArgumentError


class MissingIds(NamedTuple):
    """Ids of a source with missing messages.

    Attributes
    ----------
    source
        The source.
    first, last
        The first and the last id, inclusive.
    streams
        The declared streams without a message; empty if no message came at all.
    """

    source: str
    first: int
    last: int
    streams: tuple[str, ...]


def missing_ids(batches: Iterable[Batch], streams: Iterable[str] | None = None, step: int = 1) -> list[MissingIds]:
    """Find the ids between the first and the last of each source without a batch, and the streams that batches lack.

    Parameters
    ----------
    batches
        Batches by id, in any order, of any sources.
    streams
        The streams that each batch should have. Default: not checked.
    step
        Distance of a source's consecutive ids.

    Returns
    -------
    list of MissingIds
        By source and id.

    Raises
    ------
    InvalidArgumentError
        For batches by time, and an invalid option.
    """
    if type(step) is not int or step < 1:
        raise InvalidArgumentError(f"step must be an integer ≥ 1, got {quoted(step)}")
    if not isinstance(batches, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
        raise InvalidArgumentError(f"batches must be a list of batches, got {quoted(batches)}")
    expected = () if streams is None else declared_streams(streams)
    came: dict[tuple[str, int], set[str]] = {}
    for batch in batches:
        check_batch(batch)
        if batch.number is None:
            raise InvalidArgumentError(
                f"batches must come from IdBatcher, got {quoted(batch.id)}, which is a batch by time"
            )
        came.setdefault((batch.source, batch.number), set()).update(message.stream for message in batch.messages)
    found: list[MissingIds] = []
    for (source, number), there in came.items():
        lacking = tuple(name for name in expected if name not in there)
        if lacking:
            found.append(MissingIds(source, number, number, lacking))
    for (source, number), (other, following) in pairwise(sorted(came)):
        if source == other and following - number > step:
            last = number + (following - number - 1) // step * step
            found.append(MissingIds(source, number + step, last, ()))
    return sorted(found)
