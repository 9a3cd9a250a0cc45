"""Stores the state of an event-time batcher: messages as Arrow IPC, and the rest as JSON in the schema metadata.

The whole state is in a frame with a checksum (`waterclock.batching.state_bytes`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, get_args

from waterclock.arrow import from_arrow
from waterclock.batching.batch import Rejection, RejectReason
from waterclock.batching.event_time.given_out import GivenOut
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.event_time.window import Window
from waterclock.batching.facts import count, each, flag, maybe, moment, parsed, read_as, text
from waterclock.batching.state_bytes import StateForm, refuse_version
from waterclock.message import Message

_FORM = StateForm(b"WCE1", b"waterclock.event_time_batcher", "the state of an event-time batcher")
_VERSION = 1
_REASONS: dict[str, RejectReason] = {reason: reason for reason in get_args(RejectReason)}


@dataclass(slots=True)
class EventTimeState:
    """Everything that an event-time batcher knows."""

    rule: EventTimeRule  # its options
    newest: dict[str, int] | None  # newest event time of each declared stream, ns; None if none were declared
    source: str | None  # the source of its messages; None before the first
    floor: int  # the earliest receive time that may still come, ns
    windows: list[Window]  # the open windows in order of start
    given_out: GivenOut  # which event times were returned
    rejected: list[Rejection]  # rejections not yet taken

    def to_bytes(self) -> bytes:
        """Write the state; messages of the windows first, then the rejected ones."""
        given_out = self.given_out
        facts = {
            "version": _VERSION,
            "rule": self.rule._asdict(),
            "newest": self.newest,
            "source": self.source,
            "floor": self.floor,
            "frontier": given_out.newest,
            "windows": [
                [window.start, window.last, window.cut, window.isolated, len(window.messages)]
                for window in self.windows
            ],
            "given_out": [[stream, event_time, until] for (stream, event_time), until in given_out.early.items()],
            "spans": given_out.spans,
            "begun_anew": given_out.begun_anew,
            "run": given_out.run,
            "rejected": [rejection.reason for rejection in self.rejected],
        }
        messages = [message for window in self.windows for message in window.messages]
        messages += [rejection.message for rejection in self.rejected]
        return _FORM.write(json.dumps(facts).encode(), messages)

    @classmethod
    def from_bytes(cls, data: bytes) -> EventTimeState:
        """Read back what `to_bytes` wrote.

        Raises `DamagedError` if the bytes are a corrupt state. Raises `SchemaError` if they are something else, or of
        another version.
        """
        written, columns = _FORM.read(data)
        with read_as(_FORM.name):
            return _from_facts(parsed(written), from_arrow(columns))


def _from_facts(facts: dict[str, Any], messages: list[Message]) -> EventTimeState:
    refuse_version(facts["version"], _VERSION)
    rule = EventTimeRule.checked(**facts["rule"])
    stops = list(accumulate((count(window[-1]) for window in facts["windows"]), initial=0))
    return EventTimeState(
        rule=rule,
        newest=maybe(facts["newest"], lambda newest: {text(stream): moment(at) for stream, at in newest.items()}),
        source=maybe(facts["source"], text),
        floor=moment(facts["floor"]),
        windows=[
            _window(moment(start), moment(last), count(cut), flag(isolated), messages[first:stop])
            for (start, last, cut, isolated, _), (first, stop) in zip(facts["windows"], pairwise(stops), strict=True)
        ],
        given_out=_given_out(rule, facts),
        rejected=[
            Rejection(message, _REASONS[reason])
            for message, reason in zip(messages[stops[-1] :], each(facts["rejected"], text), strict=True)
        ],
    )


def _window(start: int, last: int, cut: int, isolated: bool, messages: list[Message]) -> Window:
    if not messages:
        raise ValueError("the state has an empty window")
    return Window(start, last, cut, isolated, messages)


def _given_out(rule: EventTimeRule, facts: dict[str, Any]) -> GivenOut:
    given_out = GivenOut(near=rule.window + rule.max_delay)
    given_out.newest = moment(facts["frontier"])
    given_out.early = {(text(stream), moment(at)): moment(until) for stream, at, until in facts["given_out"]}
    given_out.spans = [(moment(start), moment(last)) for start, last in facts["spans"]]
    given_out.begun_anew = flag(facts["begun_anew"])
    given_out.run = maybe(facts["run"], moment)
    return given_out
