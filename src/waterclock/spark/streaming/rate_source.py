"""One source's batching by rate, piece by piece: the columnar rule over packed rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.facts import count, each, maybe, parsed, read_as, text
from waterclock.batching.rate.columns import RateAwareColumns, RateBatches
from waterclock.batching.rate.rule import Gated, RateRule, gate_chooser
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.spark.packing import POSITIONED, PackedRow, Records, gathered, reading_order, renumbered
from waterclock.spark.streaming.outcome_rows import BATCH, REASONS
from waterclock.spark.streaming.stream_state import REMEDY, state_parts
from waterclock.time import Duration

_VERSION = 1
_FORM = b"WCT1"
_NAME = "the state of batching by rate"
_REASON_NUMBERS = {reason: number for number, reason in enumerate(REASONS)}


class RateOptions(NamedTuple):
    """The checked options of batching by rate; as of `waterclock.RateAwareBatcher`."""

    batch_length: Duration
    timeout: Duration | float | None
    gated: Gated

    @classmethod
    def checked(cls, batch_length: Duration, timeout: Duration | float | None, gated: Gated) -> RateOptions:
        """Check what the user gave.

        Raises
        ------
        InvalidArgumentError
            Naming the option and its value.
        """
        RateRule.checked(batch_length, timeout)
        gate_chooser(gated)
        return cls(batch_length, timeout, gated if callable(gated) or isinstance(gated, bool) else frozenset(gated))

    def facts(self) -> list[Any]:
        """Write the options down, for comparison with those of a checkpoint; of a function, that it is one."""
        rule = RateRule.checked(self.batch_length, self.timeout)
        ratio = None if rule.factor is None else list(rule.factor.as_integer_ratio())
        gated = self.gated
        chosen = "a function" if callable(gated) else gated if isinstance(gated, bool) else sorted(gated)
        return [rule.batch_length, ratio, chosen]


class RateOutcome(NamedTuple):
    """Messages of one source and their batches.

    Attributes
    ----------
    streams
        The streams that occur.
    messages
        Records, their streams as indices into ``streams``.
    batches
        Records of `waterclock.spark.streaming.outcome_rows.BATCH`, in order.
    """

    streams: list[str]
    messages: Records
    batches: npt.NDArray[Any]


class RateSource:
    """Batches one source like `waterclock.RateAwareBatcher`, from packed rows; an entry of the topic is one call.

    It remembers what the columnar batcher knows, the messages that wait, and the last entry that it took.
    """

    __slots__ = ("_columns", "_entry", "_messages", "_options", "_streams", "_taken")

    def __init__(self, options: RateOptions) -> None:
        self._options = options
        self._columns = RateAwareColumns([], *options)
        self._streams: list[str] = []
        self._messages: Records = np.empty(0, POSITIONED)  # those that the columns keep, in the same order
        self._taken = 0
        self._entry: tuple[int, int] | None = None

    def take(self, rows: Iterable[PackedRow], *, flush: bool = False) -> list[RateOutcome]:
        """Take in the rows of a micro-batch in any order, and give out the batches that close.

        Parameters
        ----------
        rows
            Packed rows with positions, all of each entry that occurs.
        flush
            Give out everything in the end.

        Raises
        ------
        InvalidArgumentError
            Where an entry goes on that an earlier micro-batch has begun: its messages arrived together, and batches
            that have closed without some of them are gone.
        """
        streams, arrived = gathered([(self._streams, self._messages[:0])], rows, POSITIONED)
        if len(arrived):
            arrived = arrived.take(reading_order(arrived, np.zeros(len(arrived), np.int32)))
        self._columns.admit(streams[len(self._streams) :], self._options.gated)
        self._streams = streams
        kept = self._columns.kept
        batches = self._columns.add(
            arrived["stream"].astype(np.int64),
            np.ascontiguousarray(arrived["event_time"]),
            self._calls(arrived),
            flush=flush,
        )
        known = np.concatenate([self._messages, arrived])
        numbers = np.concatenate([kept, self._taken + np.arange(len(arrived))])
        self._taken += len(arrived)
        self._messages = known.take(_places(numbers, self._columns.kept))
        if not len(batches.starts):
            return []
        return [self._outcome(batches, known.take(_places(numbers, batches.messages)))]

    def state(self) -> bytes:
        """Write down everything that is known, options included, for `restore`."""
        columns = self._columns.state()
        facts = [_VERSION, self._options.facts(), self._streams, self._taken, self._entry, len(columns)]
        return framed(_FORM, json.dumps(facts).encode(), b"\n", columns, self._messages.tobytes())

    @classmethod
    def restore(cls, state: bytes, options: RateOptions) -> RateSource:
        """Go on where the one that wrote ``state`` stood.

        Raises
        ------
        DamagedError
            Where ``state`` is one, but not as it was written.
        SchemaError
            Where it is something else or of another version.
        InvalidArgumentError
            Where it was written with other options.
        """
        line, rest = state_parts(_FORM, state, _NAME)
        with read_as(_NAME):
            version, *facts = parsed(line)
            refuse_version(version, _VERSION, REMEDY)
            written, streams, taken, entry, length = facts
            restored = cls(options)
            restored._streams, restored._taken = each(streams, text), count(taken)
            restored._entry = maybe(entry, _place)
            columns, messages = bytes(rest[: count(length)]), rest[length:]
        if written != options.facts():
            raise InvalidArgumentError(
                f"the checkpoint was written with the options {written} and the query has {options.facts()}; {REMEDY}"
            )
        restored._columns = RateAwareColumns.restore(columns, restored._streams)
        restored._messages = _kept_messages(messages, len(restored._streams))
        if not restored._columns.fits(len(restored._streams), len(restored._messages), restored._taken):
            raise DamagedError(f"{_NAME} is damaged: its messages are not those that its columns keep")
        return restored

    def _calls(self, arrived: Records) -> npt.NDArray[np.int64]:
        """Find where entries begin, and remember the last one."""
        if not len(arrived):
            return np.zeros(1, np.int64)
        ledgers, entries = arrived["ledger"], arrived["entry"]
        if self._entry is not None and (int(ledgers[0]), int(entries[0])) <= self._entry:
            raise InvalidArgumentError(
                f"entry {ledgers[0]}:{entries[0]} came in a micro-batch after that of entry"
                f" {self._entry[0]}:{self._entry[1]}; messages of an entry arrived together, so a stream must deliver"
                ' entries whole and in order, as the format "waterclock" does'
            )
        self._entry = int(ledgers[-1]), int(entries[-1])
        begins = np.flatnonzero((ledgers[1:] != ledgers[:-1]) | (entries[1:] != entries[:-1])) + 1
        return np.concatenate([[0], begins, [len(arrived)]])

    def _outcome(self, found: RateBatches, messages: Records) -> RateOutcome:
        ranks = np.argsort(np.argsort(np.array(self._streams, object), kind="stable"))
        batch_of = np.repeat(np.arange(len(found.starts)), np.diff(found.offsets))
        # Equal ones in order of arrival, as a batcher in process gives them.
        order = (found.messages, ranks[messages["stream"]], messages["event_time"], batch_of)
        messages = messages.take(np.lexsort(order))
        batches = np.empty(len(found.starts), BATCH)
        batches["start"], batches["end"], batches["closed_at"] = found.starts, found.ends, found.closed_at
        batches["first"], batches["count"] = found.offsets[:-1], np.diff(found.offsets)
        batches["reason"] = [_REASON_NUMBERS[reason] for reason in found.reasons]
        numbers = messages["stream"]
        met = np.bincount(numbers, minlength=len(self._streams)) > 0
        used = [stream for stream, occurs in zip(self._streams, met.tolist(), strict=True) if occurs]
        return RateOutcome(used, renumbered(messages, (np.cumsum(met) - 1)[numbers]), batches)


def _place(written: list[int]) -> tuple[int, int]:
    ledger, entry = written
    return count(ledger), count(entry)


def _kept_messages(data: memoryview, streams: int) -> Records:
    if len(data) % POSITIONED.itemsize:
        raise DamagedError(f"{_NAME} is damaged: {len(data)} bytes are no messages of {POSITIONED.itemsize} each")
    messages = np.frombuffer(data, POSITIONED)
    if len(messages) and messages["stream"].max() >= streams:
        raise DamagedError(f"{_NAME} is damaged: a message is of none of its {streams} streams")
    return messages


def _places(numbers: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    order = np.argsort(numbers)
    return order[np.searchsorted(numbers, wanted, sorter=order)]
