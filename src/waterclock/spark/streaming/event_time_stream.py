"""One source's batching by event time, micro-batch by micro-batch: the columnar rule with something to remember."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from waterclock.batching.event_time.columns import assign_arrays, closing_times, judge_arrivals
from waterclock.batching.event_time.rule import ACCEPTED, FUTURE, LATE, REJECTIONS, UNDECIDED, EventTimeRule
from waterclock.batching.facts import each, flag, moment, parsed, read_as, text
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed
from waterclock.errors import InvalidArgumentError
from waterclock.spark.packing import POSITIONED, PackedRow, Records, gathered, reading_order
from waterclock.spark.streaming.outcome_rows import BATCH, NO_BATCHES, REASONS, Outcome, outcome
from waterclock.spark.streaming.stream_state import REMEDY, kept_messages, state_parts
from waterclock.time import MAX_NS, MIN_NS

_VERSION = 1
_FORM = b"WCS1"
_UNFRAMED = b"waterclock event-time stream "
"""How the states of earlier versions begin, which have no checksum."""

_NAME = "the state of batching by event time"
_NS_PER_MS = 1_000_000
_TIMEOUT, _CONFLICT = REASONS.index("timeout"), REASONS.index("conflict")


class EventTimeStream:
    """Batches one source like `waterclock.EventTimeBatcher`, from packed rows.

    What it remembers is the receive clock and the messages of open windows. The rule is run anew over them and what has
    come: windows given out were whole, and what comes later is late for them, so the open ones begin where they did.

    Parameters
    ----------
    rule
        The checked options.
    record
        `waterclock.spark.packing.PLAIN` or `POSITIONED`.
    """

    __slots__ = ("_clock", "_messages", "_record", "_rule", "_streams")

    def __init__(self, rule: EventTimeRule, record: np.dtype[Any]) -> None:
        self._rule = rule
        self._record = record
        self._clock = MIN_NS  # the least receive time that may still come
        self._streams: list[str] = []
        self._messages: Records = np.empty(0, record)  # of open windows, in reading order

    def take(self, rows: Iterable[PackedRow], watermark: int) -> list[Outcome]:
        """Take in the rows of a micro-batch, perhaps none, and give out what is decided.

        Parameters
        ----------
        rows
            Packed rows in any order. Messages with positions are taken in that order, others in order of receive time.
        watermark
            A promise, ms since the epoch: what any source receives before it is in this micro-batch or came earlier.
            0 promises nothing.
        """
        if watermark > 0:
            self._clock = max(self._clock, min(watermark * _NS_PER_MS, MAX_NS))
        streams, arrived = gathered([(self._streams, self._messages)], rows, self._record)
        known = len(self._messages)
        arrived = arrived.take(np.concatenate([np.arange(known), known + _reading_order(arrived[known:])]))
        outcomes: list[Outcome] = []
        if len(arrived) > known:
            judged = self._judge(arrived[known:])
            for verdict in (LATE, FUTURE):
                refused = np.flatnonzero(judged == verdict)
                if len(refused):
                    outcomes.append(outcome(arrived[known:].take(refused), streams, REJECTIONS[verdict], NO_BATCHES))
            if outcomes:
                accepted = np.concatenate([np.ones(known, np.bool_), judged == ACCEPTED])
                arrived = arrived.compress(accepted)
        return outcomes + self._decide(arrived, streams)

    @property
    def wakes_at(self) -> int | None:
        """The watermark, ms, at which to `take` again though nothing has come; None where nothing is remembered."""
        if not len(self._messages):
            return None if self._clock == MIN_NS else -(-self._clock // _NS_PER_MS)
        rule = self._rule
        # A conflict may let the first window close sooner; then it is given out later than it could be, no different.
        latest = int(self._messages["event_time"].min()) + rule.window + rule.max_delay
        return min(latest, MAX_NS - 1) // _NS_PER_MS + 1

    def forgettable(self, watermark: int) -> bool:
        """Tell whether a stream that begins anew at this watermark would know as much."""
        return not len(self._messages) and self._clock <= watermark * _NS_PER_MS

    def state(self) -> bytes:
        """Write down everything that is known, options included, for `restore`."""
        facts = [_VERSION, list(self._rule), self._record == POSITIONED, self._clock, self._streams]
        return framed(_FORM, json.dumps(facts).encode(), b"\n", self._messages.tobytes())

    @classmethod
    def restore(cls, state: bytes, rule: EventTimeRule, record: np.dtype[Any]) -> EventTimeStream:
        """Go on where the one that wrote ``state`` stood.

        Raises
        ------
        DamagedError
            Where ``state`` is one, but not as it was written.
        SchemaError
            Where it is something else or of another version.
        InvalidArgumentError
            Where it was written with other options: windows that are open would be cut by two rules.
        """
        line, messages = state_parts(_FORM, _UNFRAMED, state, _NAME)
        with read_as(_NAME):
            version, *facts = parsed(line)
            refuse_version(version, _VERSION, REMEDY)
            options, positioned, clock, streams = facts
            restored = cls(rule, record)
            restored._clock, restored._streams = moment(clock), each(streams, text)
            known = tuple(options), flag(positioned)
        if known != (rule, record == POSITIONED):
            raise InvalidArgumentError(
                f"the checkpoint was written with the options {options}, positions {positioned}, and the query has"
                f" {list(rule)}, positions {record == POSITIONED}; {REMEDY}"
            )
        restored._messages = kept_messages(messages, record, restored._streams, _NAME)
        return restored

    def _judge(self, arrived: Records) -> npt.NDArray[np.uint8]:
        """Apply rules 1 and 2, and move the receive clock."""
        clock = np.maximum.accumulate(np.maximum(arrived["receive_time"], self._clock))
        self._clock = int(clock[-1])
        return judge_arrivals(arrived["event_time"], clock, self._rule)

    def _decide(self, messages: Records, streams: list[str]) -> list[Outcome]:
        """Apply the other rules to accepted messages, give out what is decided and keep the rest."""
        rule, now = self._rule, self._clock - 1
        if not len(messages) or now < MIN_NS:
            self._keep(messages, streams)
            return []
        event_times = np.ascontiguousarray(messages["event_time"])
        # They are accepted already, so the kernel must find them neither late nor early; of two equal ones it keeps
        # the first.
        found = assign_arrays(
            np.zeros(len(messages), np.int32),
            messages["stream"].astype(np.int32),
            event_times,
            np.minimum(event_times, now),
            rule._replace(max_lead=MAX_NS),
            now=now,
        )
        self._keep(messages.compress(found.verdicts == UNDECIDED), streams)
        outcomes = [
            outcome(messages.compress(found.verdicts == verdict), streams, REJECTIONS[verdict], NO_BATCHES)
            for verdict in np.unique(found.verdicts).tolist()
            if verdict not in (ACCEPTED, UNDECIDED)
        ]
        closed = np.flatnonzero(found.verdicts == ACCEPTED)
        if len(closed):
            ranks = np.argsort(np.argsort(np.array(streams, object), kind="stable"))
            closed = closed[np.lexsort((ranks[messages["stream"][closed]], event_times[closed]))]
            batches = _batches(found.starts[closed], found.ends[closed], found.conflicts[closed], rule)
            outcomes.append(outcome(messages.take(closed), streams, None, batches))
        return outcomes

    def _keep(self, messages: Records, streams: list[str]) -> None:
        kept = outcome(messages, streams, None, NO_BATCHES)
        self._messages, self._streams = kept.messages, kept.streams


def _reading_order(messages: Records) -> npt.NDArray[np.intp]:
    if messages.dtype == POSITIONED and len(messages):
        return reading_order(messages, np.zeros(len(messages), np.int32))
    return np.argsort(messages["receive_time"], kind="stable")


def _batches(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], conflicts: npt.NDArray[np.uint8], rule: EventTimeRule
) -> npt.NDArray[Any]:
    first = np.flatnonzero(np.concatenate([[True], starts[1:] != starts[:-1]]))
    batches = np.empty(len(first), BATCH)
    batches["start"], batches["end"] = starts[first], ends[first]
    batches["closed_at"] = closing_times(ends[first], rule)
    batches["first"], batches["count"] = first, np.diff(first, append=len(starts))
    batches["reason"] = np.where(conflicts[first], _CONFLICT, _TIMEOUT)
    return batches
