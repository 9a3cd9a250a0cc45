"""Stores the states of many sources that are batched by rate: their arrays are joined and compressed together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from waterclock.batching.rate.by_column import layout
from waterclock.batching.rate.by_column.many import LASTING_COLUMNS, RateAwareMany
from waterclock.batching.rate.period import KEPT_DIFFERENCES
from waterclock.batching.rate.rule import MOST_ERAS
from waterclock.batching.rate.starts import MOST_RUNS

Ints = npt.NDArray[np.int64]

_LEVEL = 1


def to_arrays(rules: RateAwareMany) -> tuple[list[int], bytes]:
    """Encode the state; return the sizes of its parts, and the bytes."""
    elsewhere, runs = _further(rules.facts)
    arrays = [
        np.diff(rules.track_bounds),
        rules.facts[:, : layout.FACTS].T,
        elsewhere[_first(rules.facts[:, layout.ERAS], MOST_ERAS)].T,
        runs[_first(rules.facts[:, layout.RUNS], MOST_RUNS + 1)].T,
        rules.tracks[:, :LASTING_COLUMNS].T,
        rules.rings[_first(rules.tracks[:, layout.KEPT], KEPT_DIFFERENCES)],
        rules.pairs.T,
        rules.waits_for.astype(np.int64),
    ]
    if rules.clocks.shape[1]:
        arrays.append(rules.clocks)
    data = b"".join(array.tobytes() for array in arrays)
    return [array.size for array in arrays], zlib.compress(data, _LEVEL)


def from_arrays(
    rules: RateAwareMany, sizes: Sequence[int], data: memoryview, kept_sources: npt.NDArray[np.int32]
) -> None:
    """Read back what `to_arrays` wrote, into new rules with the same options.

    Raises `ValueError` if it is something else.
    """
    unpacker = zlib.decompressobj()
    total = sum(sizes) * 8
    try:
        numbers = unpacker.decompress(data, total + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(numbers) != total:
        raise ValueError(f"the arrays of the state must have {total} bytes in total")
    parts = np.split(np.frombuffer(numbers, np.int64), np.cumsum(sizes)[:-1])
    rows, facts, elsewhere, runs, tracks, rings, pairs, waits_for, *clocks = parts
    rules.track_bounds = np.concatenate([[0], np.cumsum(rows)])
    rules.facts = np.zeros((len(rows), layout.ALL_FACTS), np.int64)
    rules.facts[:, : layout.FACTS] = facts.reshape(layout.FACTS, -1).T
    known_elsewhere, known_runs = _further(rules.facts)
    eras, counts = (rules.facts[:, column] for column in (layout.ERAS, layout.RUNS))
    known_elsewhere[_first(eras, MOST_ERAS)] = elsewhere.reshape(layout.ELSEWHERE_COLUMNS, -1).T
    known_runs[_first(counts, MOST_RUNS + 1)] = runs.reshape(layout.RUN_COLUMNS, -1).T
    rules.tracks = np.zeros((int(rules.track_bounds[-1]), layout.TRACK_COLUMNS), np.int64)
    rules.tracks[:, :LASTING_COLUMNS] = tracks.reshape(LASTING_COLUMNS, -1).T
    rules.rings = np.zeros((len(rules.tracks), KEPT_DIFFERENCES), np.int64)
    rules.rings[_first(rules.tracks[:, layout.KEPT], KEPT_DIFFERENCES)] = rings
    rules.pairs = pairs.reshape(3, -1).T.copy()
    rules.clocks = np.zeros((len(rules.pairs), rules.clocks.shape[1]), np.int64)
    if rules.clocks.size:
        rules.clocks[:] = np.concatenate(clocks).reshape(rules.clocks.shape)
    rules.waits_for = waits_for.astype(np.int32)
    rules.kept_sources = kept_sources.astype(np.int64)
    if len(rules.waits_for) != len(kept_sources):
        raise ValueError(f"the state must have {len(rules.waits_for)} waiting messages, got {len(kept_sources)}")


def _further(facts: Ints) -> tuple[Ints, Ints]:
    """Return views of the rows of other eras' traffic and of runs of starts, which follow the other facts."""
    elsewhere = facts[:, layout.ELSEWHERE_FROM : layout.RUNS_FROM]
    return (
        elsewhere.reshape(len(facts), MOST_ERAS, layout.ELSEWHERE_COLUMNS),
        facts[:, layout.RUNS_FROM :].reshape(len(facts), MOST_RUNS + 1, layout.RUN_COLUMNS),
    )


def _first(counts: Ints, most: int) -> npt.NDArray[np.bool_]:
    return np.arange(most) < counts[:, None]
