from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.event_time.definition import LARGEST, Rule
from tests.batching.event_time.traffic import arrivals, rules

from waterclock.batching.batch import Batch
from waterclock.batching.by_source import BySource
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.message import Message

SOURCES = "xyz"


def message(source: str, event_time: int, stream: str = "a", *, received: int | None = None) -> Message:
    return Message(source, stream, event_time, receive_time=event_time if received is None else received)


def batcher_of_five() -> EventTimeBatcher:
    return EventTimeBatcher(window=5, max_delay=2)


@given(arrivals(sources=SOURCES), rules, st.lists(st.tuples(st.integers(0, 46), st.integers(-5, 80)), max_size=6))
def test_every_source_is_batched_as_if_it_were_alone(
    messages: list[Message], rule: Rule, advances: list[tuple[int, int]]
) -> None:
    steps: list[Message | int] = [*messages]
    for place, now in advances:
        steps.insert(place, now)
    together = BySource(lambda: EventTimeBatcher(**rule._asdict()))
    alone = {source: EventTimeBatcher(**rule._asdict()) for source in SOURCES}
    given_out: list[Batch] = []
    expected: list[Batch] = []
    for step in [*steps, LARGEST]:
        if isinstance(step, Message):
            given_out += together.add(step)
            expected += alone[step.source].add(step)
        else:
            given_out += together.advance(step)
            closed = [batch for batcher in alone.values() for batch in batcher.advance(step)]
            expected += sorted(closed, key=lambda b: (b.closed_at, b.source, b.start))
        deadlines = [batcher.next_deadline for batcher in alone.values() if batcher.next_deadline is not None]
        assert together.next_deadline == min(deadlines, default=None)

    assert given_out == expected
    rejected = [rejection for batcher in alone.values() for rejection in batcher.take_rejected()]
    assert sorted(together.take_rejected(), key=lambda r: r.message.payload) == sorted(
        rejected, key=lambda r: r.message.payload
    )


@given(arrivals(sources=SOURCES), rules, st.integers(0, 46))
def test_a_flush_reaches_every_source(messages: list[Message], rule: Rule, place: int) -> None:
    together = BySource(lambda: EventTimeBatcher(**rule._asdict()))
    alone = {source: EventTimeBatcher(**rule._asdict()) for source in SOURCES}
    for step in messages[:place]:
        together.add(step)
        alone[step.source].add(step)
    expected = [batch for batcher in alone.values() for batch in batcher.flush()]

    assert together.flush() == sorted(expected, key=lambda b: (b.closed_at, b.source, b.start))
    assert together.next_deadline is None
    assert together.flush() == []
    for step in messages[place:]:
        assert together.add(step) == alone[step.source].add(step)


@given(arrivals(sources=SOURCES), rules)
def test_a_list_equals_its_messages_added_one_by_one(messages: list[Message], rule: Rule) -> None:
    singly, at_once = (
        BySource(lambda: EventTimeBatcher(**rule._asdict())),
        BySource(lambda: EventTimeBatcher(**rule._asdict())),
    )
    batches = [batch for each in messages for batch in singly.add(each)]

    assert at_once.add(messages) == sorted(batches, key=lambda b: (b.closed_at, b.source, b.start))
    assert at_once.take_rejected() == singly.take_rejected()


def test_a_message_moves_the_clock_of_its_own_source_only() -> None:
    sources = BySource(batcher_of_five)
    sources.add(message("slow", 0))
    assert sources.add(message("fast", 100)) == []
    sources.add(message("slow", 1, "b"))
    assert sources.take_rejected() == []
    assert [m.event_time for batch in sources.advance(7) for m in batch.messages] == [0, 1]


def test_an_advance_holds_for_sources_that_come_later() -> None:
    sources = BySource(batcher_of_five)
    sources.advance(50)
    sources.add(message("new", 40, received=41))
    assert [rejection.reason for rejection in sources.take_rejected()] == ["late"]


def test_an_advance_closes_due_batches_in_order_of_closing_then_source() -> None:
    sources = BySource(batcher_of_five)
    sources.add([message("b", 1), message("a", 1), message("c", 0), message("d", 30)])
    batches = sources.advance(8)
    assert [(batch.closed_at, batch.source) for batch in batches] == [(7, "c"), (8, "a"), (8, "b")]
    assert sources.next_deadline == 37


def test_now_stands_for_the_receive_time_of_every_message_of_a_list() -> None:
    sources = BySource(batcher_of_five)
    sources.add([Message("a", "s", 10), Message("b", "s", 20)], now=21)
    assert [(r.message.source, r.reason) for r in sources.take_rejected()] == [("a", "late")]


def test_batches_closed_before_a_bad_message_of_a_list_are_not_lost() -> None:
    sources = BySource(batcher_of_five)
    with pytest.raises(InvalidArgumentError, match="receive_time"):
        sources.add([message("a", 0), message("a", 20), Message("a", "s", 21), message("a", 50)])
    assert [batch.start for batch in sources.add(message("a", 22, "t"))] == [0]
    assert sources.next_deadline == 27


def test_adding_without_advancing_keeps_one_deadline_a_source() -> None:
    sources = BySource(batcher_of_five)
    sources.add(message("idle", 0))
    for time in range(0, 50_000, 10):
        sources.add(message("busy", time))
    assert len(sources._deadlines) < 100


def test_nothing_but_messages_is_taken() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"messages must be a waterclock.Message or a list of them, got 'text'"
    ):
        BySource(batcher_of_five).add("text")  # type: ignore[arg-type]
    with pytest.raises(
        InvalidArgumentError, match=r"factory must be a function that returns a batcher, got .*EventTimeBatcher"
    ):
        BySource(batcher_of_five())  # type: ignore[arg-type]
    sources = BySource(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidArgumentError, match="factory must return a batcher, got None"):
        sources.add(message("a", 0))
    assert sources.stats() == {}


def test_an_advance_over_idle_sources_looks_at_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = BySource(batcher_of_five)
    sources.add([message(f"idle {k}", 0) for k in range(500)])
    sources.advance(100)
    sources.add([message("busy", 101), message("far", 1_000, received=1_000)])
    looks: list[int] = []
    advance = EventTimeBatcher.advance
    monkeypatch.setattr(EventTimeBatcher, "advance", lambda batcher, now: looks.append(now) or advance(batcher, now))

    assert [batch.source for batch in sources.advance(200)] == ["busy"]
    assert looks == [200]


@given(
    arrivals(sources=SOURCES),
    rules,
    st.lists(st.tuples(st.integers(0, 46), st.integers(0, 80) | st.just("flush")), max_size=8),
)
def test_forgetting_changes_nothing_while_the_clock_is_advanced(
    messages: list[Message], rule: Rule, others: list[tuple[int, int | Literal["flush"]]]
) -> None:
    steps: list[Message | int | Literal["flush"]] = [*messages]
    for place, step in others:
        steps.insert(place, step)
    steady, forgetful = (
        BySource(lambda: EventTimeBatcher(**rule._asdict())),
        BySource(lambda: EventTimeBatcher(**rule._asdict())),
    )
    for step in [-100, *steps, LARGEST]:
        if isinstance(step, Message):
            assert forgetful.add(step) == steady.add(step)
            continue
        if step == "flush":
            assert forgetful.flush() == steady.flush()
        else:
            assert forgetful.advance(step) == steady.advance(step)
        assert forgetful.take_rejected() == steady.take_rejected()
        forgetful.forget(idle=0)


def test_sources_that_have_been_silent_are_forgotten() -> None:
    sources = BySource(batcher_of_five)
    sources.add([message("old", 0), message("open", 90), message("new", 100)])
    sources.advance(95)
    assert sources.forget(idle=5, now=101) == 1
    assert set(sources.stats()) == {"open", "new"}
    assert sources.forget(idle="1h") == 0


@pytest.mark.parametrize("end", [BySource.flush, BySource.reset])
def test_sources_are_forgotten_after_flush_and_reset_once_the_clock_has_advanced(
    end: Callable[[BySource], list[Batch]],
) -> None:
    sources = BySource(batcher_of_five)
    sources.add([message(f"source {k}", 100) for k in range(3)])
    assert len(end(sources)) == 3
    sources.advance(101)  # what was given out at 100 is not late yet
    assert sources.forget(idle=0, now=110) == 0
    sources.advance(200)
    assert sources.forget(idle=50) == 3
    sources.add(message("source 0", 100))
    assert [rejection.reason for rejection in sources.take_rejected()] == ["late"]


def test_flushed_sources_are_forgotten_without_an_advance() -> None:
    sources = BySource(batcher_of_five)
    sources.add(message("a", 100))
    sources.flush()
    assert sources.forget(idle=0, now=104) == 0
    assert sources.forget(idle=50, now=200) == 1


def test_a_source_with_a_run_is_not_forgotten() -> None:
    runs = BySource(lambda: EventTimeBatcher(5, 2, boundaries={"run"}))
    runs.add([Message(source, source, 1, receive_time=1) for source in ("run", "b")])
    runs.advance(100)
    assert runs.forget(idle=0, now=200) == 1
    assert runs.add(Message("run", "a", 200, receive_time=200)) == []
    assert [batch.run for batch in runs.flush()] == [1]


def test_a_source_with_a_rejection_to_take_is_not_forgotten() -> None:
    sources = BySource(batcher_of_five)
    sources.add([message("a", 0, received=50)])
    assert sources.forget(idle=0, now=200) == 0
    assert len(sources.take_rejected()) == 1
    assert sources.forget(idle=0, now=200) == 1


def test_without_an_advance_the_furthest_clock_says_who_is_silent() -> None:
    sources = BySource(batcher_of_five)
    assert sources.forget() == 0
    sources.add([message("a", 0), message("a", 40, received=60), message("b", 1_000)])
    sources.take_rejected()
    assert sources.forget(idle=500) == 1
    assert set(sources.stats()) == {"b"}


def test_a_clock_far_ahead_is_seen_and_set_again() -> None:
    sources = BySource(batcher_of_five)
    sources.add([message("a", 0), message("b", 0), message("a", 86_400)])
    sources.add([message("a", time) for time in range(10, 1_010, 10)])
    assert len(sources.take_rejected()) == 100
    assert sources.stats()["a"].ahead == 86_400 - 1_000
    assert sources.stats()["b"].ahead == 0

    assert [batch.start for batch in sources.reset("a")] == [86_400]
    sources.add([message("a", time) for time in range(1_010, 2_010, 10)])
    assert sources.take_rejected() == []
    assert sources.stats()["a"].clock == 2_000


def test_an_advance_too_far_is_set_again_for_all() -> None:
    sources = BySource(batcher_of_five)
    sources.add([message("a", 0), message("b", 0)])
    sources.advance(86_400)
    sources.reset()
    assert sources.add([message("a", 10), message("b", 10), message("c", 10)]) == []
    assert sources.take_rejected() == []


def test_resetting_an_unknown_source_is_an_error() -> None:
    with pytest.raises(NotFoundError, match="no source named 'x'"):
        BySource(batcher_of_five).reset("x")


def test_a_source_whose_first_message_was_refused_is_unknown() -> None:
    sources = BySource(batcher_of_five)
    with pytest.raises(InvalidArgumentError, match="receive_time must be set"):
        sources.add(Message("x", "a", 1))
    assert sources.stats() == {}
    with pytest.raises(NotFoundError, match="no source named 'x'"):
        sources.reset("x")
