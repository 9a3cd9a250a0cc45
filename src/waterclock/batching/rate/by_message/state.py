"""Stores the state of a rate-aware batcher: messages as Arrow IPC, and the rest as JSON in the schema metadata.

The whole state is in a frame with a checksum (`waterclock.batching.state_bytes`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from fractions import Fraction
from itertools import islice
from typing import Any

from waterclock.arrow import from_arrow
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.facts import count, each, flag, maybe, moment, parsed, read_as, text, whole
from waterclock.batching.rate.by_message.aligned import AlignedMessage, ClockAlignment
from waterclock.batching.rate.by_message.gate import Gate
from waterclock.batching.rate.by_message.silence import Silence
from waterclock.batching.rate.by_message.stall import Elsewhere, StallWatch
from waterclock.batching.rate.by_message.stream import Track
from waterclock.batching.rate.by_message.window import Assembly
from waterclock.batching.rate.pulse_grid import PulseGrid
from waterclock.batching.rate.rule import CUTS, GATES, Gated, RateRule
from waterclock.batching.rate.starts import StartRun, Starts
from waterclock.batching.state_bytes import StateForm, refuse_version
from waterclock.message import Message

_FORM = StateForm(b"WCR1", b"waterclock.rate_aware_batcher", "the state of a rate-aware batcher")
_VERSION = 1
_MOST_FACTS = 2**28
"""Maximum bytes of facts, far more than the streams of any source need.

It protects memory from highly compressed zeros.
"""


def to_bytes(
    rule: RateRule,
    roles: tuple[Gated | None, list[str]],
    stall: StallWatch,
    silence: Silence,
    assembly: Assembly | None,
    adaptive: AdaptiveBatchLength | None,
    alignment: ClockAlignment | None,
) -> bytes:
    """Write the state; ``roles`` are the gated streams, or None if a function chooses, and the boundaries."""
    gated, boundaries = roles
    facts: dict[str, Any] = {
        "version": _VERSION,
        "rule": _rule_facts(rule),
        "gated": gated if gated is None or isinstance(gated, bool) else sorted(gated),  # pyright: ignore[reportArgumentType]  # a function is None here
        "boundaries": boundaries,
        "waited": stall.clock() - stall.since,
        "unmoved": stall.unmoved,
        "elsewhere": stall.elsewhere,
        "silence": astuple(silence),
        "adaptive": None if adaptive is None else adaptive.facts(),
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
            "cut_at": assembly.window.end if assembly.window.is_cut else None,
            "run": assembly.run,
            "high_water": assembly.high_water,
            "active": len(assembly.active),
            "strays": assembly.strays,
            "furthest": assembly.starts.furthest,
            "runs": [astuple(run) for run in assembly.starts.runs],
            "setbacks": assembly.setbacks,
            "lost": assembly.lost,
            "doubtful": assembly.doubtful,
            "trusted_from": assembly.trusted_from,
            "outnumbered": assembly.outnumbered,
            "delays": [assembly.slowest, assembly.awaited],
            "tracks": [_track_facts(stream, track) for stream, track in tracks],
        }
    if alignment is not None:
        facts["alignment"] = alignment.facts(messages)
        messages = [message.sent for message in messages if isinstance(message, AlignedMessage)]
    return _FORM.write(zlib.compress(json.dumps(facts).encode()), messages)


@dataclass(slots=True)
class RateState:
    """The decoded state of a batcher."""

    rule: RateRule  # options of the batcher when it was made
    gated: Gated | None  # which streams may gate; None if a function chooses
    boundaries: list[str]  # the streams whose messages cut windows
    waited: float  # seconds that the window has waited
    # See `StallWatch`.
    unmoved: int
    elsewhere: list[Elsewhere]
    silence: Silence  # when the source is forgotten
    adaptive: AdaptiveBatchLength | None  # the rule of the length, if it is adaptive
    alignment: ClockAlignment | None  # the clocks of the streams, if they are aligned
    _facts: dict[str, Any] | None
    _messages: Iterator[Message]

    def assembly(self, gate: Gate) -> Assembly | None:
        """Build the assembly again; only once, as it takes the messages.

        Raises `DamagedError` if it cannot have been written so.
        """
        if self._facts is None:
            return None
        with read_as(_FORM.name):
            return self._assembly(self._facts, gate)

    def _assembly(self, facts: dict[str, Any], gate: Gate) -> Assembly:
        slowest, awaited = each(facts["delays"], count)
        rule = _rule(facts["rule"])
        rule = rule.awaiting(awaited) if rule.auto else rule
        assembly = Assembly(text(facts["source"]), rule, moment(facts["start"]), gate)
        assembly.window = assembly.window.cut_at(maybe(facts["cut_at"], moment))
        assembly.run = maybe(facts["run"], moment)
        assembly.slowest, assembly.awaited = slowest, awaited
        assembly.pending = maybe(facts["pending"], _rule)
        assembly.active = _taken(self._messages, facts["active"])
        assembly.strays = count(facts["strays"])
        *tracks, riding = facts["tracks"]
        for stream, *written in tracks:
            assembly.tracks[text(stream)] = assembly.track_of[stream] = Track(
                CUTS if stream in gate.boundaries else GATES
            )
            _fill(assembly, assembly.tracks[stream], self._messages, *written)
        _fill(assembly, assembly.riding, self._messages, *riding[1:])
        assembly.count()
        assembly.high_water = moment(facts["high_water"])
        assembly.setbacks = count(facts["setbacks"])
        assembly.starts = Starts(moment(facts["furthest"]), each(facts["runs"], _run))
        assembly.lost = flag(facts["lost"])
        assembly.doubtful = flag(facts["doubtful"])
        assembly.trusted_from = moment(facts["trusted_from"])
        assembly.outnumbered = flag(facts["outnumbered"])
        if next(self._messages, None) is not None:
            raise ValueError("the state has a message that is in neither a window nor a stream")
        return assembly


def from_bytes(data: bytes) -> RateState:
    """Read back what `to_bytes` wrote.

    Raises
    ------
    DamagedError
        If the bytes are a corrupt state.
    SchemaError
        If they are something else, or of another version.
    """
    written, columns = _FORM.read(data)
    with read_as(_FORM.name):
        facts = parsed(_decompressed(written))
        refuse_version(facts["version"], _VERSION)
        gated = facts["gated"]
        alignment, messages = None, from_arrow(columns)
        if "alignment" in facts:
            alignment, messages = ClockAlignment.from_facts(facts["alignment"], messages)
        return RateState(
            rule=_rule(facts["rule"]),
            gated=gated if gated is None or isinstance(gated, bool) else each(gated, text),
            boundaries=each(facts["boundaries"], text),
            waited=float(facts["waited"]),
            unmoved=count(facts["unmoved"]),
            elsewhere=each(facts["elsewhere"], _elsewhere),
            silence=_silence(*facts["silence"]),
            adaptive=maybe(facts["adaptive"], AdaptiveBatchLength.from_facts),
            alignment=alignment,
            _facts=facts["assembly"],
            _messages=iter(messages),
        )


def _decompressed(written: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        facts = unpacker.decompress(written, _MOST_FACTS)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the compressed metadata of the state is truncated or too long")
    return facts


def _elsewhere(written: list[Any]) -> Elsewhere:
    oldest, newest, covered, calls, mark = written
    return Elsewhere(moment(oldest), moment(newest), count(covered), count(calls), moment(mark))


def _silence(after: Any, clock: Any) -> Silence:
    return Silence(maybe(after, count), maybe(clock, moment))


def _run(written: list[Any]) -> StartRun:
    first, last, step = written
    if count(step) == 0:
        raise ValueError("the state has windows of length 0")
    return StartRun(moment(first), moment(last), step)


def _taken(messages: Iterator[Message], number: object) -> list[Message]:
    taken = list(islice(messages, count(number)))
    if len(taken) != number:
        raise ValueError("the state lacks a message")
    return taken


def _rule_facts(rule: RateRule) -> list[Any]:
    ratio = None if rule.factor is None else rule.factor.as_integer_ratio()
    return [rule.batch_length, ratio, rule.auto, rule.max_disorder]


def _rule(facts: list[Any]) -> RateRule:
    batch_length, ratio, auto, disorder = facts
    factor = None if ratio is None else Fraction(*each(ratio, whole))
    checked = RateRule.checked(whole(batch_length), None, count(disorder))
    return checked.of(checked.batch_length, factor, auto=flag(auto), max_disorder=checked.max_disorder)


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
    track.newest = moment(newest)
    track.differences.extend(each(differences, whole))
    track.grid = maybe(grid, _grid)
    track.absent = count(absent)
    for message in _taken(messages, piled):
        track.pile.push(message)
    track.place(assembly.window, assembly.rule, 0)
    if flag(present):
        track.notice(moment(first))
    if flag(satisfied):
        track.satisfied = True


def _grid(written: list[Any]) -> PulseGrid:
    origin, rate, per = written
    if count(rate) == 0 or count(per) == 0:
        raise ValueError("the state has a pulse grid without pulses")
    return PulseGrid(moment(origin), rate, per)
