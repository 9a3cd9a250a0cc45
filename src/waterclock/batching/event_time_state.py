"""How an event-time batcher is written down: its messages as Arrow IPC, its facts as JSON in the schema metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from waterclock.arrow import POSITIONED_SCHEMA, from_arrow, from_ipc, to_arrow, to_ipc
from waterclock.batching.batch import Rejection
from waterclock.batching.rule import EventTimeRule
from waterclock.batching.window import Window
from waterclock.errors import SchemaError
from waterclock.message import Message
from waterclock.quoting import quoted

_METADATA_KEY = b"waterclock.event_time_batcher"
_VERSION = 1


@dataclass(slots=True)
class EventTimeState:
    """Everything that an event-time batcher knows.

    Attributes
    ----------
    rule
        Its options.
    newest
        Newest event time of each declared stream, ns; None where none were declared.
    source
        Whose messages it batches; None before the first.
    floor
        The least receive time that may still come, ns.
    frontier
        Last event time of the newest window given out, ns.
    windows
        The open windows in order of start.
    given_out
        Stream and event time of the messages given out before their window's time, and that time, ns.
    rejected
        Rejections not yet taken.
    """

    rule: EventTimeRule
    newest: dict[str, int] | None
    source: str | None
    floor: int
    frontier: int
    windows: list[Window]
    given_out: dict[tuple[str, int], int]
    rejected: list[Rejection]

    def to_bytes(self) -> bytes:
        """Write the state; messages of the windows first, then the rejected ones."""
        contents = [window.messages() for window in self.windows]
        facts = {
            "version": _VERSION,
            "rule": self.rule,
            "newest": self.newest,
            "source": self.source,
            "floor": self.floor,
            "frontier": self.frontier,
            "windows": [
                [window.start, window.end, window.conflicted, window.isolated, len(messages)]
                for window, messages in zip(self.windows, contents, strict=True)
            ],
            "given_out": [[stream, event_time, until] for (stream, event_time), until in self.given_out.items()],
            "rejected": [rejection.reason for rejection in self.rejected],
        }
        messages = [message for content in contents for message in content]
        messages += [rejection.message for rejection in self.rejected]
        columns = to_arrow(messages, positions=True)
        return to_ipc(columns.replace_schema_metadata({_METADATA_KEY: json.dumps(facts).encode()}))

    @classmethod
    def from_bytes(cls, data: bytes) -> EventTimeState:
        """Read back what `to_bytes` wrote.

        Raises
        ------
        SchemaError
            Where the bytes are something else or of another version.
        """
        columns = from_ipc(data)
        written = (columns.schema.metadata or {}).get(_METADATA_KEY)
        if written is None or not columns.schema.equals(POSITIONED_SCHEMA):
            raise SchemaError(f"{len(data)} bytes of Arrow are no state of an event-time batcher")
        try:
            return _from_facts(json.loads(written), columns)
        except (LookupError, TypeError, ValueError) as error:
            raise SchemaError(f"the state of an event-time batcher is damaged: {quoted(error)} in its facts") from error


def _from_facts(facts: dict[str, Any], columns: pa.RecordBatch) -> EventTimeState:
    if facts["version"] != _VERSION:
        raise SchemaError(
            f"the batcher's state has version {quoted(facts['version'])} and this Waterclock reads {_VERSION};"
            " replay the source's messages since the last batch into a new batcher"
        )
    messages = from_arrow(columns)
    stops = list(accumulate((window[-1] for window in facts["windows"]), initial=0))
    rule = EventTimeRule(*facts["rule"])
    return EventTimeState(
        rule=rule,
        newest=facts["newest"],
        source=facts["source"],
        floor=facts["floor"],
        frontier=facts["frontier"],
        windows=[
            _window(rule, start, end, conflicted, isolated, messages[first:stop])
            for (start, end, conflicted, isolated, _), (first, stop) in zip(
                facts["windows"], pairwise(stops), strict=True
            )
        ],
        given_out={(stream, event_time): until for stream, event_time, until in facts["given_out"]},
        rejected=[Rejection(*pair) for pair in zip(messages[stops[-1] :], facts["rejected"], strict=True)],
    )


def _window(
    rule: EventTimeRule, start: int, end: int, conflicted: bool, isolated: bool, messages: list[Message]
) -> Window:
    window = Window(start, 0 if isolated else rule.window, isolated=isolated)
    if conflicted and not isolated:
        window.cut(end)
    for message in messages:
        window.put(message)
    return window
