from __future__ import annotations

import pytest
from tests.figures.drawings import batch, dot_count, glyph_count, message, parse, paths, rejection, words
from tests.figures.scenario import scenario_drawing

from waterclock.batching.batch import Batch, Rejection
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

MS = 1_000_000


def conflict(unit: int = 1) -> list[Batch]:
    """The third use case of *Message Batching*, without its last message."""
    a, b, c, again = (
        Message("machine", stream, at * unit, receive_time=(at + 10) * unit)
        for stream, at in (("a", 110), ("b", 120), ("c", 130), ("a", 140))
    )
    return [
        Batch("machine", 110 * unit, 140 * unit, 160 * unit, "conflict", (a, b, c)),
        Batch("machine", 140 * unit, 190 * unit, 210 * unit, "timeout", (again,)),
    ]


def late(unit: int = 1) -> list[Rejection]:
    return [Rejection(Message("machine", "d", 120 * unit, receive_time=200 * unit), "late")]


@pytest.mark.parametrize("unit", [1, MS])
def test_each_message_stands_in_both_rows_with_its_times_and_is_joined(unit: int) -> None:
    picture = scenario_drawing(conflict(unit), late(unit), unit=unit)
    texts = words(picture)
    for label in ("a 110", "a 120", "b 120", "b 130", "c 130", "c 140", "a 140", "a 150", "d 120", "d 200"):
        assert label in texts
    assert dot_count(picture) == 2 * 4
    assert glyph_count(picture, "late") == 2
    joined = [data for data in paths(picture, "link") if "L" in data]
    assert [data.count("M") for data in joined] == [4]
    assert len(paths(picture, "late")) == 1


def test_each_batch_says_its_window_its_reason_and_when_it_closes() -> None:
    texts = words(scenario_drawing(conflict(), []))
    for label in ("110-140", "conflict", "closes 160", "140-190", "timeout", "closes 210"):
        assert label in texts
    assert "window closed by timeout (1)" in texts
    assert "window cut by conflict (1)" in texts


def test_a_cut_window_has_a_torn_edge() -> None:
    picture = scenario_drawing(conflict(), [])
    assert paths(picture, "odd")[0].count("l") > 4
    assert paths(picture, "even")[0].count("l") == 0


def test_labels_that_would_run_into_each_other_stand_in_two_rows() -> None:
    near = [batch(message(stream="a", at=100, received=110), message(stream="b", at=101, received=140), length=50)]
    heights = {
        element.text: element.get("y")
        for element in parse(scenario_drawing(near, [])).iter("{http://www.w3.org/2000/svg}text")
    }
    assert heights["a 100"] != heights["b 101"]


def test_the_same_scenario_in_any_order_gives_the_same_bytes() -> None:
    assert scenario_drawing(conflict()[::-1], late()) == scenario_drawing(conflict(), late())


def test_nothing_to_draw_is_a_picture_that_says_so() -> None:
    assert "Nothing to draw: no batch and no rejected message." in words(scenario_drawing([], []))


def test_a_hostile_name_stays_text() -> None:
    hostile = '<b> & "\0'
    picture = scenario_drawing([batch(message(stream=hostile), length=50)], [], title=hostile)
    assert 'class="ink title"' in picture
    assert f"{hostile} 0".replace("\0", "\N{REPLACEMENT CHARACTER}") in words(picture)


def test_a_bad_argument_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidArgumentError, match="no receive_time"):
        scenario_drawing([batch(Message("s", "a", 1))], [])
    with pytest.raises(InvalidArgumentError, match="unit: 0"):
        scenario_drawing(conflict(), [], unit=0)
    with pytest.raises(InvalidArgumentError, match="width must be an integer from 400 to 100000 px, got 100"):
        scenario_drawing(conflict(), [], width=100)
    with pytest.raises(InvalidArgumentError, match="'lost'"):
        scenario_drawing([], [rejection("lost")])  # pyright: ignore[reportArgumentType]
