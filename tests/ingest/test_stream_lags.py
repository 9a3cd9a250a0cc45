"""Streams whose event times are late or ahead are reported once, until they recover."""

from __future__ import annotations

from waterclock.ingest import stream_lags
from waterclock.ingest.stream_lags import LagRange, StreamLags

SECOND = 10**9
A, B = ("press", "load"), ("press", "heat")


def lag(seconds: float) -> LagRange:
    return LagRange(int(seconds * SECOND), int(seconds * SECOND))


def names(lags: StreamLags) -> list[str]:
    return [name for name, _ in lags.look()]


def test_a_lag_above_two_seconds_is_reported_once_until_it_recovers() -> None:
    lags = StreamLags()
    for seconds, reported in ((2.0, []), (2.001, ["lag"]), (9.0, []), (0.1, []), (3.0, ["lag"])):
        lags.note({A: lag(seconds)})
        assert names(lags) == reported
    assert lags.worst(5) == [(A, lag(3.0))]
    assert names(lags) == []
    assert lags.worst(5) == []


def test_an_event_time_ahead_is_reported_even_if_one_message_has_it() -> None:
    lags = StreamLags()
    lags.note({A: lag(-0.1)})
    assert names(lags) == []
    lags.note({A: lag(-0.101), B: lag(2.5)})
    lags.note({A: lag(0.0), B: lag(4.25)})
    assert lags.look() == [
        ("lag", "event times of 1 stream are behind their receive times, by up to 4250ms (press heat)"),
        (
            "ahead",
            "event times of 1 stream are ahead of their receive times, by up to 101ms (press load)."
            " Check the clocks of these sources",
        ),
    ]


def test_made_up_streams_do_not_fill_the_memory() -> None:
    lags = StreamLags()
    for first in range(0, 3 * stream_lags.MOST_STREAMS, 1000):
        lags.note({("s", str(number)): lag(0) for number in range(first, first + 1000)})
    lags.look()
    assert len(lags.latest) == stream_lags.MOST_STREAMS
