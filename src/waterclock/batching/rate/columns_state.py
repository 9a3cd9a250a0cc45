"""How rate-aware columns are written down: a frame with a checksum, a line of JSON, and their arrays, compressed."""

from __future__ import annotations

import json
import zlib
from dataclasses import astuple
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.facts import count, each, maybe, parsed, read_as, whole
from waterclock.batching.rate.rule import MAX_BATCH_LENGTH, MOST_ERAS
from waterclock.batching.rate.starts import MOST_RUNS, Starts
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import SchemaError
from waterclock.time import MIN_NS

Array = npt.NDArray[Any]

_VERSION = 4
_BEFORE_RUNS = 3
"""The version that did not write down where windows have begun, nor what came from where while the mark stood."""

_FORM = b"WCC1"
_UNFRAMED = b"waterclock rate-aware columns "
"""How the states of earlier versions begin, which have no checksum."""

_NAME = "the state of rate-aware columns"


class RateColumnsState(NamedTuple):
    """Everything that rate-aware columns know.

    Attributes
    ----------
    factor
        The timeout in batch lengths; None for no timeout.
    taken
        Messages ever.
    row_of, facts, tracks, rings, codes, times, numbers, waits_for, elsewhere, runs
        What `waterclock.batching.rate.columns.RateAwareColumns` keeps under these names; of the last two, the rows
        that count.
    """

    factor: Fraction | None
    taken: int
    row_of: Array
    facts: Array
    tracks: Array
    rings: Array
    codes: Array
    times: Array
    numbers: Array
    waits_for: Array
    elsewhere: Array
    runs: Array

    def to_bytes(self) -> bytes:
        """Write the state."""
        arrays = [getattr(self, name) for name in _ARRAYS]
        facts = {
            "version": _VERSION,
            "factor": None if self.factor is None else self.factor.as_integer_ratio(),
            "count": self.taken,
            "shapes": [array.shape for array in arrays],
        }
        # NumPy's own files take ten times as long, and a stream writes a state a source and micro-batch.
        compressed = zlib.compress(b"".join(array.tobytes() for array in arrays), level=1)
        return framed(_FORM, json.dumps(facts).encode(), b"\n", compressed)

    @classmethod
    def from_bytes(cls, state: bytes, layout: Any) -> RateColumnsState:
        """Read back what `to_bytes` wrote.

        Parameters
        ----------
        state
            The bytes.
        layout
            `waterclock.batching.rate.kernel`, which `RateAwareColumns` imports when it is made, because of Numba.

        Raises
        ------
        DamagedError
            Where the bytes are those of a state, but not as they were written.
        SchemaError
            Where they are something else or of another version.
        """
        checked = has_form(_FORM, state)
        if checked:
            written = bytes(unframed(_FORM, state, _NAME))
        elif state.startswith(_UNFRAMED):
            written = state.removeprefix(_UNFRAMED)
        else:
            raise SchemaError(f"{len(state)} bytes are no state of rate-aware columns")
        line, _, compressed = written.partition(b"\n")
        with read_as(_NAME):
            facts = parsed(line)
            before_runs = facts["version"] == _BEFORE_RUNS
            if not before_runs:
                refuse_version(facts["version"], _VERSION)
            factor = maybe(facts["factor"], lambda ratio: Fraction(*each(ratio, whole)))
            shapes = each(facts["shapes"], lambda shape: each(shape, count))
            if before_runs:
                arrays = _arrays(compressed, shapes, _ARRAYS_BEFORE_RUNS)
                arrays |= _supposed(arrays["facts"], layout)
            else:
                arrays = _arrays(compressed, shapes, _ARRAYS)
            _complete(arrays, layout)
            found = cls(factor, count(facts["count"]), **arrays)
            if not checked:
                found._check(layout)
        return found

    def _check(self, layout: Any) -> None:
        """Refuse arrays whose numbers lead the kernel, which does not look, outside of other arrays.

        Where a checksum has shown that they are those of a batcher, looking would take longer than all else here.
        """
        tracks, rows, waiting = self.tracks, len(self.tracks), (len(self.times),)
        if (
            self.facts.shape != (layout.FACTS,)
            or tracks.shape != (rows, layout.TRACK_COLUMNS)
            or self.rings.shape != (rows, layout.KEPT_DIFFERENCES)
            or any(array.shape != waiting for array in (self.codes, self.times, self.numbers, self.waits_for))
            or self.row_of.shape != (max(len(self.row_of), 1),)
            or self.elsewhere.shape != (self.facts[layout.ERAS], layout.ELSEWHERE_COLUMNS)
            or self.runs.shape != (self.facts[layout.RUNS], layout.RUN_COLUMNS)
            or len(self.elsewhere) > MOST_ERAS
            or len(self.runs) > MOST_RUNS
        ):
            raise ValueError(f"arrays of the shapes {[getattr(self, name).shape for name in _ARRAYS]}")
        lengths = self.facts[[layout.LENGTH, layout.NEXT_LENGTH]]
        if not (
            _within(self.row_of, 0, rows - 1)
            and _within(self.codes, 0, rows - 1)
            and _within(self.waits_for, layout.NONE, rows - 1)
            and _within(tracks[:, layout.KEPT], 0, layout.KEPT_DIFFERENCES)
            and _within(tracks[:, layout.NEXT_KEPT], 0, layout.KEPT_DIFFERENCES - 1)
            and _within(lengths, 0, MAX_BATCH_LENGTH)
            and lengths[0]
            and (self.runs[:, -1] > 0).all()
            and 0 <= self.facts[layout.UNMOVED] <= len(self.times)
        ):
            raise ValueError("a number that leads nowhere")


_ARRAYS: dict[str, type[np.generic]] = {
    "row_of": np.uint32,
    "facts": np.int64,
    "tracks": np.int64,
    "rings": np.int64,
    "codes": np.uint32,
    "times": np.int64,
    "numbers": np.int64,
    "waits_for": np.int32,
    "elsewhere": np.int64,
    "runs": np.int64,
}
_ARRAYS_BEFORE_RUNS = {name: kind for name, kind in _ARRAYS.items() if name not in ("elsewhere", "runs")}


def _supposed(facts: Array, layout: Any) -> dict[str, Array]:
    """Suppose where windows have begun, and begin to count anew what is elsewhere."""
    if facts.shape != (layout.EARLIER_FACTS,):
        raise ValueError(f"facts of the shape {facts.shape}")
    furthest, start, length = facts[[layout.FURTHEST, layout.WINDOW_START, layout.LENGTH]].tolist()
    runs = Starts.supposed(furthest, start, length).runs if facts[layout.BEGUN] else []
    facts[[layout.UNMOVED, layout.ERAS, layout.RUNS]] = 0, 0, len(runs)
    starts = np.array([astuple(run) for run in runs], np.int64).reshape(-1, layout.RUN_COLUMNS)
    return {"elsewhere": np.empty((0, layout.ELSEWHERE_COLUMNS), np.int64), "runs": starts}


def _complete(arrays: dict[str, Array], layout: Any) -> None:
    """Add what earlier versions did not write: no first window was doubtful, and nothing was taken for a backlog."""
    if arrays["facts"].shape == (layout.EARLIER_FACTS,):
        arrays["facts"] = np.append(arrays["facts"], [layout.NEVER, 0])
    elsewhere = arrays["elsewhere"]
    if elsewhere.shape == (len(elsewhere), layout.EARLIER_ELSEWHERE_COLUMNS):
        arrays["elsewhere"] = np.column_stack([elsewhere, np.full(len(elsewhere), MIN_NS)])


def _arrays(compressed: bytes, shapes: list[list[int]], kinds: dict[str, type[np.generic]]) -> dict[str, Array]:
    sizes = [prod(shape) * np.dtype(kind).itemsize for kind, shape in zip(kinds.values(), shapes, strict=True)]
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(compressed, sum(sizes) + 1)  # no more, even where the bytes would become more
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) != sum(sizes) or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"its arrays are not {sum(sizes)} bytes")
    found: dict[str, Array] = {}
    offset = 0
    for (name, kind), shape, size in zip(kinds.items(), shapes, sizes, strict=True):
        found[name] = np.frombuffer(data, kind, prod(shape), offset).reshape(shape).copy()
        offset += size
    return found


def _within(numbers: Array, least: int, most: int) -> bool:
    return bool(((numbers >= least) & (numbers <= most)).all())
