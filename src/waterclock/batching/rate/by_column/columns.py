"""Batches messages by rate as columns, many in a call, with the same rules as `RateAwareBatcher`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock._support.quoting import counted, quoted
from waterclock.batching.declared_streams import stream_names
from waterclock.batching.kernels import Kernel
from waterclock.batching.rate.by_column import layout
from waterclock.batching.rate.by_column.columns_state import RateColumnsState
from waterclock.batching.rate.by_column.outside import count_outside, latest_of_streams
from waterclock.batching.rate.by_message.aligned import ALIGNMENT, Clocks, checked_clocks
from waterclock.batching.rate.long_call import warn
from waterclock.batching.rate.period import KEPT_DIFFERENCES
from waterclock.batching.rate.rule import CUTS, ERA, RIDES, Gated, RateRule, role_chooser
from waterclock.batching.rate.runs import boundaries_by_batch, runs_of
from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS, Duration

Ints = npt.NDArray[np.int64]

KERNEL = Kernel("waterclock.batching.rate.by_column.kernel")

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
        Numbers of messages in the order in which they joined their batch, int64; the very first message is number 0.
    shifts
        The ns by which each of ``messages`` was aligned, int64; zeros unless clocks are aligned.
    runs
        As of `Batch`, ns.
    """

    starts: Ints
    ends: Ints
    closed_at: Ints
    reasons: tuple[str, ...]
    offsets: Ints
    messages: Ints
    shifts: Ints
    runs: tuple[int | None, ...]

    def batch_of(self, count: int, first: int = 0) -> Ints:
        """Return the batch of each message from ``first`` on, as its place here; -1 without one."""
        batch_of = np.full(count, -1, np.int64)
        numbers = self.messages - first
        within = (numbers >= 0) & (numbers < count)
        batches = np.repeat(np.arange(len(self.starts)), np.diff(self.offsets))
        batch_of[numbers[within]] = batches[within]
        return batch_of

    def outside(self, streams: npt.NDArray[np.integer], event_times: Ints, first: int = 0) -> Ints:
        """Count the messages of each batch that lie outside its window, as ``Batch.outside`` does.

        Parameters
        ----------
        streams, event_times
            Those of the messages from ``first`` on, up to the last that is in a batch.
        """
        windows = np.array([reason != "start" for reason in self.reasons], np.bool_)
        numbers = self.messages - first
        streams, times = streams[numbers], event_times[numbers]
        if self.shifts.any():
            batches = np.repeat(np.arange(len(self.starts)), np.diff(self.offsets))
            latest, pair = latest_of_streams(batches, streams, times + self.shifts, self.shifts)
            times = times + self.shifts[latest][pair]
        return count_outside(self.starts, self.ends, windows, self.offsets, streams, times)


class RateAwareColumns:
    """Batches the messages of one source like `RateAwareBatcher`, from arrays, many calls at a time.

    Messages that are in no batch yet are kept as stream, event time and number, and sorted again by each `add`; so pass
    many calls at once.

    Parameters
    ----------
    streams
        The names of the streams, which the numbers in `add` refer to.
    batch_length, timeout, gated, clocks, max_disorder, boundaries
        As of `RateAwareBatcher`.

    Raises
    ------
    InvalidArgumentError
        For an invalid option.

    Notes
    -----
    Source: *RateAwareMessageBatcher* of ESS livedata; `RateAwareBatcher` describes the rules. Wheels contain the rules
    compiled. Without compiled rules, the first 50,000 messages of a process run interpreted. For more, Numba compiles
    the rules, which takes up to a minute once per installation, and keeps the result next to the package or in the
    user's cache folder.
    """

    __slots__ = (
        "_boundaries",
        "_clocks",
        "_codes",
        "_count",
        "_factor",
        "_facts",
        "_names",
        "_numbers",
        "_paused",
        "_rings",
        "_row_of",
        "_run_of_source",
        "_shifts",
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
        clocks: Clocks = "as_sent",
        max_disorder: Duration = 0,
        boundaries: Iterable[str] | None = None,
    ) -> None:
        rule = RateRule.checked(batch_length, timeout, max_disorder)
        self._names = stream_names(streams, "streams")
        self._factor = rule.factor
        self._boundaries = frozenset(stream_names(boundaries or (), "boundaries"))
        self._run_of_source: list[int | None] = [None]
        roles = np.array([*map(role_chooser(gated, self._boundaries), streams), RIDES], np.int64)
        self._row_of = np.where(roles != RIDES, np.arange(len(roles)), len(roles) - 1).astype(np.uint32)
        self._facts = np.zeros(layout.ALL_FACTS, np.int64)
        self._facts[[layout.LENGTH, layout.TIMEOUT_NS]] = in_kernel(rule)
        self._facts[[layout.AUTO, layout.DISORDER]] = rule.auto, rule.max_disorder
        self._tracks = np.zeros((len(roles), layout.TRACK_COLUMNS), np.int64)
        self._tracks[:, layout.ROLE] = roles
        self._rings = np.zeros((len(roles), KEPT_DIFFERENCES), np.int64)
        self._clocks = np.zeros((len(self._names), checked_clocks(clocks) * ALIGNMENT.interpreted.COLUMNS), np.int64)
        self._paused = True  # no time passes until the clock is read again
        self._count = 0
        self._codes = np.empty(0, np.uint32)
        self._times = np.empty(0, np.int64)
        self._shifts = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)
        self._waits_for = np.empty(0, np.int32)

    @property
    def batch_length(self) -> int:
        """Length of the window in progress, ns."""
        return int(self._facts[layout.LENGTH])

    @property
    def buffered(self) -> int:
        """How many messages are in the window in progress or wait for later windows."""
        return len(self._times)

    def set_batch_length(self, batch_length: Duration) -> None:
        """Change the length from the next window on; the timeout stays in proportion.

        Raises
        ------
        InvalidArgumentError
            As `RateAwareBatcher.set_batch_length`.
        """
        disorder = int(self._facts[layout.DISORDER])
        rule = RateRule.of(self.batch_length, self._factor, max_disorder=disorder).with_length(batch_length)
        begun = self._facts[layout.BEGUN]
        columns = [layout.NEXT_LENGTH, layout.NEXT_TIMEOUT] if begun else [layout.LENGTH, layout.TIMEOUT_NS]
        is_used = begun and rule.batch_length == self._facts[layout.LENGTH]
        self._facts[columns] = (0, 0) if is_used else in_kernel(rule)

    @property
    def kept(self) -> Ints:
        """The numbers of the buffered messages, int64; `RateBatches.messages` of later calls may contain them."""
        return self._numbers

    def fits(self, streams: int, buffered: int, taken: int) -> bool:
        """Return whether the state has this many streams, keeps this many messages, and has seen this many in total."""
        return (len(self._row_of) - 1, self.buffered, self._count) == (streams, buffered, taken)

    def admit(self, streams: Sequence[str], gated: Gated = True) -> None:
        """Add the names of further streams; they get the next numbers.

        Parameters
        ----------
        streams
            Unknown names.
        gated
            Which of them may gate.
        """
        roles = np.array(list(map(role_chooser(gated, self._boundaries), streams)), np.int64)
        riding = len(self._row_of) - 1
        added = len(roles)
        tracks = np.zeros((added, self._tracks.shape[1]), np.int64)
        tracks[:, layout.ROLE] = roles
        rings = np.zeros((added, self._rings.shape[1]), np.int64)
        # Streams that ride along share the last row, which moves.
        self._tracks = np.concatenate([self._tracks[:riding], tracks, self._tracks[riding:]])
        self._rings = np.concatenate([self._rings[:riding], rings, self._rings[riding:]])
        rows = np.where(roles != RIDES, riding + np.arange(added), riding + added).astype(np.uint32)
        moved = [_moved(self._row_of, riding, added), _moved(self._codes, riding, added)]
        self._row_of = np.concatenate([moved[0][:-1], rows, moved[0][-1:]])
        self._codes = moved[1]
        self._waits_for = _moved(self._waits_for, riding, added)
        self._clocks = np.concatenate([self._clocks, np.zeros((added, self._clocks.shape[1]), np.int64)])
        self._names += streams

    def add(
        self,
        streams: npt.NDArray[Any],
        event_times: npt.NDArray[Any],
        calls: npt.NDArray[Any] | None = None,
        clock: npt.NDArray[Any] | None = None,
        *,
        flush: bool = False,
        receive_times: npt.NDArray[Any] | None = None,
    ) -> RateBatches:
        """Add the messages of many calls, and return the batches that they close.

        Parameters
        ----------
        streams
            Number of each message's stream: its place in the list of names.
        event_times
            Whole numbers, ns.
        calls
            The bounds of calls: call c brought the messages from ``calls[c]`` to before ``calls[c + 1]``. Ascending,
            from 0 to the number of messages. Default: all came together.
        clock
            The clock's reading at each call, int64 ns, for the stall rule only. Without it no time passes, and only the
            part of the stall rule that works by event time applies. Call it without messages to check the clock.
        flush
            Return everything at the end.
        receive_times
            Whole numbers, ns; only if clocks are aligned.

        Raises
        ------
        InvalidArgumentError
            For arrays of different lengths, numbers of unknown streams, calls that omit messages, a clock without one
            reading per call, receive times that are missing although clocks are aligned, 2**31 messages or more, and
            arrays of other types than integers: floats, booleans, NumPy's datetimes, which have no time zone.
        UnavailableError
            If Numba must compile, and no folder is writable in which it could keep the compiled code.

        Warns
        -----
        LongCallWarning
            For a call that brings a stream's messages from more than 1000 lengths; it names the stream.
        """
        codes = _plain(streams, "streams")
        times = _plain(event_times, "event_times")
        bounds = np.array([0, len(times)], np.int64) if calls is None else _plain(calls, "calls")
        readings = np.empty(0, np.int64) if clock is None else _plain(clock, "clock")
        self._check(codes, times, bounds)
        if clock is not None and len(readings) != len(bounds) - 1:
            raise InvalidArgumentError(
                f"clock must hold a time for each of the {len(bounds) - 1} calls, got {counted(len(readings), 'time')}"
            )
        self._warn_of_long_calls(codes, times, bounds)
        shifts = self._aligned(codes, times, bounds, receive_times)
        self._paused |= clock is None
        self._pass_time(readings)
        carried = len(self._times)
        rows = np.concatenate([self._codes, self._row_of[codes]])
        times = np.concatenate([self._times, times + shifts])
        self._shifts = np.concatenate([self._shifts, shifts])
        numbers = np.concatenate([self._numbers, np.arange(self._count, self._count + len(codes))])
        waits_for = np.concatenate([self._waits_for, np.full(len(codes), -1, np.int32)])
        self._count += len(codes)
        return self._run(rows, times, numbers, waits_for, bounds + carried, readings, flush=flush)

    def state(self) -> bytes:
        """Encode the whole state, including options, for `restore`."""
        elsewhere, runs = self._rows()
        arrays = {name: getattr(self, f"_{name}") for name in _ARRAYS} | {
            "facts": self._facts[: layout.FACTS],
            "elsewhere": elsewhere[: self._facts[layout.ERAS]],
            "runs": runs[: self._facts[layout.RUNS]],
        }
        names = sorted(self._boundaries)
        return RateColumnsState(self._factor, self._count, names, self._run_of_source[0], **arrays).to_bytes()

    @classmethod
    def restore(cls, state: bytes, streams: Sequence[str] = ()) -> RateAwareColumns:
        """Restore the columns from ``state``.

        Parameters
        ----------
        state
            The output of `state`.
        streams
            The names of its streams, for warnings, which otherwise show their numbers.

        Raises
        ------
        DamagedError
            If ``state`` is corrupt.
        SchemaError
            If it is something else or of another version.

        Notes
        -----
        For the clock, no time passes between `state` and `restore`.
        """
        known = RateColumnsState.from_bytes(state)
        restored = cls([], boundaries=known.boundaries)
        restored._run_of_source = [known.run]
        restored._factor, restored._count = known.factor, known.taken
        for name in _ARRAYS:
            setattr(restored, f"_{name}", getattr(known, name))
        restored._facts[: len(known.facts)] = known.facts
        elsewhere, runs = restored._rows()
        elsewhere[: len(known.elsewhere)] = known.elsewhere
        runs[: len(known.runs)] = known.runs
        numbers = range(len(streams), len(restored._row_of) - 1)
        restored._names = [*streams, *map(str, numbers)]
        return restored

    def _rows(self) -> tuple[Ints, Ints]:
        """Return views of the rows of other eras' traffic and of runs of starts, which follow the other facts."""
        elsewhere, runs = np.split(self._facts[layout.ELSEWHERE_FROM :], [layout.RUNS_FROM - layout.ELSEWHERE_FROM])
        return elsewhere.reshape(-1, layout.ELSEWHERE_COLUMNS), runs.reshape(-1, layout.RUN_COLUMNS)

    def _check(self, codes: Ints, times: Ints, bounds: Ints) -> None:
        known = len(self._row_of) - 1
        if len(codes) != len(times):
            raise InvalidArgumentError(
                f"streams and event_times must have equal lengths, got {len(codes)} and {len(times)}"
            )
        if len(self._times) + len(times) > _MOST_MESSAGES:
            raise InvalidArgumentError(f"a call must have fewer than {_MOST_MESSAGES} messages, got {len(times)}")
        if len(codes) and not 0 <= codes.min() <= codes.max() < known:
            raise InvalidArgumentError(
                f"streams must be integers ≥ 0 and < {known}, got {codes.min()} to {codes.max()}"
            )
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(times) or (np.diff(bounds) < 0).any():
            raise InvalidArgumentError(
                f"calls must be ascending offsets from 0 to {len(times)} (the number of messages), got {quoted(bounds)}"
            )

    def _aligned(self, codes: Ints, times: Ints, bounds: Ints, receive_times: npt.NDArray[Any] | None) -> Ints:
        """Return by how much (ns) each message is aligned."""
        shifts = np.zeros(len(times), np.int64)
        if not self._clocks.shape[1]:
            return shifts
        if receive_times is None:
            raise InvalidArgumentError("receive_times must be given if clocks are aligned, got None")
        received = _plain(receive_times, "receive_times")
        if len(received) != len(times):
            raise InvalidArgumentError(
                f"receive_times and event_times must have equal lengths, got {len(received)} and {len(times)}"
            )
        one_source, aligned = np.zeros(len(self._clocks), np.int64), np.zeros(1, np.int64)
        arrays = self._clocks, one_source, bounds, codes, times, received, aligned, shifts
        ALIGNMENT.call("offsets_of", len(times), *arrays)
        return shifts

    def _warn_of_long_calls(self, codes: Ints, times: Ints, bounds: Ints) -> None:
        for _, code in long_calls(codes, times, bounds, self.batch_length):
            warn(f"stream {quoted(self._names[code])}", self.batch_length)

    def _pass_time(self, readings: Ints) -> None:
        """If the clock was not read for a while, resume counting at the first reading."""
        if self._paused and len(readings):
            self._facts[layout.SINCE] += readings[0] - self._facts[layout.LOOKED]
            self._paused = False

    def _run(
        self,
        rows: npt.NDArray[np.uint32],
        times: Ints,
        numbers: Ints,
        waits_for: npt.NDArray[np.int32],
        calls: Ints,
        clock: Ints,
        *,
        flush: bool,
    ) -> RateBatches:
        count = len(times)
        joined, given, kept = (np.empty(count + 1, np.int64) for _ in range(3))
        table = np.empty((count + 1, layout.BATCH_COLUMNS), np.int64)
        links = np.empty((count, layout.LINK_COLUMNS), np.int32)
        links[:, layout.WAITS_FOR] = waits_for
        ends_of = [np.array([0, total], np.int64) for total in (count, len(calls), len(self._tracks), 0)]
        keeps = KERNEL.call(
            "run", count,
            rows, times, ends_of[0], calls, ends_of[1], clock, ends_of[2], np.array([flush]),
            self._facts[np.newaxis], self._tracks, self._rings, links, joined, table, ends_of[3], given, kept,
        )  # fmt: skip
        starts, ends, closed_at, reasons, until = table[: ends_of[3][1]].T.copy()
        leaving, offsets = given[: count - keeps], np.concatenate([[0], until])
        boundaries = {}
        if self._boundaries:
            boundaries = boundaries_by_batch(offsets, times[leaving], self._tracks[rows[leaving], layout.ROLE] == CUTS)
        batches = RateBatches(
            starts,
            ends,
            closed_at,
            tuple(layout.REASONS[reason] for reason in reasons.tolist()),
            offsets,
            numbers[leaving],
            self._shifts[leaving],
            tuple(runs_of(self._run_of_source, (0, len(starts)), starts, ends, boundaries)),
        )
        kept = kept[:keeps]
        self._codes, self._times, self._numbers = rows[kept], times[kept], numbers[kept]
        self._waits_for, self._shifts = links[kept, layout.WAITS_FOR], self._shifts[kept]
        return batches


# The arrays that the state stores unchanged.
_ARRAYS = ("row_of", "tracks", "rings", "codes", "times", "numbers", "waits_for", "clocks", "shifts")


def long_calls(codes: npt.NDArray[Any], times: Ints, bounds: Ints, length: int) -> Iterator[tuple[int, int]]:
    """Find calls that brought messages of a stream from more than 1000 lengths (ns): their starts and streams."""
    for call in _long_calls(times, bounds, ERA * length):
        first, stop = bounds[call], bounds[call + 1]
        for code in np.unique(codes[first:stop]):
            of_stream = times[first:stop][codes[first:stop] == code]
            if int(of_stream.max()) - int(of_stream.min()) > ERA * length:
                yield int(first), int(code)


def _long_calls(times: Ints, bounds: Ints, farthest: int) -> list[int]:
    """Find the calls with event times further (ns) apart than that."""
    if not len(times) or int(times.max()) - int(times.min()) <= farthest:
        return []
    calls = np.flatnonzero(np.diff(bounds) > 1)
    if not len(calls):
        return []
    # Pairs of the start and end of a call; the results between two pairs are not used.
    pairs = np.stack([bounds[calls], bounds[calls + 1]], axis=1).ravel()
    pairs = pairs[:-1] if pairs[-1] == len(times) else pairs
    newest, oldest = (of.reduceat(times, pairs)[::2].astype(np.uint64) for of in (np.maximum, np.minimum))
    return calls[newest - oldest > np.uint64(farthest)].tolist()


def in_kernel(rule: RateRule) -> tuple[int, int]:
    """Return length and timeout in the kernel's form."""
    return rule.batch_length, layout.NEVER if rule.factor is None else int(rule.timeout)


def _moved(rows: npt.NDArray[Any], riding: int, by: int) -> npt.NDArray[Any]:
    return np.where(rows == riding, riding + by, rows).astype(rows.dtype)


def _plain(values: npt.NDArray[Any], name: str) -> Ints:
    given = np.asarray(values)
    if not given.size and given.dtype == np.float64:
        given = given.astype(np.int64)  # NumPy's type for an empty list
    if given.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{name} must be an array of integers (times: int64 nanoseconds since the epoch, UTC), got {given.dtype}"
        )
    if given.dtype == np.uint64 and given.max(initial=0) > MAX_NS:
        raise InvalidArgumentError(f"{name} must fit in 64 bits, got {given.max()}. Are the values nanoseconds?")
    return np.require(given.astype(np.int64, copy=False), requirements=["C", "A"])
