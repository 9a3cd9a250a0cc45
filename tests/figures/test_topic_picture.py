from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from waterclock.figures.topic_picture import Flag, TopicBlock, TopicView, topic_picture

SVG = "{http://www.w3.org/2000/svg}"


def block(state: str, begin: int | None, end: int | None, first: int, last: int) -> TopicBlock:
    return TopicBlock(f"{state} <{first}>", state, begin, end, end, first, last)


def drawn(*blocks: TopicBlock, flags: tuple[Flag, ...] = (), width: int = 1000) -> ET.Element:
    view = TopicView(0, 1_000, blocks, flags)
    return ET.fromstring(topic_picture(view, "title", "text", width))  # noqa: S314  # our own text


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in root.iter() if name in each.get("class", "").split()]


def test_blocks_are_told_apart_by_more_than_colour() -> None:
    blocks = (block("sealed", 0, 200, 0, 5), block("lost", 200, 500, 5, 9), block("open", 500, 990, 9, 12))
    root = drawn(*blocks)
    assert [each[0].text for each in of_class(root, "block")] == ["sealed <0>", "lost <5>", "open <9>"]
    assert len(of_class(root, "damage")) == 1
    assert [each.text for each in root.iter(f"{SVG}text") if each.text in ("lost", "open")] == ["lost", "open"]


def test_the_running_maximum_never_falls() -> None:
    blocks = (
        block("sealed", 0, 600, 0, 5),
        TopicBlock("", "sealed", 100, 300, 600, 5, 9),
        block("open", 300, 900, 9, 12),
    )
    data = of_class(drawn(*blocks), "running")[0].get("d", "")
    places = [float(point.split()[0]) for point in data.removeprefix("M").split("L")]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [1000, 380])
def test_names_of_flags_never_overlap(width: int) -> None:
    flags = tuple(Flag(f"subscription {n}", "", n) for n in range(12))
    root = drawn(block("open", 0, 1_000, 0, 12), flags=flags, width=width)
    assert len(of_class(root, "flag")) == 12
    placed = {(each.get("y"), each.get("x")) for each in root.iter(f"{SVG}text") if (each.text or "").startswith("sub")}
    assert len(placed) == len([each for each in root.iter(f"{SVG}text") if (each.text or "").startswith("sub")])


@pytest.mark.parametrize("blocks", [(), (block("open", None, None, 0, 0),)])
def test_an_empty_topic_is_drawn(blocks: tuple[TopicBlock, ...]) -> None:
    assert of_class(drawn(*blocks, flags=(Flag("a", "", 0),)), "flag")
