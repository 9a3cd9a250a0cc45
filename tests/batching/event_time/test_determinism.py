"""The property that the batcher is for: batches are a function of the messages, not of what happened on the way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.batching.event_time.definition import LARGEST, Rule, batches_of
from tests.batching.event_time.outcomes import batched, contents, defined, window
from tests.batching.event_time.traffic import STREAMS, arrivals, rules

from waterclock.batching.batch import Batch, Rejection
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.message import Message

RESTORE = "restore"

Step = Message | int | str
"""Add a message, advance the clock to a time, or write the state down and go on from it."""


@st.composite
def journeys(draw: st.DrawFn) -> list[Step]:
    """Messages in any order, with advances of the clock and restarts in between: promises of the clock get broken."""
    messages = draw(arrivals())
    steps: list[Step] = draw(st.permutations(messages)) if draw(st.booleans()) else list(messages)
    for place, step in draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 80) | st.just(RESTORE)), max_size=8)
    ):
        steps.insert(place, step)
    return steps


def travel(batcher: EventTimeBatcher, steps: Sequence[Step]) -> tuple[EventTimeBatcher, list[Batch]]:
    batches: list[Batch] = []
    for step in steps:
        if isinstance(step, Message):
            batches += batcher.add(step)
        elif isinstance(step, int):
            batches += batcher.advance(step)
        else:
            batcher = EventTimeBatcher.restore(batcher.state())
    return batcher, batches


def as_judged(steps: Sequence[Step]) -> tuple[list[Message], int]:
    """Give each message the receive time at which it is judged, and the least one that may still come."""
    floor = -(2**63)
    judged: list[Message] = []
    for step in steps:
        if isinstance(step, Message):
            assert step.receive_time is not None
            floor = max(floor, step.receive_time)
            judged.append(step.replace(receive_time=floor))
        elif isinstance(step, int):
            floor = max(floor, step + 1)
    return judged, floor


@given(arrivals(), rules)
def test_the_batcher_does_what_the_design_says(messages: list[Message], rule: Rule) -> None:
    batcher, batches = travel(EventTimeBatcher(**rule._asdict()), messages)
    batches += batcher.advance(LARGEST)

    assert batched(batches, batcher.take_rejected()) == defined(batches_of(messages, rule))


@given(journeys(), rules)
def test_disorder_advances_and_restarts_change_nothing(steps: list[Step], rule: Rule) -> None:
    batcher, batches = travel(EventTimeBatcher(**rule._asdict()), steps)
    judged, floor = as_judged(steps)

    assert [window(batch) for batch in batches] == defined(batches_of(judged, rule, floor - 1)).windows
    batches += batcher.advance(LARGEST)
    assert batched(batches, batcher.take_rejected()) == defined(batches_of(judged, rule))


@given(arrivals(), rules, st.data())
def test_the_same_accepted_messages_make_the_same_batches(
    messages: list[Message], rule: Rule, data: st.DataObject
) -> None:
    batcher, batches = travel(EventTimeBatcher(**rule._asdict()), messages)
    batches += batcher.advance(LARGEST)
    refused = {rejection.message for rejection in batcher.take_rejected() if rejection.reason != "replaced"}
    accepted = [message for message in messages if message not in refused]
    delays = st.integers(-rule.max_lead, rule.max_delay)
    received_otherwise = sorted(
        (message.replace(receive_time=message.event_time + data.draw(delays)) for message in accepted),
        key=lambda m: m.receive_time or 0,
    )

    other, again = travel(EventTimeBatcher(**rule._asdict()), received_otherwise)
    again += other.advance(LARGEST)

    assert [window(batch) for batch in again] == [window(batch) for batch in batches]


@given(journeys(), rules, st.integers(0, 48))
def test_a_flush_anywhere_loses_nothing_and_overlaps_nothing(steps: list[Step], rule: Rule, place: int) -> None:
    batcher, batches = travel(EventTimeBatcher(**rule._asdict()), steps[:place])
    batches += batcher.flush()
    assert batcher.next_deadline is None
    batcher, after = travel(batcher, steps[place:])
    batches += [*after, *batcher.flush()]
    result = batched(batches, batcher.take_rejected())

    out = [payload for *_, payloads in result.windows for payload in payloads] + list(result.rejected)
    assert sorted(out) == sorted(step.payload for step in steps if isinstance(step, Message))
    for earlier, later in itertools.pairwise(batches):
        assert earlier.messages[-1].event_time < later.start
        adjoins = earlier.end == later.start and earlier.reason in ("conflict", "boundary")
        assert earlier.end < later.start or adjoins


@given(journeys(), rules)
def test_the_next_deadline_is_the_first_now_that_closes_a_window(steps: list[Step], rule: Rule) -> None:
    batcher, _ = travel(EventTimeBatcher(**rule._asdict()), steps)
    while (deadline := batcher.next_deadline) is not None:
        assert batcher.advance(deadline - 1) == []
        assert batcher.next_deadline == deadline
        closed = batcher.advance(deadline)
        assert closed
        assert {batch.closed_at for batch in closed} == {deadline}


@given(arrivals(), rules)
def test_an_early_close_changes_no_contents(messages: list[Message], rule: Rule) -> None:
    in_order = _each_stream_in_order(messages, rule)
    patient, expected = travel(EventTimeBatcher(**rule._asdict()), in_order)
    expected += patient.advance(LARGEST)
    eager, batches = travel(EventTimeBatcher(**rule._asdict(), streams=STREAMS), in_order)
    batches += eager.advance(LARGEST)

    assert contents(batches) == contents(expected)
    assert sorted(eager.take_rejected(), key=_payload) == sorted(patient.take_rejected(), key=_payload)


@given(arrivals(), rules, st.lists(st.integers(0, 40), max_size=4))
def test_an_early_close_survives_restarts(messages: list[Message], rule: Rule, restarts: list[int]) -> None:
    in_order: list[Step] = [*_each_stream_in_order(messages, rule)]
    steady, expected = travel(EventTimeBatcher(**rule._asdict(), streams=STREAMS), in_order)
    for place in restarts:
        in_order.insert(place, RESTORE)
    restarted, batches = travel(EventTimeBatcher(**rule._asdict(), streams=STREAMS), in_order)

    assert batches == expected
    assert restarted.take_rejected() == steady.take_rejected()
    assert restarted.flush() == steady.flush()


@given(journeys(), rules)
def test_broken_promises_of_order_lose_nothing(steps: list[Step], rule: Rule) -> None:
    batcher, batches = travel(EventTimeBatcher(**rule._asdict(), streams=STREAMS), steps)
    batches += batcher.advance(LARGEST)
    result = batched(batches, batcher.take_rejected())

    out = [payload for *_, payloads in result.windows for payload in payloads] + list(result.rejected)
    assert sorted(out) == sorted(step.payload for step in steps if isinstance(step, Message))
    for earlier, later in itertools.pairwise(batches):
        assert earlier.messages[-1].event_time < later.start


def _each_stream_in_order(messages: list[Message], rule: Rule) -> list[Message]:
    """Drop what is older than an earlier message of its stream, unless that very message comes again."""
    newest: dict[str, int] = {}
    known: set[tuple[str, int]] = set()
    kept: list[Message] = []
    for message in messages:
        assert message.receive_time is not None
        key = (message.stream, message.event_time)
        if message.event_time > newest.get(message.stream, -1):
            newest[message.stream] = message.event_time
            # What was refused as future and comes again would be a new message, and an old one.
            if message.event_time <= message.receive_time + rule.max_lead:
                known.add(key)
            kept.append(message)
        elif key in known:
            kept.append(message)
    return kept


def _payload(rejection: Rejection) -> bytes:
    return rejection.message.payload
