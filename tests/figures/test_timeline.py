from __future__ import annotations

import random
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.figures.drawings import (
    SECOND,
    batch,
    dot_count,
    dot_places,
    glyph_count,
    message,
    parse,
    paths,
    rejection,
    words,
)

from waterclock.batching.batch import Batch, CloseReason, Rejection, RejectReason
from waterclock.errors import InvalidArgumentError
from waterclock.figures.timeline import timeline

CLOSE_REASONS: list[CloseReason] = [
    "timeout",
    "conflict",
    "boundary",
    "complete",
    "slots",
    "gap",
    "start",
    "stall",
    "flush",
]
KINDS: list[RejectReason] = ["late", "future", "duplicate", "replaced"]
HOSTILE = '<script>alert("x")</script> & \0]]> \ud7ff-->'


def crowd(sources: int, batches: int, size: int, refused: int, *, seed: int = 7) -> tuple[list[Batch], list[Rejection]]:
    """Batches that abut, and rejected messages of all kinds all over them."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    closed: list[Batch] = []
    rejected: list[Rejection] = []
    for source in (f"source-{number:03}" for number in range(sources)):
        for index in range(batches):
            times = [index * SECOND, *(index * SECOND + chance.randrange(SECOND) for _ in range(size - 1))]
            messages = [message(source, f"stream-{chance.randrange(107)}", time) for time in times]
            closed.append(batch(*messages, source=source, reason=chance.choice(["timeout", "conflict"])))
        places = [chance.randrange(batches * SECOND) for _ in range(refused)]
        rejected += [rejection(chance.choice(KINDS), source, at) for at in places]
    return closed, rejected


@pytest.mark.parametrize("at", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("offset", [0, -5 * SECOND, 5 * SECOND])
def test_batches_with_no_message_near_their_windows_are_drawn(at: int, offset: int) -> None:
    far = message(at=at, received=0)
    drawn = timeline(
        [Batch("press-01", 0, SECOND, SECOND, "slots", (far,), offsets={"load": offset} if offset else {})]
    )
    assert "press-01" in words(drawn)
    assert dot_count(drawn) == 0


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.integers(0, 9))
def test_every_message_has_a_mark(sources: int, batches: int, size: int, refused: int) -> None:
    closed, rejected = crowd(sources, batches, size, refused)
    picture = timeline(closed, rejected)
    assert dot_count(picture) == sources * batches * size
    for kind in KINDS:
        assert glyph_count(picture, kind) == sum(r.reason == kind for r in rejected)


def test_many_messages_are_dots_and_very_many_are_counted_in_bars_and_words() -> None:
    closed, rejected = crowd(2, 10, 100, 200)
    picture = timeline(closed, rejected)
    assert dot_count(picture) == 2_000
    assert sum(dot_count(picture, kind) for kind in KINDS) == 400

    closed, rejected = crowd(2, 10, 1_000, 200)
    picture = timeline(closed, rejected)
    assert not paths(picture, "message dots")
    assert len(paths(picture, "message bars")) == 2
    assert words(picture).count("10,200 messages") == 2
    assert "20,400 messages from 2 sources: 20,000 in 20 batches, 400 rejected" in words(picture)


def test_the_longest_bar_of_a_lane_fills_it_and_the_others_stand_in_proportion() -> None:
    times = [0] * 9_000 + [5 * SECOND] * 4_500
    picture = timeline([batch(*(message(at=at) for at in times), length=10 * SECOND)], [])
    heights = [float(height) for height in re.findall(r"v-([\d.]+)", paths(picture, "message bars")[0])]
    assert heights == [heights[0], heights[0] / 2]


def test_rejected_messages_stand_on_top_of_the_accepted_in_one_bar() -> None:
    accepted = [batch(*(message() for _ in range(6_000)), length=10 * SECOND)]
    picture = timeline(accepted, [rejection("late") for _ in range(3_000)] + [rejection("duplicate")] * 1_500)
    bottoms, tops = {}, {}
    for kind in ("message", "late", "duplicate"):
        [(bottom, height)] = re.findall(r" ([\d.]+)v-([\d.]+)", paths(picture, f"{kind} bars")[0])
        bottoms[kind], tops[kind] = float(bottom), float(bottom) - float(height)
    assert bottoms["late"] == pytest.approx(tops["message"], abs=0.1)
    assert bottoms["duplicate"] == pytest.approx(tops["late"], abs=0.1)
    assert bottoms["message"] - tops["message"] == pytest.approx(2 * (bottoms["late"] - tops["late"]), abs=0.2)


def test_a_dot_lies_at_its_event_time_and_streams_lie_in_rows() -> None:
    messages = [message(stream=stream, at=at * SECOND) for stream in "abc" for at in (0, 1, 2)]
    picture = timeline([batch(*messages, length=2 * SECOND)], [], start=0, end=2 * SECOND, width=1000)
    places = dot_places(paths(picture, "message dots")[0])
    columns = sorted({x for x, _ in places})
    assert len(places) == 9
    assert len({y for _, y in places}) == 3
    assert columns[1] - columns[0] == columns[2] - columns[1]
    assert columns[2] == 1000 - 18


def test_every_reason_is_named_and_counted_in_the_legend() -> None:
    closed = [batch(message(at=index * SECOND), reason=reason) for index, reason in enumerate(CLOSE_REASONS)]
    kinds = get_args(RejectReason)
    rejected = [rejection(kind, at=SECOND) for kind in kinds for _ in range(3)]
    legend = " ".join(words(timeline(closed, rejected)))
    for reason in CLOSE_REASONS:
        assert f"{reason} (1)" in legend
    for kind in kinds:
        assert f"rejected: {kind} (3)" in legend


def test_the_legend_names_nothing_that_is_not_there() -> None:
    legend = " ".join(words(timeline([batch(message())], [])))
    assert "timeout (1)" in legend
    assert "conflict" not in legend
    assert "rejected:" not in legend


def test_a_window_with_room_says_why_it_closed_and_a_narrow_one_does_not() -> None:
    wide, narrow = batch(message(), reason="gap"), batch(message(at=2 * SECOND), length=SECOND // 100, reason="stall")
    texts = words(timeline([wide, narrow], []))
    assert "gap" in texts
    assert "stall" not in texts


def test_a_cut_window_has_a_torn_edge_and_others_have_not() -> None:
    whole = timeline([batch(message())], [])
    cut = timeline([batch(message(), reason="conflict"), batch(message(at=SECOND))], [])
    assert paths(whole, "odd")[0].count("l") == 0
    assert paths(cut, "odd")[0].count("l") > 4
    assert paths(cut, "even")[0].count("l") == 0


def test_neighbouring_windows_alternate_in_shade() -> None:
    picture = timeline([batch(message(at=index * SECOND)) for index in range(5)], [])
    assert (paths(picture, "odd")[0].count("M"), paths(picture, "even")[0].count("M")) == (3, 2)


def test_too_many_windows_are_drawn_as_what_they_cover() -> None:
    closed = [batch(message(at=index * SECOND)) for index in range(1_000) if index not in range(400, 500)]
    picture = timeline(closed, [])
    assert paths(picture, "odd")[0].count("M") == 2
    assert "900 batches" in words(picture)


@pytest.mark.parametrize("size", [3, 3_000])
def test_a_flag_counts_rejected_messages_that_lie_together(size: int) -> None:
    together = [rejection("late", at=SECOND) for _ in range(size)]
    apart = [rejection("late", at=9 * SECOND)]
    texts = words(timeline([batch(message(), length=10 * SECOND)], together + apart))
    assert f"{size:,}" in texts
    assert "1" not in texts


def test_only_the_stretch_asked_for_is_drawn_and_counted() -> None:
    closed, rejected = crowd(1, 10, 5, 50)
    picture = timeline(closed, rejected, start=3 * SECOND, end=5 * SECOND - 1)
    messages = [m for b in closed for m in b.messages] + [m for m, _ in rejected]
    inside = sum(3 * SECOND <= m.event_time < 5 * SECOND for m in messages)
    assert f"{inside} messages" in words(picture)
    assert "3 batches" in words(picture)  # [2, 3] touches the stretch with its end, which is included


def test_a_note_inside_the_stretch_crosses_all_lanes_and_one_outside_is_left_out() -> None:
    closed, rejected = crowd(2, 10, 5, 0)
    notes = [(2 * SECOND, "broker stalled"), (9 * SECOND, "too late for the picture"), (4 * SECOND, HOSTILE)]
    picture = timeline(closed, rejected, start=SECOND, end=5 * SECOND, notes=notes)
    assert "broker stalled" in words(picture)
    assert "too late for the picture" not in words(picture)
    assert len(paths(picture, "link closing")) == 2
    assert "script" not in {element.tag.rsplit("}", 1)[1] for element in parse(picture).iter()}


def test_lanes_are_sources_by_name_or_as_asked_for() -> None:
    closed, rejected = crowd(3, 1, 1, 0)
    shown = [word for word in words(timeline(closed, rejected)) if word.startswith("source-")]
    assert shown == ["source-000", "source-001", "source-002"]
    picture = timeline(closed, rejected, lanes=["source-002", "source-000", "elsewhere"])
    shown = [word for word in words(picture) if word.startswith(("source-", "else"))]
    assert shown == ["source-002", "source-000", "elsewhere"]
    assert "0 messages" in words(picture)


def test_sources_beyond_the_twelfth_are_counted_in_words() -> None:
    picture = timeline(*crowd(15, 2, 5, 1))
    assert "; 33 messages from 3 more not drawn" in " ".join(words(picture))


def test_a_wild_clock_does_not_squeeze_the_picture_but_is_named() -> None:
    wild = [rejection("future", at=10**17)]
    picture = timeline([batch(message())], wild)
    assert "; 1 message far outside not drawn" in " ".join(words(picture))
    assert dot_places(paths(picture, "message dots")[0])[0][0] < 200


def test_rejected_messages_alone_make_a_picture() -> None:
    picture = timeline([], [rejection("late", at=5)])
    assert "rejected: late (1)" in words(picture)


def test_nothing_to_draw_is_a_picture_that_says_so() -> None:
    for picture in (timeline([], []), timeline([], [], lanes=["a"]), timeline([batch(message())], [], start=10**15)):
        parse(picture)
        assert any(word.startswith("Nothing to draw") for word in words(picture))


def test_a_hostile_source_name_stays_text() -> None:
    hostile = batch(message(source=HOSTILE), source=HOSTILE)
    picture = timeline([hostile], [rejection("late", HOSTILE)], title=HOSTILE, width=2_000)
    tags = {element.tag.rsplit("}", 1)[1] for element in parse(picture).iter()}
    assert "script" not in tags
    assert HOSTILE.replace("\0", "\N{REPLACEMENT CHARACTER}") in words(picture)


def test_a_long_source_name_is_shortened_and_kept_in_full_next_to_it() -> None:
    name = "x" * 100
    picture = timeline([batch(message(source=name), source=name)], [])
    assert not any(name in word for word in words(picture))
    assert f"<title>{name}</title>" in picture


def test_the_same_messages_in_any_order_give_the_same_bytes() -> None:
    closed, rejected = crowd(3, 8, 20, 40)
    picture = timeline(closed, rejected)
    random.Random(1).shuffle(closed)  # noqa: S311  # no secret
    random.Random(2).shuffle(rejected)  # noqa: S311  # no secret
    assert timeline(closed, rejected) == picture


@pytest.mark.parametrize(
    ("sources", "batches", "size", "refused"),
    [(4, 40, 40, 200), (12, 2_000, 2, 20), (12, 53, 12, 100), (40, 50, 3, 99), (12, 60, 20, 3_000)],
)
def test_a_picture_stays_below_200_kb(sources: int, batches: int, size: int, refused: int) -> None:
    assert len(timeline(*crowd(sources, batches, size, refused)).encode()) <= 200_000


def test_the_picture_describes_itself_and_needs_nothing_else() -> None:
    picture = timeline([batch(message())], [])
    root = parse(picture)
    assert [child.tag.rsplit("}", 1)[1] for child in root][:3] == ["title", "desc", "style"]
    assert root[1].text == "1 message from 1 source: 1 in 1 batch, 0 rejected"
    assert "prefers-color-scheme:dark" in picture
    for foreign in ("<script", "href", "url(", "@import", "<image"):
        assert foreign not in picture


def test_a_bad_argument_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'end' must be after 'start' \(5\), got 5"):
        timeline([], [], start=5, end=5)
    with pytest.raises(InvalidArgumentError, match="width must be an integer from 400 to 100000 px, got 399"):
        timeline([], [], width=399)
    with pytest.raises(InvalidArgumentError, match="reasons in rejected must be one of late, future"):
        timeline([], [Rejection(message(), "lost")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match="start"):
        timeline([], [], start="yesterday")


def test_messages_outside_their_window_are_marked_and_counted() -> None:
    inside, before = message(at=10 * SECOND), message(at=8 * SECOND)
    closed = Batch("press-01", 10 * SECOND, 11 * SECOND, 11 * SECOND, "slots", (before, inside))
    picture = timeline([closed])
    assert (dot_count(picture), dot_count(picture, "outside")) == (2, 1)
    assert "outside its batch's window (1)" in words(picture)
    assert any("1 outside their windows" in text for text in words(picture))
    assert "outside" not in "".join(words(timeline([batch(inside)])))
