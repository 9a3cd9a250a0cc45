"""Replays of ranges, without Spark: each gives what the whole topic has there, from as little as it reads."""

from __future__ import annotations

import itertools
import random
from unittest.mock import patch

import pyarrow as pa
from hypothesis import event, example, given
from hypothesis import strategies as st
from tests.batching.event_time.definition import Rule
from tests.batching.event_time.traffic import STREAMS, rules
from tests.spark.results import METADATA, Results, in_entries, results_in_rows, results_one_by_one

from waterclock.arrow import to_arrow
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar.packing import pack
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams import slices
from waterclock.columnar.streams.judging import judge, unsynchronised, without_run
from waterclock.message import Message

LATEST = 160


@st.composite
def topics(draw: st.DrawFn) -> list[Message]:
    """Messages in order of position: sources with steady streams and bursts, jittered receive clocks that go back."""
    chance = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311  # traffic, no secret
    sent: list[Message] = []
    for source in "xy":
        for stream in STREAMS[: draw(st.integers(1, 4))]:
            period, phase = draw(st.integers(1, 40)), draw(st.integers(0, 20))
            silent = draw(st.integers(0, LATEST))
            quiet = range(silent, silent + draw(st.sampled_from((0, 20, 60))))
            for at in range(phase, LATEST, period):
                if at not in quiet and chance.random() < 0.8:
                    delay = chance.choice((0, 1, 1, 2, 5, -3, 14))
                    sent.append(Message(source, stream, at, receive_time=at + delay))
                    if chance.random() < 0.05:
                        sent.append(sent[-1].replace(receive_time=at + delay + 2))
    sent.sort(key=lambda m: (m.receive_time or 0) + chance.choice((0, 0, 0, 6)))
    return in_entries(sent, 3)


def rows(messages: list[Message]) -> list[pa.RecordBatch]:
    """Pack messages, those of each source together and in order, as Spark brings them to a task."""
    by_source = [[m for m in messages if m.source == source] for source in "xy"]
    read = [to_arrow(some, positions=True).select(METADATA) for some in by_source if some]
    return [row for batch in read for piece in pa.table(batch).to_batches(20) for row in pack([piece], POSITIONED)]


def replayed(messages: list[Message], rule: EventTimeRule, since: int, until: int, windows: int) -> Results:
    """Read as far back as ``windows`` windows where that decides everything, else from the start."""
    span = ReplayRange.reaching_back(rule, since, until, windows)
    read = between(messages, span.received_from(rule), span.received_until(rule))
    if read[:1] == messages[:1]:
        span = span._replace(begin=None)
        event("from the start")
    else:
        checked = between(messages, span.received_from(rule), span._replace(until=since).received_until(rule))
        unknown = any(map(len, unsynchronised(rows(checked), rule, span)))
        if not unknown and rule.boundaries:
            unknown = any(map(len, without_run(rows(read), rule, span)))
        event(f"back: {'unsynchronised' if unknown else 'synchronised'}")
        if unknown:
            span = span._replace(begin=None)
            read = between(messages, -(2**62), span.received_until(rule))
    return results_in_rows(judge(rows(read), POSITIONED, rule, span=span))


def between(messages: list[Message], first: int, last: int) -> list[Message]:
    """Take messages from the first received at or after a time to the last received at or before one."""
    begin = next((n for n, m in enumerate(messages) if (m.receive_time or 0) >= first), len(messages))
    end = max((n + 1 for n, m in enumerate(messages) if (m.receive_time or 0) <= last), default=0)
    return messages[begin:end]


def within(whole: Results, since: int, until: int) -> Results:
    """Leave out what another range gives; a replaced message goes with the batch that has its replacement."""
    batches = {s: [b for b in some if since <= b[0] < until] for s, some in whole.batches.items()}
    starts = {s: [b[0] for b in some] for s, some in whole.batches.items()}
    rejected = {
        s: [
            r
            for r in some
            if since <= (max(t for t in starts[s] if t <= r[1][1]) if r[0] == "replaced" else r[1][2]) < until
        ]
        for s, some in whole.rejected.items()
    }
    return Results({s: b for s, b in batches.items() if b}, {s: r for s, r in rejected.items() if r})


def received_at_once(*sent: tuple[str, int]) -> list[Message]:
    """Messages of one source, each received when it happened."""
    return in_entries([Message("y", stream, at, receive_time=at) for stream, at in sent], 3)


RUNS = Rule(5, 0, boundaries=("c",))
"""The examples begin a run that the replay does not read, and have no other message in the window at ``since``."""


@example(received_at_once(("c", 0), ("a", 60)), RUNS, [40, 80], 4, 30)
@example(received_at_once(("c", 0), ("a", 30), ("a", 60)), RUNS, [40, 80], 4, 30)
@example(received_at_once(("c", 0), ("a", 38), ("a", 40)), RUNS._replace(on_conflict="isolate"), [40, 80], 4, 30)
@given(
    messages=topics(),
    rule=rules,
    cuts=st.lists(st.integers(-10, LATEST + 20), min_size=2, max_size=5, unique=True),
    windows=st.sampled_from((1, 2, 4)),
    most=st.sampled_from([30, 2**20]),
)
def test_any_range_gives_the_batches_and_rejections_that_the_whole_topic_has_there(
    messages: list[Message], rule: Rule, cuts: list[int], windows: int, most: int
) -> None:
    whole = results_one_by_one(messages, **rule._asdict())
    checked = EventTimeRule.checked(**rule._asdict())
    cuts = sorted(cuts)
    with patch.object(slices, "_MOST_OF_A_SOURCE", most):
        for since, until in [*itertools.pairwise(cuts), (cuts[0], cuts[-1])]:
            assert replayed(messages, checked, since, until, windows) == within(whole, since, until)
