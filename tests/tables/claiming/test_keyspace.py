from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.errors import InvalidArgumentError
from waterclock.tables.messages.putting.drawing_ids import draw_id
from waterclock.tables.model.keyspace import KEYSPACE_END, KeyRange, check_cover, choose, keyspace_id

ranges = st.lists(st.integers(1, KEYSPACE_END - 1), max_size=6, unique=True).map(
    lambda cuts: [
        KeyRange(start, end) for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), KEYSPACE_END], strict=True)
    ]
)


@pytest.mark.parametrize(
    ("message_id", "place"),
    [
        (1, 0x6B86B273FF34FCE1),
        (-1, 0x1BAD6B8CF97131FC),
        (2**63 - 1, 0xB34A1C30A715F6BF),
        ("Köln", 0x430B4FC55E4EF149),
        (uuid.UUID("018F4D1E-7C2A-7B3C-8D4E-5F6071829304"), 0x49FE7245136A3277),
    ],
)
def test_an_id_maps_to_its_documented_keyspace_id(message_id: int | str | uuid.UUID, place: int) -> None:
    assert keyspace_id(message_id) == place


@given(ranges)
def test_ranges_that_meet_cover_the_keyspace_and_every_id_has_one_shard(shards: list[KeyRange]) -> None:
    assert check_cover(map(str, reversed(shards))) == shards
    for message_id in range(20):
        assert sum(keyspace_id(message_id) in shard for shard in shards) == 1


@given(ranges, st.data())
def test_a_hole_is_named(shards: list[KeyRange], data: st.DataObject) -> None:
    hole = data.draw(st.sampled_from(shards))
    with pytest.raises(InvalidArgumentError, match=f"no shard has the key range {hole}$"):
        check_cover([str(shard) for shard in shards if shard != hole])


@pytest.mark.parametrize(
    ("texts", "overlap"), [(["-80", "40-"], "40-80"), (["-", "20-30"], "20-30"), (["-80", "-80", "80-"], "-80")]
)
def test_an_overlap_is_named(texts: list[str], overlap: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^shards must not overlap, .* both have the key range {overlap}$"):
        check_cover(texts)


@given(ranges)
def test_a_range_reads_as_it_was_written(shards: list[KeyRange]) -> None:
    assert [KeyRange.parse(str(shard), "shards") for shard in shards] == shards


@pytest.mark.parametrize("text", ["", "0", "8-", "80", "-8g", "80-80", "c0-40", "80-00", "-112233445566778899", None])
def test_an_invalid_key_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^shards must .*got {text!r}"):
        check_cover([text])


def test_trailing_zeros_and_capitals_change_nothing() -> None:
    assert str(KeyRange.parse("4000-C0", "shards")) == "40-c0"


def test_a_subscriber_names_a_shard_or_a_row_of_neighbours() -> None:
    shards = check_cover(["-40", "40-80", "80-"])
    assert choose(shards, None, None) == shards
    assert choose(shards, "40-80", None) == choose(shards, None, "40-80") == shards[1:2]
    assert choose(shards, None, "-80") == shards[:2]
    assert choose(shards, None, "-") == shards
    for shard, key_range in (("-80", None), (None, "-20"), (None, "-60"), (None, "50-60")):
        with pytest.raises(InvalidArgumentError, match="the shards are -40, 40-80, 80-"):
            choose(shards, shard, key_range)
    with pytest.raises(InvalidArgumentError, match="must not both be given"):
        choose(shards, "-40", "-40")


@given(ranges)
def test_a_drawn_id_belongs_to_its_shard(shards: list[KeyRange]) -> None:
    widest = max(shards, key=lambda shard: shard.end - shard.start)
    assert keyspace_id(draw_id(widest, ())) in widest


def test_a_drawn_id_is_not_taken() -> None:
    taken: set[int] = set()
    for _ in range(10_000):
        drawn = draw_id(None, taken)
        assert drawn not in taken
        assert 0 < drawn < 2**63
        taken.add(drawn)
