"""Batching by rate over columns: the same rules as `RateAwareBatcher`, for many calls at once."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.rate_rule import Gated, RateRule, gate_chooser
from waterclock.errors import InvalidArgumentError, SchemaError, UnavailableError
from waterclock.time import Duration

Ints = npt.NDArray[np.int64]

_VERSION = 1
_STATE = b"waterclock rate-aware columns "
_MOST_MESSAGES = 2**31 - 1


class RateBatches(NamedTuple):
    """The batches that some calls closed, in order of closing.

    Attributes
    ----------
    starts, ends, closed_at
        As of `Batch`, int64 ns.
    reasons
        As of `Batch`.
    offsets
        Batch k holds ``messages[offsets[k]:offsets[k + 1]]``; int64, one more than batches.
    messages
        Numbers of messages in the order in which they joined their batch, int64; the first message ever is number 0.
    """

    starts: Ints
    ends: Ints
    closed_at: Ints
    reasons: tuple[str, ...]
    offsets: Ints
    messages: Ints

    def batch_of(self, count: int, first: int = 0) -> Ints:
        """Turn the batches around: the batch (its place here) of the messages ``first`` and following, -1 for none."""
        batch_of = np.full(count, -1, np.int64)
        numbers = self.messages - first
        within = (numbers >= 0) & (numbers < count)
        batches = np.repeat(np.arange(len(self.starts)), np.diff(self.offsets))
        batch_of[numbers[within]] = batches[within]
        return batch_of


class RateAwareColumns:
    """Batches the messages of one source like `RateAwareBatcher`, from arrays, many calls at a time.

    There is no clock here: of the stall rule, the part that works by event time applies. What is in no batch is kept,
    as stream, event time and number only, and laid out anew at every `add`; so give many calls at once.

    Parameters
    ----------
    streams
        The names of the streams that the numbers in `add` stand for.
    batch_length, timeout, gated
        As of `RateAwareBatcher`.

    Raises
    ------
    InvalidArgumentError
        For an option that cannot be meant.
    UnavailableError
        Where no folder can be written in which Numba could keep the compiled code.

    Notes
    -----
    Source: *RateAwareMessageBatcher* of ESS livedata; the rules stand in `RateAwareBatcher`. Compiled code is kept
    beside the package or in the user's cache folder: only the very first use waits, some 15 s.
    """

    __slots__ = (
        "_codes",
        "_count",
        "_facts",
        "_numbers",
        "_rings",
        "_row_of",
        "_rule",
        "_times",
        "_tracks",
        "_waits_for",
    )

    def __init__(
        self,
        streams: Sequence[str],
        batch_length: Duration = "1s",
        timeout: Duration | float | None = None,
        gated: Gated = True,
    ) -> None:
        self._rule = RateRule.checked(batch_length, timeout)
        may_gate = np.array([*map(gate_chooser(gated), streams), False], np.bool_)
        layout = _kernel().track_kernel
        self._row_of = np.where(may_gate, np.arange(len(may_gate)), len(may_gate) - 1).astype(np.uint32)
        self._facts = np.zeros(layout.FACTS, np.int64)
        self._tracks = np.zeros((len(may_gate), layout.TRACK_COLUMNS), np.int64)
        self._tracks[:, layout.MAY_GATE] = may_gate
        self._rings = np.zeros((len(may_gate), layout.KEPT_DIFFERENCES), np.int64)
        self._count = 0
        self._codes = np.empty(0, np.uint32)
        self._times = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)
        self._waits_for = np.empty(0, np.int32)

    @property
    def buffered(self) -> int:
        """How many messages are in the window in progress or wait for later ones."""
        return len(self._times)

    def add(
        self,
        streams: npt.NDArray[Any],
        event_times: npt.NDArray[Any],
        calls: npt.NDArray[Any] | None = None,
        *,
        flush: bool = False,
    ) -> RateBatches:
        """Take in the messages of many calls, and give out the batches that close.

        Parameters
        ----------
        streams
            Number of each message's stream: its place in the names given at first.
        event_times
            int64 ns.
        calls
            Where calls begin and end: call c brought the messages ``calls[c]`` up to before ``calls[c + 1]``. From 0 to
            the number of messages, never descending. Default: all came together.
        flush
            Give out everything in the end.

        Raises
        ------
        InvalidArgumentError
            For arrays of different lengths, numbers of unknown streams, calls that leave messages out, and 2**31
            messages or more.
        TypeError
            For arrays that cannot become integers without loss.
        """
        codes = _plain(streams, np.int64)
        times = _plain(event_times, np.int64)
        bounds = np.array([0, len(times)], np.int64) if calls is None else _plain(calls, np.int64)
        self._check(codes, times, bounds)
        carried = len(self._times)
        rows = np.concatenate([self._codes, self._row_of[codes]])
        times = np.concatenate([self._times, times])
        numbers = np.concatenate([self._numbers, np.arange(self._count, self._count + len(codes))])
        waits_for = np.concatenate([self._waits_for, np.full(len(codes), -1, np.int32)])
        self._count += len(codes)
        return self._run(rows, times, numbers, waits_for, bounds + carried, flush=flush)

    def state(self) -> bytes:
        """Write down everything that is known, options included, for `restore`."""
        factor = self._rule.factor
        facts = {
            "version": _VERSION,
            "batch_length": self._rule.batch_length,
            "factor": None if factor is None else factor.as_integer_ratio(),
            "count": self._count,
        }
        file = io.BytesIO()
        np.savez_compressed(file, **{name: getattr(self, f"_{name}") for name in _ARRAYS})
        return _STATE + json.dumps(facts).encode() + b"\n" + file.getvalue()

    @classmethod
    def restore(cls, state: bytes) -> RateAwareColumns:
        """Go on where the one that wrote ``state`` stood.

        Raises
        ------
        SchemaError
            Where ``state`` is something else or of another version.
        """
        if not state.startswith(_STATE):
            raise SchemaError(f"{len(state)} bytes are no state of rate-aware columns")
        line, _, arrays = state.removeprefix(_STATE).partition(b"\n")
        facts = json.loads(line)
        if facts["version"] != _VERSION:
            raise SchemaError(
                f"the columns' state has version {facts['version']!r} and this Waterclock reads {_VERSION};"
                " replay the source's messages since the last batch into a new one"
            )
        factor = None if facts["factor"] is None else Fraction(*facts["factor"])
        restored = cls([])
        restored._rule = RateRule.of(facts["batch_length"], factor)
        restored._count = facts["count"]
        with np.load(io.BytesIO(arrays), allow_pickle=False) as file:
            for name in _ARRAYS:
                setattr(restored, f"_{name}", file[name])
        return restored

    def _check(self, codes: Ints, times: Ints, bounds: Ints) -> None:
        known = len(self._row_of) - 1
        if len(codes) != len(times):
            raise InvalidArgumentError(f"streams, event_times: lengths {len(codes)} and {len(times)} differ")
        if len(self._times) + len(times) > _MOST_MESSAGES:
            raise InvalidArgumentError(f"{len(times)} messages are too many at once; give fewer than {_MOST_MESSAGES}")
        if len(codes) and not 0 <= codes.min() <= codes.max() < known:
            raise InvalidArgumentError(f"streams: numbers {codes.min()} to {codes.max()} of {known} streams")
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(times) or (np.diff(bounds) < 0).any():
            raise InvalidArgumentError(
                f"calls: {bounds!r} does not lead from 0 to {len(times)} without descending; give where each call"
                " begins and, last, the number of messages"
            )

    def _run(
        self,
        rows: npt.NDArray[np.uint32],
        times: Ints,
        numbers: Ints,
        waits_for: npt.NDArray[np.int32],
        calls: Ints,
        *,
        flush: bool,
    ) -> RateBatches:
        kernel = _kernel()
        layout = kernel.track_kernel
        count = len(times)
        facts, tracks = self._facts, self._tracks
        facts[[layout.JOINED, layout.ACTIVE_FROM, layout.BATCHES, layout.ALL_PILED]] = 0
        tracks[:, layout.ROOT] = layout.NONE
        tracks[:, layout.PILED] = 0
        joined, starts, ends, closed_at, reasons, until = (np.empty(count + 1, np.int64) for _ in range(6))
        children = (np.empty(count, np.int32) for _ in range(2))
        timeout = layout.NEVER if self._rule.factor is None else int(self._rule.timeout)
        kernel.run(
            rows, times, calls, self._rule.batch_length, timeout, flush, facts, tracks, self._rings,
            *children, waits_for, joined, starts, ends, closed_at, reasons, until,
        )  # fmt: skip
        closed, given_out = facts[layout.BATCHES], facts[layout.ACTIVE_FROM]
        batches = RateBatches(
            starts[:closed].copy(),
            ends[:closed].copy(),
            closed_at[:closed].copy(),
            tuple(kernel.REASONS[reason] for reason in reasons[:closed].tolist()),
            np.concatenate([[0], until[:closed]]),
            numbers[joined[:given_out]],
        )
        kept = np.concatenate([joined[given_out : facts[layout.JOINED]], np.flatnonzero(waits_for >= 0)])
        self._codes, self._times, self._numbers = rows[kept], times[kept], numbers[kept]
        self._waits_for = waits_for[kept]
        return batches


_ARRAYS = ("row_of", "facts", "tracks", "rings", "codes", "times", "numbers", "waits_for")


def _plain(values: npt.NDArray[Any], wanted: type[np.int64]) -> Ints:
    return np.require(np.asarray(values).astype(wanted, casting="safe", copy=False), requirements=["C", "A"])


def _kernel() -> Any:
    try:
        # Importing Numba takes several times as long as all else; whoever batches message by message does without.
        from waterclock.batching import rate_kernel  # noqa: PLC0415
    except RuntimeError as error:
        raise UnavailableError(
            f"Numba finds no folder for its compiled code ({error}); set NUMBA_CACHE_DIR to one that can be written"
        ) from error
    return rate_kernel
