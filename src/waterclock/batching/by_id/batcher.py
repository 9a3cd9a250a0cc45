"""Batches by id: messages of a source with the same integer id belong together."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch, CloseReason, Rejection, RejectReason
from waterclock.batching.by_id.rule import IdOf, IdRule, closing_time, number_in
from waterclock.batching.by_id.state import IdState, OpenId
from waterclock.batching.by_id.taken_ids import TakenIds
from waterclock.batching.stats import BatcherStats
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS, Duration, Time, to_time

_order = attrgetter("event_time", "stream")


class IdBatcher:
    """Batches the messages of one source by an integer id that they carry, such as the number of a pulse or a frame.

    For the messages of one source, max delay D:

    1. the messages with the same id are a batch, whatever their event times;
    2. it closes at the receive time of its first message + D (``timeout``), or, if streams are declared, as soon as it
       holds a message of each of them (``complete``), with the same contents;
    3. received more than D after the first message of its id: rejected ``late``. Exactly D is accepted;
    4. same stream and same id as an accepted message: rejected ``duplicate``;
    5. without an id that is an int64: rejected ``no_id``; of a stream that was not declared: rejected ``undeclared``.

    The ids need not be ordered or consecutive. The result depends on the set of messages, not on the order in which
    messages with the same receive time are added. The receive clock only moves forward. A message with an earlier
    receive time is treated as received now.

    Parameters
    ----------
    id_of
        The name of the header that holds the id, as a decimal number; or a function of the message that returns an int,
        or None for a message without an id. Ids are int64 except -2⁶³.
    streams
        All streams of the source.
    max_delay
        How much later than the first message of an id its other messages may be received.

    Raises
    ------
    InvalidArgumentError
        For an invalid option.

    Notes
    -----
    An id must not be reused: a source whose counter restarts needs another name. The batcher remembers the returned
    ids, as runs of consecutive ids. If there are more than 10,000 runs, it merges the runs of the smallest ids.
    ``missing_ids`` finds missing ids. The ``window`` of a batch reaches from its first to its last event time.
    """

    __slots__ = ("_ahead", "_floor", "_open", "_rejected", "_returned", "_rule", "_source", "_taken", "_until")

    def __init__(self, id_of: IdOf, streams: Iterable[str] | None = None, *, max_delay: Duration) -> None:
        self._rule = IdRule.checked(id_of, max_delay, streams)
        self._source: str | None = None
        self._floor = MIN_NS  # the earliest receive time that may still come
        self._ahead = 0  # how long before it the newest arrival was received, ns
        self._open: dict[int, dict[str, Message]] = {}  # by id, in the order in which they close
        self._returned: dict[int, frozenset[str]] = {}  # the streams of ids that were returned before they close
        self._until: dict[int, int] = {}  # when ids close, ns: those in `_open` and `_returned`, in this order
        self._taken = TakenIds()
        self._rejected: list[Rejection] = []

    def add(self, message: Message, now: Time | None = None) -> list[Batch]:
        """Add a message, and return the batches that it closes.

        Parameters
        ----------
        message
            A message of this batcher's source, which the first message sets.
        now
            The receive clock, ns: when the message was received. Default ``message.receive_time``.

        Returns
        -------
        list of Batch
            In order of closing; often empty.

        Raises
        ------
        InvalidArgumentError
            For a message of another source, if neither ``now`` nor the message has a receive time, and if the function
            ``id_of`` returns neither an id nor None. The batcher is then unchanged.
        """
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise InvalidArgumentError(f"message must be a waterclock.Message, got {quoted(message)}")
        clock = message.receive_time if now is None else to_time(now, "now")
        clock, number = self._check(message, clock)
        self._source = message.source
        self._ahead = max(0, self._floor - clock)
        self._floor = floor = max(self._floor, clock)
        batches = self._take_ended(floor)
        if number is None:
            self._rejected.append(Rejection(message, "no_id"))
            return batches
        if (reason := self._refusal(number, message.stream)) is not None:
            self._rejected.append(Rejection(message, reason))
            return batches
        streams = self._open.get(number)
        if streams is None:
            streams = self._open[number] = {}
            self._until[number] = closing_time(floor, self._rule.max_delay)
        streams[message.stream] = message
        if self._rule.streams is not None and len(streams) == len(self._rule.streams):
            batches.append(self._return(number, "complete"))
        return batches

    def advance(self, now: Time) -> list[Batch]:
        """Advance the receive clock: a promise that no message received at or before ``now`` comes later.

        Returns
        -------
        list of Batch
            The batches whose ``closed_at`` is at or before ``now``, in order of closing.
        """
        self._floor = max(self._floor, to_time(now, "now") + 1)
        return self._take_ended(self._floor)

    def flush(self) -> list[Batch]:
        """Close every open batch at once, as at the end of the data; the receive clock stays.

        A later message with the id of a returned batch is rejected, as a duplicate or late.
        """
        return [self._return(number, "flush") for number in list(self._open)]

    def reset(self, source: str | None = None) -> list[Batch]:
        """Reset the receive clock, for example after a message that was received by a clock far ahead.

        Open messages are returned, as by `flush`, and the next message sets the clock again. Later messages of returned
        ids are late.

        Parameters
        ----------
        source
            Must be this batcher's source, which is the default.

        Raises
        ------
        InvalidArgumentError
            For another source.
        """
        if source is not None and source != self._source:
            whose = "it has none yet" if self._source is None else quoted(self._source)
            raise InvalidArgumentError(f"source must be the batcher's source ({whose}), got {quoted(source)}")
        batches = self.flush()
        self._floor, self._ahead = MIN_NS, 0
        for number in self._until:
            self._taken.add(number)
        self._until.clear()
        self._returned.clear()
        return batches

    def stats(self) -> BatcherStats:
        """Return the state of the receive clock, and how far it is ahead of the messages."""
        clock = None if self._floor == MIN_NS else min(self._floor, MAX_NS)
        return BatcherStats(self._source, clock, self._ahead, sum(map(len, self._open.values())), {}, {})

    @property
    def receive_clock(self) -> int:
        """The earliest receive time that may still come, ns; before all times if no message has come."""
        return self._floor

    def is_done(self, since: int, promised: int) -> bool:  # noqa: ARG002  # of the protocol; an id may come at any time
        """Return whether no message was received after ``since``, no batch is open and no rejection is untaken."""
        return not self._open and not self._rejected and self._floor <= since

    @property
    def next_deadline(self) -> int | None:
        """The earliest ``now`` for which `advance` closes a batch, ns; None if nothing is open."""
        return next((self._until[number] for number in self._open), None)

    @property
    def sleeps_until(self) -> int | None:
        """The same as `next_deadline`."""
        return self.next_deadline

    def take_rejected(self) -> list[Rejection]:
        """Return the messages rejected since the last call, in the order of their rejection."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def state(self) -> bytes:
        """Encode the whole state of the batcher, including its options except a function, for `restore`."""
        return IdState(
            self._rule,
            self._source,
            self._floor,
            [
                OpenId(number, until, list(self._open.get(number, {}).values()), self._returned.get(number))
                for number, until in self._until.items()
            ],
            self._taken,
            self._rejected,
        ).to_bytes()

    @classmethod
    def restore(cls, state: bytes, id_of: IdOf | None = None) -> IdBatcher:
        """Restore a batcher from ``state``, to continue after its last message.

        Parameters
        ----------
        state
            The output of `state`.
        id_of
            The function, if there was one: the state cannot store it.

        Raises
        ------
        SchemaError
            If ``state`` is something else or of another version.
        InvalidArgumentError
            If the state needs a function and ``id_of`` is None, or the other way round.
        """
        known = IdState.from_bytes(state, id_of)
        batcher = cls(known.rule.id_of, known.rule.streams, max_delay=known.rule.max_delay)
        batcher._source, batcher._floor = known.source, known.floor
        for number, until, messages, returned in known.open:
            batcher._until[number] = until
            if returned is None:
                batcher._open[number] = {message.stream: message for message in messages}
            else:
                batcher._returned[number] = returned
        batcher._taken, batcher._rejected = known.taken, known.rejected
        return batcher

    def _check(self, message: Message, clock: int | None) -> tuple[int, int | None]:
        """Return a message's receive time and id, without changing the batcher."""
        if clock is None:
            raise InvalidArgumentError(
                f"receive_time must be set, got None in {quoted(message)}. Set it, or pass the time:"
                " add(message, now=…)"
            )
        if self._source not in (None, message.source):
            raise InvalidArgumentError(
                f"source must be {quoted(self._source)}, as in earlier messages, got {quoted(message.source)}."
                " Use BySource for many sources"
            )
        return clock, number_in(message, self._rule.id_of)

    def _refusal(self, number: int, stream: str) -> RejectReason | None:
        """Return why a message received now is rejected; None if it is accepted."""
        if self._rule.streams is not None and stream not in self._rule.streams:
            return "undeclared"
        if (messages := self._open.get(number)) is not None:
            return "duplicate" if stream in messages else None
        if (returned := self._returned.get(number)) is not None:
            return "duplicate" if stream in returned else "late"
        return "late" if number in self._taken else None

    def _take_ended(self, floor: int) -> list[Batch]:
        batches: list[Batch] = []
        while self._until:
            number = next(iter(self._until))
            if self._until[number] >= floor:
                break
            if self._returned.pop(number, None) is None:
                batches.append(self._batch(number, "timeout"))
            del self._until[number]
            self._taken.add(number)
        return batches

    def _return(self, number: int, reason: CloseReason) -> Batch:
        """Return a batch before its id closes: until then, QoS 1 may redeliver its messages."""
        self._returned[number] = frozenset(self._open[number])
        return self._batch(number, reason)

    def _batch(self, number: int, reason: CloseReason) -> Batch:
        assert self._source is not None  # noqa: S101  # something is open, so there was a message
        messages = tuple(sorted(self._open.pop(number).values(), key=_order))
        start, end = messages[0].event_time, messages[-1].event_time
        return Batch(self._source, start, end, self._until[number], reason, messages, number)
