from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.figures.svg import add, number, path, picture, shorten, text_width, to_text


@given(st.text(), st.text(), st.text())
def test_any_text_becomes_well_formed_xml_that_reads_back(title: str, content: str, value: str) -> None:
    root = picture(10, 10, title, "", "")
    add(root, "text", content=content, class_=value)
    back = ET.fromstring(to_text(root))  # noqa: S314  # our own text
    assert len(back) == len(root)
    readable = content.replace("\r\n", "\n").replace("\r", "\n")
    if all(c.isprintable() for c in readable):
        assert (back[-1].text or "") == readable


@pytest.mark.parametrize("character", ["\0", "\x7f", "\x9b", "\u202e", "\u2066"], ids=ascii)
def test_characters_that_xml_cannot_hold_or_that_reorder_text_are_shown_as_missing(character: str) -> None:
    root = picture(10, 10, f"a{character}b", "", "")
    assert "a\N{REPLACEMENT CHARACTER}b" in to_text(root)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (12.5, "12.5"),
        (12.04, "12"),
        (0.5, ".5"),
        (-0.5, "-.5"),
        (-0.04, "0"),
        (10.0, "10"),
        (-10, "-10"),
    ],
)
def test_numbers_are_written_short_and_to_a_tenth_of_a_pixel(value: float, text: str) -> None:
    assert number(value) == text


def test_a_path_without_pieces_is_left_out() -> None:
    root = picture(10, 10, "t", "d", "")
    before = len(root)
    path(root, "odd", [])
    assert len(root) == before


@given(st.text(max_size=40), st.integers(1, 300))
def test_a_shortened_text_fits_and_says_that_it_was_cut(text: str, width: int) -> None:
    short = shorten(text, 10, width)
    assert len(short) <= 1 or text_width(short, 10) <= width
    assert short == text or short.endswith("…")
