from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from heapq import heapreplace
from typing import Any

import pytest

from waterclock.batching.batch import Batch
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS


def message(name: str, event_time: int, received: int | None = None, *, source: str = "device") -> Message:
    return Message(source, name, event_time, receive_time=event_time if received is None else received)


def batcher(**options: Any) -> EventTimeBatcher:
    return EventTimeBatcher(**{"window": 50, "max_delay": 20} | options)


def arrive(batcher: EventTimeBatcher, *arrivals: str) -> list[Batch]:
    """Let messages arrive that are written like ``a110@120``."""
    batches: list[Batch] = []
    for arrival in arrivals:
        event_time, received = arrival[1:].split("@")
        batches += batcher.add(message(arrival[0], int(event_time), int(received)))
    return batches


def drawn(batches: list[Batch]) -> list[str]:
    """Write batches like ``a110 b120 in 110-160 @180 timeout``."""
    return [
        f"{' '.join(f'{m.stream}{m.event_time}' for m in b.messages)} in {b.start}-{b.end} @{b.closed_at} {b.reason}"
        for b in batches
    ]


def refused(batcher: EventTimeBatcher) -> list[str]:
    return [f"{message.stream}{message.event_time} {reason}" for message, reason in batcher.take_rejected()]


def test_a_message_received_exactly_the_maximum_delay_later_is_accepted() -> None:
    b = batcher()
    arrive(b, "a100@120", "b101@122")
    assert refused(b) == ["b101 late"]
    assert drawn(b.flush()) == ["a100 in 100-150 @170 flush"]


def test_a_message_ahead_of_the_clock_by_the_maximum_lead_is_accepted() -> None:
    b = batcher(max_lead=5)
    arrive(b, "a105@100", "b106@100")
    assert refused(b) == ["b106 future"]
    assert drawn(b.flush()) == ["a105 in 105-155 @175 flush"]


def test_the_first_received_of_equal_messages_stays() -> None:
    b = batcher()
    first, again = message("a", 100, 105), message("a", 100, 107)
    b.add(first)
    b.add(again)
    assert [rejection.message for rejection in b.take_rejected()] == [again]
    assert b.flush()[0].messages == (first,)


def test_the_very_same_message_given_twice_is_a_duplicate() -> None:
    b = batcher()
    once = message("a", 100)
    b.add(once)
    b.add(once)
    assert refused(b) == ["a100 duplicate"]


def test_late_comes_before_future_and_future_before_duplicate() -> None:
    b = batcher(max_delay=0, max_lead=0)
    arrive(b, "a100@100", "a100@101")
    assert refused(b) == ["a100 late"]


def test_rejections_are_taken_once() -> None:
    b = batcher()
    arrive(b, "a100@130")
    assert refused(b) == ["a100 late"]
    assert refused(b) == []


def test_both_ends_of_a_window_belong_to_it() -> None:
    b = batcher()
    arrive(b, "a100@100", "b150@150", "c151@151")
    assert drawn(b.flush()) == ["a100 b150 in 100-150 @170 flush", "c151 in 151-201 @221 flush"]


def test_a_window_of_0_keeps_equal_times_together() -> None:
    b = batcher(window=0)
    arrive(b, "b100@100", "a100@100", "c101@101")
    assert drawn(b.flush()) == ["a100 b100 in 100-100 @120 flush", "c101 in 101-101 @121 flush"]


def test_equal_event_times_conflict_together() -> None:
    b = batcher()
    arrive(b, "a100@100", "b120@120", "a120@120")
    assert drawn(b.flush()) == ["a100 in 100-120 @140 conflict", "a120 b120 in 120-170 @190 flush"]


def test_an_older_message_moves_the_start_of_its_window() -> None:
    b = batcher()
    arrive(b, "a110@110", "c105@120", "b158@158")
    assert drawn(b.flush()) == ["c105 a110 in 105-155 @175 flush", "b158 in 158-208 @228 flush"]


def test_a_message_between_two_windows_takes_from_the_second() -> None:
    b = batcher(window=10, max_delay=100)
    arrive(b, "a100@100", "b120@120", "c128@128", "d133@133", "e112@134")
    assert drawn(b.flush()) == [
        "a100 in 100-110 @210 flush",
        "e112 b120 in 112-122 @222 flush",
        "c128 d133 in 128-138 @238 flush",
    ]


def test_replace_keeps_the_newest_of_each_stream_and_the_start_of_the_window() -> None:
    b = batcher(on_conflict="replace")
    arrive(b, "a100@100", "a130@130", "b110@130", "a120@132")
    assert refused(b) == [], "known only when the window closes"
    assert drawn(b.advance(170)) == ["b110 a130 in 100-150 @170 timeout"]
    assert refused(b) == ["a100 replaced", "a120 replaced"]


def test_replace_knows_a_replaced_message_again() -> None:
    b = batcher(on_conflict="replace")
    arrive(b, "a100@100", "a110@110", "a100@111", "a110@112")
    assert refused(b) == ["a100 duplicate", "a110 duplicate"]


def test_isolate_makes_the_conflicting_time_a_batch_of_its_own() -> None:
    b = batcher(on_conflict="isolate")
    arrive(b, "a100@100", "b110@110", "a120@120", "c120@121", "d125@125")
    assert drawn(b.advance(200)) == [
        "a100 b110 in 100-120 @140 conflict",
        "a120 c120 in 120-120 @140 conflict",
        "d125 in 125-175 @195 timeout",
    ]


def test_an_isolated_time_goes_back_into_a_window_when_an_older_message_cuts_before_it() -> None:
    b = batcher(on_conflict="isolate")
    arrive(b, "a100@100", "b110@110", "a120@120", "b105@121")
    assert drawn(b.flush()) == [
        "a100 b105 in 100-110 @130 conflict",
        "b110 in 110-110 @130 conflict",
        "a120 in 120-170 @190 flush",
    ]


def test_declared_streams_close_a_window_when_all_have_passed_its_end() -> None:
    b = batcher(streams=["a", "b"])
    assert arrive(b, "a100@100", "b120@120", "a155@155") == []
    assert drawn(arrive(b, "b160@160")) == ["a100 b120 in 100-150 @170 complete"]
    assert b.next_deadline == 225


def test_a_stream_at_the_end_of_a_window_has_not_passed_it() -> None:
    b = batcher(streams=["a", "b"])
    assert arrive(b, "a100@100", "a151@151", "b150@152") == []
    assert drawn(arrive(b, "b151@153")) == ["a100 b150 in 100-150 @170 complete"]


def test_a_cut_window_is_passed_by_reaching_the_cut() -> None:
    b = batcher(streams=["a", "b"])
    assert arrive(b, "a100@100", "b110@110", "a120@120") == []
    assert drawn(arrive(b, "b120@121")) == ["a100 b110 in 100-120 @140 complete"]


def test_a_declared_stream_that_never_came_holds_the_window_until_its_time() -> None:
    b = batcher(streams=["a", "b"])
    assert arrive(b, "a100@100", "a160@160") == []
    assert drawn(b.advance(170)) == ["a100 in 100-150 @170 timeout"]


def test_a_window_given_out_early_still_knows_its_messages() -> None:
    b = batcher(streams=["a", "b"], max_delay=80)
    arrive(b, "a100@100", "b120@120", "a155@155", "b160@160")
    arrive(b, "a100@161", "b105@162")
    assert refused(b) == ["a100 duplicate", "b105 late"]
    arrive(b, "a200@240", "a100@240")
    assert refused(b) == ["a100 late"]


def test_a_message_of_a_stream_that_was_not_declared_is_an_error_and_changes_nothing() -> None:
    b = batcher(streams=["a", "b"])
    arrive(b, "a100@100")
    before = b.state()
    with pytest.raises(InvalidArgumentError, match="stream must be one of a, b, as declared in streams=, got 'c'"):
        arrive(b, "c300@300")
    assert b.state() == before


@pytest.mark.parametrize("order", ["in turns", "one far ahead", "newest first"])
def test_many_declared_streams_cost_as_much_as_their_messages(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    count = 0

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return heapreplace(*given)

    monkeypatch.setattr("waterclock.batching.event_time.batcher.heapreplace", counted)
    streams = [f"s{number}" for number in range(200)]
    times = [(stream, time) for time in range(10) for stream in streams]
    if order == "one far ahead":
        times = [(streams[0], time) for time in range(1000)] + times
    b = EventTimeBatcher(window=2, max_delay=10**6, streams=streams)
    closed = []
    for stream, time in reversed(times) if order == "newest first" else times:
        closed += b.add(Message("press", stream, time, b"", receive_time=10**5))
    assert count <= len(times) + len(streams)
    assert {batch.reason for batch in closed} <= {"complete"}
    assert order == "newest first" or closed


def test_after_a_flush_what_belongs_to_a_window_given_out_is_rejected() -> None:
    b = batcher()
    arrive(b, "a100@100")
    assert drawn(b.flush()) == ["a100 in 100-150 @170 flush"]
    arrive(b, "a100@101", "b150@150", "c151@151")
    assert refused(b) == ["a100 duplicate", "b150 late"]
    assert drawn(b.flush()) == ["c151 in 151-201 @221 flush"]


def test_the_batcher_remembers_the_promise_of_an_advance() -> None:
    b = batcher()
    b.advance(150)
    arrive(b, "a131@150", "a130@150")
    assert refused(b) == ["a130 late"]
    assert b.next_deadline == 201


def test_the_receive_clock_never_moves_back() -> None:
    b = batcher()
    arrive(b, "a100@100", "a200@200", "b180@110", "b179@110")
    assert refused(b) == ["b179 late"]
    assert b.advance(50) == []
    assert drawn(b.flush()) == ["b180 a200 in 180-230 @250 flush"]


def test_nothing_enters_a_window_that_is_closed() -> None:
    b = batcher()
    arrive(b, "a100@100")
    assert drawn(b.advance(170)) == ["a100 in 100-150 @170 timeout"]
    arrive(b, "b150@160", "c151@160")
    assert refused(b) == ["b150 late"]
    assert drawn(b.flush()) == ["c151 in 151-201 @221 flush"]


def test_now_stands_for_the_receive_time() -> None:
    b = batcher()
    b.add(Message("device", "a", 100), now=115)
    b.add(message("b", 100, 110), now=121)
    assert refused(b) == ["b100 late"]


def test_options_and_times_may_be_written_as_users_write_them() -> None:
    moment = datetime(2026, 7, 1, 12, tzinfo=UTC)
    b = EventTimeBatcher(window="500ms", max_delay=timedelta(milliseconds=400), max_lead="1us")
    b.add(Message("device", "a", moment), now="2026-07-01T12:00:00.1Z")
    assert b.advance(moment + timedelta(milliseconds=899)) == []
    assert len(b.advance(moment + timedelta(milliseconds=900))) == 1


def test_a_window_at_the_end_of_time_ends_there() -> None:
    b = batcher()
    b.add(message("a", MAX_NS - 5))
    assert b.next_deadline == MAX_NS
    assert [(batch.end, batch.closed_at) for batch in b.advance(MAX_NS)] == [(MAX_NS, MAX_NS)]
    b.add(message("b", MAX_NS, MAX_NS))
    assert refused(b) == [f"b{MAX_NS} late"]


def test_a_message_at_the_beginning_of_time_is_not_late() -> None:
    b = batcher()
    b.add(message("a", MIN_NS))
    assert [batch.start for batch in b.flush()] == [MIN_NS]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"window": -1}, "window must be a duration of 0 or more, got -1"),
        ({"window": "-5ms"}, "window must be a duration of 0 or more, got '-5ms'"),
        ({"window": None}, "window must be .*, got None"),
        ({"window": math.nan}, "window must be .*, got nan"),
        ({"window": True}, "window must be .*, got True"),
        ({"window": 2**63}, "window must fit in 64-bit nanoseconds .*, got 9223372036854775808"),
        ({"max_delay": 1.5}, "max_delay must be a string such as '500ms', .*, got 1.5"),
        ({"max_delay": timedelta(-1)}, "max_delay must be a duration of 0 or more"),
        ({"gap": "-1s"}, "gap must be a duration of 0 or more, got '-1s'"),
        ({"max_lead": "soon"}, "max_lead must be a duration .*, got 'soon'"),
        ({"on_conflict": "merge"}, "on_conflict must be one of split, replace, isolate, keep, got 'merge'"),
        ({"on_conflict": ["split"]}, r"on_conflict must be one of split, replace, isolate, keep, got \['split'\]"),
        ({"streams": []}, r"streams must name all streams of the source, got \[\]\. If they are unknown"),
        (
            {"streams": "temperature"},
            r"streams must be a list of names, got 'temperature'\. Write streams=\['temperature'\]",
        ),
        ({"streams": ["a", ""]}, "streams must hold non-empty strings, got ''"),
        ({"streams": ["a", 1]}, "streams must hold non-empty strings, got 1"),
        ({"streams": 3}, "streams must be a list of names or None, got 3"),
    ],
)
def test_an_invalid_option_is_named_with_its_value(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        batcher(**options)


@pytest.mark.parametrize(
    ("given", "now", "complaint"),
    [
        ("text", None, "message must be a waterclock.Message, got 'text'"),
        ([message("a", 1)], None, r"message must be a waterclock.Message, got \[.*\]"),
        (Message("device", "a", 1), None, r"receive_time must be set, got None in .* add\(message, now=…\)"),
        (message("a", 1), datetime(2026, 7, 1), "now must be a datetime with a time zone"),  # noqa: DTZ001  # the mistake
        (message("a", 1), 1.0, "now must be an int .*, got 1.0"),
        (
            message("a", 1, source="other"),
            None,
            "source must be 'device', as in earlier messages, got 'other'. Use BySource",
        ),
    ],
)
def test_a_message_that_cannot_be_taken_changes_nothing(given: Any, now: Any, complaint: str) -> None:
    b = batcher()
    arrive(b, "a0@0")
    before = b.state()
    with pytest.raises(InvalidArgumentError, match=complaint):
        b.add(given, now=now)
    assert b.state() == before


def test_a_message_without_receive_time_does_not_name_the_batchers_source() -> None:
    b = batcher()
    with pytest.raises(WaterclockError):
        b.add(Message("other", "a", 1))
    assert arrive(b, "a0@0") == []


def test_a_naive_now_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"now must be a datetime with a time zone"):
        batcher().advance(datetime(2026, 7, 1))  # noqa: DTZ001  # the mistake


def test_a_session_ends_at_a_silence_and_keeps_all_messages_of_a_stream() -> None:
    batcher = EventTimeBatcher(window=100, max_delay=5, gap=10)
    batches = [batch for at in (0, 4, 14, 25, 30) for batch in batcher.add(Message("x", "a", at, receive_time=at))]
    batches += batcher.advance(1000)
    assert [(b.start, b.end, b.closed_at, b.reason, len(b.messages)) for b in batches] == [
        (0, 24, 29, "gap", 3),
        (25, 40, 45, "gap", 2),
    ]


def test_a_session_is_no_longer_than_the_window() -> None:
    batcher = EventTimeBatcher(window=20, max_delay=100, gap=10)
    for at in range(0, 45, 5):
        batcher.add(Message("x", "a", at, receive_time=at))
    assert [(b.start, b.end, b.reason) for b in batcher.advance(1000)] == [
        (0, 20, "timeout"),
        (25, 45, "timeout"),
    ]


def test_a_message_between_two_sessions_joins_them() -> None:
    batcher = EventTimeBatcher(window=100, max_delay=50, gap=10)
    for at in (0, 20, 10):
        batcher.add(Message("x", "a", at, receive_time=20))
    assert [(b.start, b.end) for b in batcher.advance(1000)] == [(0, 30)]


def test_conflicts_cut_sessions_if_asked_to() -> None:
    batcher = EventTimeBatcher(window=100, max_delay=50, gap=10, on_conflict="split")
    for stream, at in (("a", 0), ("b", 5), ("a", 9), ("b", 30)):
        batcher.add(Message("x", stream, at, receive_time=30))
    assert [(b.start, b.end, b.reason) for b in batcher.advance(1000)] == [
        (0, 9, "conflict"),
        (9, 19, "gap"),
        (30, 40, "gap"),
    ]


def test_a_boundary_opens_a_window_and_batches_say_which_run_they_belong_to() -> None:
    b = batcher(boundaries={"r"}, on_conflict="keep")
    batches = arrive(b, "a100@100", "a110@110", "r120@120", "a121@121", "a180@180")
    assert drawn(batches) == ["a100 a110 in 100-120 @140 boundary"]
    batches += b.flush()
    assert drawn(batches[1:]) == ["r120 a121 in 120-170 @190 flush", "a180 in 180-230 @250 flush"]
    assert [batch.run for batch in batches] == [None, 120, 120]


def test_a_run_is_written_with_the_batch_and_left_out_without_one() -> None:
    b = batcher(boundaries={"r"})
    before, within = arrive(b, "a100@100", "r120@120") + b.flush()
    assert b"run" not in (before.to_arrow().schema.metadata or {})[b"waterclock.batch"]
    assert before == Batch.from_bytes(before.to_bytes())
    assert b'"run": 120' in (within.to_arrow().schema.metadata or {})[b"waterclock.batch"]
    assert within == Batch.from_bytes(within.to_bytes())


def test_a_boundary_at_the_time_of_a_conflict_isolates_nothing() -> None:
    for arrivals in (("a100@100", "a110@110", "r110@110"), ("a100@100", "r110@110", "a110@110")):
        b = batcher(boundaries={"r"}, on_conflict="isolate")
        assert drawn(arrive(b, *arrivals) + b.flush()) == [
            "a100 in 100-110 @130 boundary",
            "a110 r110 in 110-160 @180 flush",
        ]


def test_a_boundary_that_comes_too_late_cuts_nothing() -> None:
    b = batcher(boundaries={"r"})
    batches = arrive(b, "a100@100", "b125@125", "r110@131") + b.flush()
    assert refused(b) == ["r110 late"]
    assert [batch.run for batch in batches] == [None]


def test_batches_before_the_last_boundary_have_no_run_after_a_reset() -> None:
    b = batcher(boundaries={"r"})
    assert [batch.run for batch in arrive(b, "r900@900") + b.reset()] == [900]
    assert [batch.run for batch in arrive(b, "a100@100", "a960@960") + b.flush()] == [None, 900]


def test_boundaries_must_be_among_declared_streams() -> None:
    with pytest.raises(InvalidArgumentError, match=r"boundaries must be among the streams \['a'\], got \['r'\]"):
        batcher(boundaries={"r"}, streams=["a"])
