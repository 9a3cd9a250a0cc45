"""Stores the state of rate-aware columns: a frame with a checksum around a line of JSON and compressed arrays."""

from __future__ import annotations

import json
import zlib
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.facts import count, each, maybe, moment, parsed, read_as, text, whole
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed, has_form, unframed
from waterclock.errors import SchemaError

Array = npt.NDArray[Any]

_VERSION = 1
_FORM = b"WCC1"
_NAME = "the state of rate-aware columns"


class RateColumnsState(NamedTuple):
    """The whole state of rate-aware columns."""

    factor: Fraction | None  # the timeout in batch lengths; None for no timeout
    taken: int  # total number of messages
    # The streams whose messages cut windows, and the run after the last batch, ns.
    boundaries: list[str]
    run: int | None
    # The attributes of `RateAwareColumns` of these names; of the last two, the rows in use.
    row_of: Array
    facts: Array
    tracks: Array
    rings: Array
    codes: Array
    times: Array
    numbers: Array
    waits_for: Array
    clocks: Array
    shifts: Array
    elsewhere: Array
    runs: Array

    def to_bytes(self) -> bytes:
        """Write the state."""
        arrays = [getattr(self, name) for name in _ARRAYS]
        facts = {
            "version": _VERSION,
            "factor": None if self.factor is None else self.factor.as_integer_ratio(),
            "count": self.taken,
            "boundaries": self.boundaries,
            "run": self.run,
            "shapes": [array.shape for array in arrays],
        }
        # NumPy's own files take ten times as long, and a stream writes a state per source and micro-batch.
        compressed = zlib.compress(b"".join(array.tobytes() for array in arrays), level=1)
        return framed(_FORM, json.dumps(facts).encode(), b"\n", compressed)

    @classmethod
    def from_bytes(cls, state: bytes) -> RateColumnsState:
        """Read back what `to_bytes` wrote.

        Raises `DamagedError` if the bytes are a corrupt state. Raises `SchemaError` if they are something else or of
        another version.
        """
        if not has_form(_FORM, state):
            raise SchemaError(f"{len(state)} bytes are not the state of rate-aware columns")
        line, _, compressed = bytes(unframed(_FORM, state, _NAME)).partition(b"\n")
        with read_as(_NAME):
            facts = parsed(line)
            refuse_version(facts["version"], _VERSION)
            factor = maybe(facts["factor"], lambda ratio: Fraction(*each(ratio, whole)))
            shapes = each(facts["shapes"], lambda shape: each(shape, count))
            boundaries, run = each(facts["boundaries"], text), maybe(facts["run"], moment)
            return cls(factor, count(facts["count"]), boundaries, run, **_arrays(compressed, shapes))


_ARRAYS: dict[str, type[np.generic]] = {
    "row_of": np.uint32,
    "facts": np.int64,
    "tracks": np.int64,
    "rings": np.int64,
    "codes": np.uint32,
    "times": np.int64,
    "numbers": np.int64,
    "waits_for": np.int32,
    "clocks": np.int64,
    "shifts": np.int64,
    "elsewhere": np.int64,
    "runs": np.int64,
}


def _arrays(compressed: bytes, shapes: list[list[int]]) -> dict[str, Array]:
    sizes = [prod(shape) * np.dtype(kind).itemsize for kind, shape in zip(_ARRAYS.values(), shapes, strict=True)]
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(compressed, sum(sizes) + 1)  # bounded, even if the bytes decompress to more
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) != sum(sizes) or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"the arrays of the state must have {sum(sizes)} bytes in total")
    found: dict[str, Array] = {}
    offset = 0
    for (name, kind), shape, size in zip(_ARRAYS.items(), shapes, sizes, strict=True):
        found[name] = np.frombuffer(data, kind, prod(shape), offset).reshape(shape).copy()
        offset += size
    return found
