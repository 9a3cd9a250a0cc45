from __future__ import annotations

import pytest
from tests.figures.clock_drawing import DRAWING, clock_drawing
from tests.figures.drawings import SECOND, batch, message, paths, words

from waterclock.batching.batch import Batch
from waterclock.errors import InvalidArgumentError
from waterclock.figures.clock_offsets import clock_offsets

MS = 1_000_000

pytestmark = pytest.mark.filterwarnings("ignore::waterclock.time.UnitWarning")


def crowd(streams: int, batches: int = 5) -> list[Batch]:
    return [
        batch(
            *(
                message(stream=f"stream-{s:02}", at=n * SECOND, received=n * SECOND + s * 100 * MS)
                for s in range(streams)
            )
        )
        for n in range(1, batches + 1)
    ]


def test_a_stream_has_a_line_with_a_point_a_batch() -> None:
    lines = paths(clock_offsets(crowd(3)), "message")
    assert [line.count("L") for line in lines] == [4, 4, 4]
    heights = [float(line.split()[1].split("h")[0]) for line in lines]
    assert heights[0] > heights[1] - 62 > heights[2] - 124  # a greater offset is higher in its lane


def test_the_range_of_an_offset_stands_next_to_the_name() -> None:
    shown = words(clock_offsets(crowd(2)))
    assert {"stream-01", "100 ms to 100 ms", "0 ms to 0 ms"} <= set(shown)


def test_streams_beyond_the_lanes_are_counted() -> None:
    picture = clock_offsets(crowd(15))
    assert len(paths(picture, "message")) == 12
    assert "3 more not drawn" in picture


def test_the_same_batches_in_any_order_draw_the_same_picture() -> None:
    assert clock_offsets(crowd(3)) == clock_offsets(crowd(3)[::-1])


def test_nothing_to_draw_is_said() -> None:
    assert "Nothing to draw" in clock_offsets([])
    with pytest.raises(InvalidArgumentError, match="width must be an integer from 400 to 100000 px, got 9"):
        clock_offsets([], width=9)


def test_the_drawing_of_the_documentation_is_current() -> None:
    assert DRAWING.read_text("utf-8") == clock_drawing(), "draw anew: python -m tests.figures.clock_drawing"


def test_hostile_names_are_text() -> None:
    hostile = '<script>alert("x")</script>'
    assert "<script>" not in clock_offsets([batch(message(stream=hostile, at=SECOND))])
