from __future__ import annotations

from waterclock.batching.rule import EventTimeRule
from waterclock.batching.window import Window, cut_anew, open_window
from waterclock.message import Message

RULE = EventTimeRule(window=10, max_delay=100, max_lead=0, on_conflict="split")


def holding(*messages: Message) -> Window:
    window = open_window(messages[0], RULE)
    for message in messages[1:]:
        window.put(message)
    return window


def message(stream: str, event_time: int) -> Message:
    return Message("device", stream, event_time)


def test_cutting_anew_stops_at_the_first_window_that_begins_as_before() -> None:
    first, second, third = holding(message("a", 0)), holding(message("a", 20)), holding(message("a", 40))
    windows = [first, second, third]
    cut_anew(windows, 0, [message("a", 0), message("a", 5)], RULE)

    assert [(window.start, window.end) for window in windows] == [(0, 5), (5, 15), (20, 30), (40, 50)]
    assert windows[2] is second
    assert windows[3] is third


def test_a_window_whose_beginning_is_taken_by_the_one_before_is_cut_anew() -> None:
    second, third = holding(message("a", 12), message("b", 18)), holding(message("a", 40))
    windows = [holding(message("c", 4)), second, third]
    cut_anew(windows, 0, [message("c", 4), message("d", 2), message("d", 3)], RULE)

    assert [(window.start, window.end) for window in windows] == [(2, 3), (3, 13), (18, 28), (40, 50)]
    assert windows[3] is third
