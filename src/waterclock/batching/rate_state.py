"""How a rate-aware batcher is written down: its messages as Arrow IPC, its facts as JSON in the schema metadata."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

from waterclock.arrow import POSITIONED_SCHEMA, from_arrow, from_ipc, to_arrow, to_ipc
from waterclock.batching.assembly import Assembly
from waterclock.batching.pulse_grid import PulseGrid
from waterclock.batching.rate_rule import Gated, RateRule
from waterclock.batching.stall import StallWatch
from waterclock.batching.track import Track
from waterclock.errors import SchemaError
from waterclock.message import Message
from waterclock.quoting import quoted

_METADATA_KEY = b"waterclock.rate_aware_batcher"
_VERSION = 1


def to_bytes(rule: RateRule, gated: Gated | None, stall: StallWatch, assembly: Assembly | None) -> bytes:
    """Write the state; ``gated`` is None where a function chooses."""
    facts: dict[str, Any] = {
        "version": _VERSION,
        "rule": _rule_facts(rule),
        "gated": gated if gated is None or isinstance(gated, bool) else sorted(gated),  # pyright: ignore[reportArgumentType]  # a function is None here
        "waited": stall.clock() - stall.since,
        "astray": stall.astray,
        "assembly": None,
    }
    messages: list[Message] = []
    if assembly is not None:
        tracks = [*assembly.tracks.items(), ("", assembly.riding)]
        messages = assembly.active + assembly.waiting_messages()
        facts["assembly"] = {
            "source": assembly.source,
            "rule": _rule_facts(assembly.rule),
            "pending": None if assembly.pending is None else _rule_facts(assembly.pending),
            "start": assembly.window.start,
            "high_water": assembly.high_water,
            "active": len(assembly.active),
            "strays": assembly.strays,
            "furthest": assembly.furthest,
            "setbacks": assembly.setbacks,
            "tracks": [_track_facts(stream, track) for stream, track in tracks],
        }
    columns = to_arrow(messages, positions=True)
    return to_ipc(columns.replace_schema_metadata({_METADATA_KEY: zlib.compress(json.dumps(facts).encode())}))


@dataclass(slots=True)
class RateState:
    """What was written down.

    Attributes
    ----------
    rule
        Options of the batcher when it was made.
    gated
        Which streams may gate; None where a function chooses.
    waited
        Seconds for which the window had waited.
    astray
        See `StallWatch`.
    """

    rule: RateRule
    gated: Gated | None
    waited: float
    astray: tuple[int, int] | None
    _facts: dict[str, Any] | None
    _messages: Iterator[Message]

    def assembly(self, may_gate: Callable[[str], bool]) -> Assembly | None:
        """Make the assembly anew; once only, as it takes the messages."""
        if self._facts is None:
            return None
        facts = self._facts
        assembly = Assembly(facts["source"], _rule(facts["rule"]), facts["start"], may_gate)
        assembly.pending = None if facts["pending"] is None else _rule(facts["pending"])
        assembly.active = list(islice(self._messages, facts["active"]))
        assembly.strays = facts["strays"]
        *tracks, riding = facts["tracks"]
        for stream, *written in tracks:
            assembly.tracks[stream] = assembly.track_of[stream] = Track(may_gate=True)
            _fill(assembly, assembly.tracks[stream], self._messages, *written)
        _fill(assembly, assembly.riding, self._messages, *riding[1:])
        assembly.count()
        assembly.high_water = facts["high_water"]
        assembly.furthest, assembly.setbacks = facts["furthest"], facts["setbacks"]
        return assembly


def from_bytes(data: bytes) -> RateState:
    """Read back what `to_bytes` wrote.

    Raises
    ------
    SchemaError
        Where the bytes are something else or of another version.
    """
    columns = from_ipc(data)
    written = (columns.schema.metadata or {}).get(_METADATA_KEY)
    if written is None or not columns.schema.equals(POSITIONED_SCHEMA):
        raise SchemaError(f"{len(data)} bytes of Arrow are no state of a rate-aware batcher")
    facts = json.loads(zlib.decompress(written))
    if facts["version"] != _VERSION:
        raise SchemaError(
            f"the batcher's state has version {quoted(facts['version'])} and this Waterclock reads {_VERSION};"
            " replay the source's messages since the last batch into a new batcher"
        )
    return RateState(
        rule=_rule(facts["rule"]),
        gated=facts["gated"],
        waited=facts["waited"],
        astray=None if facts["astray"] is None else tuple(facts["astray"]),
        _facts=facts["assembly"],
        _messages=iter(from_arrow(columns)),
    )


def _rule_facts(rule: RateRule) -> list[Any]:
    return [rule.batch_length, None if rule.factor is None else rule.factor.as_integer_ratio()]


def _rule(facts: list[Any]) -> RateRule:
    return RateRule.of(facts[0], None if facts[1] is None else Fraction(*facts[1]))


def _track_facts(stream: str, track: Track) -> list[Any]:
    return [
        stream,
        track.newest,
        list(track.differences),
        track.grid,
        track.absent,
        track.first,
        track.present,
        track.satisfied,
        len(track.pile),
    ]


def _fill(
    assembly: Assembly,
    track: Track,
    messages: Iterator[Message],
    newest: int,
    differences: list[int],
    grid: list[int] | None,
    absent: int,
    first: int,
    present: bool,
    satisfied: bool,
    piled: int,
) -> None:
    track.newest = newest
    track.differences.extend(differences)
    track.grid = None if grid is None else PulseGrid(*grid)
    track.absent = absent
    for message in islice(messages, piled):
        track.pile.push(message)
    track.place(assembly.window, assembly.rule, 0)
    if present:
        track.notice(first)
    if satisfied:
        track.satisfied = True
