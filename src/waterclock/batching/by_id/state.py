"""Stores the state of an id batcher: messages as Arrow IPC, and the rest as JSON in the schema metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, get_args

from waterclock.arrow import from_arrow
from waterclock.batching.batch import Rejection, RejectReason
from waterclock.batching.by_id.rule import IdOf, IdRule
from waterclock.batching.by_id.taken_ids import TakenIds
from waterclock.batching.facts import count, each, maybe, moment, parsed, read_as, text, whole
from waterclock.batching.state_bytes import StateForm, refuse_version
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

_FORM = StateForm(b"WCN1", b"waterclock.id_batcher", "the state of an id batcher")
_VERSION = 1
_REASONS: dict[str, RejectReason] = {reason: reason for reason in get_args(RejectReason)}


class OpenId(NamedTuple):
    """An id that has not closed."""

    number: int  # the id
    until: int  # when it closes, ns
    messages: list[Message]  # its messages; none if they were returned
    returned: frozenset[str] | None  # the streams that were returned; None if none were


@dataclass(slots=True)
class IdState:
    """The whole state of an id batcher."""

    rule: IdRule  # its options
    source: str | None  # the source of its messages; None before the first
    floor: int  # the earliest receive time that may still come, ns
    open: list[OpenId]  # the ids that have not closed, in order of closing
    taken: TakenIds  # the others
    rejected: list[Rejection]  # rejections not yet taken

    def to_bytes(self) -> bytes:
        """Write the state; messages of the open batches first, then the rejected ones."""
        taken = self.taken
        facts = {
            "version": _VERSION,
            "header": None if callable(self.rule.id_of) else self.rule.id_of,
            "max_delay": self.rule.max_delay,
            "streams": self.rule.streams,
            "source": self.source,
            "floor": self.floor,
            "open": [
                [number, until, len(messages), None if returned is None else sorted(returned)]
                for number, until, messages, returned in self.open
            ],
            "firsts": taken.firsts,
            "lasts": taken.lasts,
            "rejected": [rejection.reason for rejection in self.rejected],
        }
        messages = [message for each in self.open for message in each.messages]
        messages += [rejection.message for rejection in self.rejected]
        return _FORM.write(json.dumps(facts).encode(), messages)

    @classmethod
    def from_bytes(cls, data: bytes, id_of: IdOf | None) -> IdState:
        """Read back what `to_bytes` wrote; see `IdBatcher.restore`."""
        written, columns = _FORM.read(data)
        with read_as(_FORM.name):
            facts = parsed(written)
            refuse_version(facts["version"], _VERSION)
            header = maybe(facts["header"], text)
        if (header is None) == (id_of is None):
            needed = (
                "the function of the saved batcher"
                if id_of is None
                else f"None, because header {header!r} holds the ids"
            )
            raise InvalidArgumentError(f"id_of must be {needed}, got {id_of!r}")
        with read_as(_FORM.name):
            return _from_facts(facts, header or id_of, list(from_arrow(columns)))  # pyright: ignore[reportArgumentType]  # either is None


def _from_facts(facts: dict[str, Any], id_of: IdOf, messages: list[Message]) -> IdState:
    taken = TakenIds()
    taken.firsts, taken.lasts = each(facts["firsts"], whole), each(facts["lasts"], whole)
    bounds = [bound for run in zip(taken.firsts, taken.lasts, strict=True) for bound in run]
    if any(first > last for first, last in pairwise(bounds)):
        raise ValueError("the runs of ids in the state are out of order")
    opened: list[OpenId] = []
    place = 0
    for number, until, size, returned in facts["open"]:
        held = messages[place : place + count(size)]
        streams = maybe(returned, lambda names: frozenset(each(names, text)))
        if len({message.stream for message in held}) < size or bool(held) == bool(streams):
            raise ValueError("the state lacks messages of an open batch")
        opened.append(OpenId(whole(number), moment(until), held, streams))
        place += size
    return IdState(
        rule=IdRule.checked(id_of, count(facts["max_delay"]), maybe(facts["streams"], lambda names: each(names, text))),
        source=maybe(facts["source"], text),
        floor=moment(facts["floor"]),
        open=opened,
        taken=taken,
        rejected=[
            Rejection(message, _REASONS[reason])
            for message, reason in zip(messages[place:], each(facts["rejected"], text), strict=True)
        ],
    )
