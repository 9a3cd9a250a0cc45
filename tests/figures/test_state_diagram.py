from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.figures.drawings import SVG, parse, words
from tests.figures.state_diagram import Arrow, Box, state_diagram

from waterclock.errors import InvalidArgumentError

BOXES = {"begin": Box("", 0, 0), "ready": Box("ready", 1, 0), "leased": Box("leased", 2, 1)}


def test_every_state_and_every_step_is_there() -> None:
    arrows = [Arrow("begin", "ready", "put"), Arrow("ready", "leased", "receive"), Arrow("leased", "ready", "nack")]
    picture = state_diagram(BOXES, arrows, title="A life")
    assert words(picture) == ["A life", "2 states, 3 steps", "ready", "leased", "put", "receive", "nack"]
    assert len(list(parse(picture).iter(f"{SVG}polygon"))) == 3
    assert picture == state_diagram(BOXES, arrows, title="A life")


def test_an_arrow_goes_from_border_to_border_and_turns_where_its_bends_are() -> None:
    boxes = {"one": Box("one", 0, 0), "two": Box("two", 1, 0)}
    straight = state_diagram(boxes, [Arrow("one", "two", "")], title="")
    assert "M130 87L194 87" in straight
    round_about = state_diagram(boxes, [Arrow("one", "two", "", via=[(0, 1), (1, 1)])], title="")
    assert "M74 106L74 191L250 191L250 106" in round_about


def test_two_arrows_between_the_same_states_lie_apart() -> None:
    boxes = {"one": Box("one", 0, 0), "two": Box("two", 1, 0)}
    picture = state_diagram(boxes, [Arrow("one", "two", "", shift=9), Arrow("two", "one", "", shift=9)], title="")
    assert "M130 96L194 96M194 78L130 78" in picture


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_words_make_well_formed_pictures(name: str, made_by: str) -> None:
    parse(state_diagram({"one": Box(name, 0, 0)}, [Arrow("one", "one", made_by)], title=name))


def test_an_arrow_to_no_state_and_a_picture_of_none_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^arrows: 'gone'"):
        state_diagram(BOXES, [Arrow("ready", "gone", "purge")], title="")
    with pytest.raises(InvalidArgumentError, match=r"^boxes:"):
        state_diagram({}, [], title="")
