"""A picture of batches by rate shows every stream, window and reason."""

from __future__ import annotations

import pytest
from tests.figures.drawings import parse
from tests.figures.rate_drawing import rate_drawing

from waterclock.batching.batch import Batch
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

SECOND = 1_000_000_000


def batch(start: int, reason: str, *streams: str) -> Batch:
    messages = tuple(Message("s", stream, start + SECOND // 2) for stream in streams)
    return Batch("s", start, start + SECOND, start + SECOND, reason, messages)  # type: ignore[arg-type]


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in parse(picture).iter() if element.tag.endswith("text")]


def test_streams_reasons_and_seconds_are_named() -> None:
    picture = rate_drawing([batch(0, "slots", "det", "mon"), batch(SECOND, "gap", "log")], title="Two batches")
    words = texts(picture)
    assert {"Two batches", "det", "mon", "log", "slots", "gap", "3 messages of 3 streams, 2 batches"} <= set(words)
    assert "window closed by gap (1), slots (1)" in words


def test_a_waiting_message_is_drawn_too() -> None:
    picture = rate_drawing([batch(0, "slots", "det")], [Message("s", "late", SECOND // 4)])
    assert "late" in texts(picture)


def test_the_window_in_progress_is_drawn_without_a_shade() -> None:
    picture = rate_drawing([batch(0, "slots", "det")], in_progress=(SECOND, 2 * SECOND), end=2 * SECOND)
    assert "open" in texts(picture)
    assert "open" not in texts(rate_drawing([batch(0, "slots", "det")], in_progress=(SECOND, 2 * SECOND)))


def test_a_message_outside_is_an_arrow_instead_of_a_dot() -> None:
    inside, before, after = (Message("s", "det", when * SECOND) for when in (0, -9, 9))
    without = rate_drawing([batch(0, "slots")], [inside])
    one_side = rate_drawing([batch(0, "slots")], [inside, after])
    both = rate_drawing([batch(0, "slots")], [before, inside, after])
    assert "messages outside the picture" not in texts(without)
    assert "messages outside the picture" in texts(one_side)
    assert [picture.count("message glyph") for picture in (without, one_side, both)] == [0, 2, 3]
    assert [picture.count("h0") for picture in (without, one_side, both)] == [1, 1, 1]


def test_a_reason_is_cut_only_where_its_neighbours_need_the_room() -> None:
    apart = [batch(0, "timeout", "det"), batch(60 * SECOND, "slots", "det")]
    assert "timeout" in texts(rate_drawing(apart))
    packed = [batch(k * SECOND, "timeout", "det") for k in range(60)]
    assert "timeout" not in texts(rate_drawing(packed))


def test_the_axis_counts_from_the_origin() -> None:
    words = texts(rate_drawing([batch(100 * SECOND, "slots", "det")], start=99 * SECOND, origin=100 * SECOND))
    assert "0 ms" in words
    assert "-1000 ms" in words


def test_nothing_to_draw_says_so() -> None:
    assert any("Nothing to draw" in text for text in texts(rate_drawing([])))


def test_a_picture_too_narrow_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="width must be an integer from 400 to 100000 px, got 100"):
        rate_drawing([], width=100)


def test_the_same_batches_give_the_same_bytes() -> None:
    batches = [batch(0, "slots", "det", "mon"), batch(SECOND, "timeout", "det")]
    assert rate_drawing(batches) == rate_drawing(reversed(batches))
