from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from tests.topics.flows import FORMS, append_ledgers, bring_to

from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.message import Position
from waterclock.topics.finding.positions import place_of, position_of
from waterclock.topics.reading.pruning import ReadFilter
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store import sealed_file
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import compacting

FLOW = [[[0, 1], [2], [3, 4, 5]], [[6, 7]], [[8], [9, 10, 11]], [[12], [13]]]


@pytest.fixture(params=FORMS)
def flow(topic: Topic, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Topic, list[Position]]:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 2)
    monkeypatch.setattr(compacting, "SHARED_GROUP_MESSAGES", 2)
    placed = append_ledgers(topic, FLOW)
    bring_to(topic, request.param)
    return topic, [position for _, position in placed]


def test_slices_of_any_range_hold_each_message_once_and_in_order(flow: tuple[Topic, list[Position]]) -> None:
    topic, positions = flow
    for start in (Position(0, 0, 0), *positions[::3]):
        for stop in (None, *positions[1::3]):
            slices = pickle.loads(pickle.dumps(topic.plan(start, stop, max_messages=3)))  # noqa: S301  # our own
            batches = [batch for part in slices for batch in read_slice(part, ["publish_time"])]
            read = [time for batch in batches for time in batch.column("publish_time").to_pylist()]
            assert read == [i for i, at in enumerate(positions) if start <= at and (stop is None or at < stop)]
            assert sum(part.messages for part in slices) >= len(read)


def test_a_slice_holds_no_more_than_asked_for_unless_one_entry_does(flow: tuple[Topic, list[Position]]) -> None:
    topic, _ = flow
    assert all(part.messages <= 3 for part in topic.plan(max_messages=3))
    assert max(part.messages for part in topic.plan(max_messages=1)) <= 3
    assert len(topic.plan()) <= len(FLOW)


def test_pieces_whose_times_are_out_of_range_are_left_out(flow: tuple[Topic, list[Position]]) -> None:
    topic, positions = flow
    for first, last in ((0, 13), (4, 8), (9, 9), (14, 20)):
        slices = topic.plan(max_messages=3, wanted=ReadFilter({"publish_time": (first, last)}))
        read = [time for part in slices for b in read_slice(part) for time in b.column("publish_time").to_pylist()]
        inside = set(range(first, last + 1)) & set(range(len(positions)))
        assert inside <= set(read)
        # A piece is an entry or a row group, and holds at most three messages here.
        assert all(first - 2 <= time <= last + 2 for time in read)


def test_a_slice_that_was_cut_before_sealing_is_read_after_it(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    slices = topic.plan(Position(0, 1, 0))
    topic.roll()
    assert topic.seal() == len(FLOW)
    batches = [batch for part in slices for batch in read_slice(part, ["publish_time", "payload"])]
    assert pa.Table.from_batches(batches)["publish_time"].to_pylist() == list(range(2, 14))


def test_messages_are_looked_up_by_their_positions_in_the_order_asked_for(flow: tuple[Topic, list[Position]]) -> None:
    topic, positions = flow
    wanted = [13, 0, 5, 5, 7, 2, 11]
    table = topic.messages_at([positions[i] for i in wanted], ["publish_time", "index", "ledger"])
    assert table["publish_time"].to_pylist() == wanted
    assert table["ledger"].to_pylist() == [positions[i].ledger for i in wanted]
    found = topic.messages_at(table.append_column("entry", pa.array([positions[i].entry for i in wanted])))
    assert found["publish_time"].to_pylist() == wanted
    assert topic.messages_at([positions[4]], ["payload"])["payload"].to_pylist() == [b"1"]
    assert topic.messages_at([]).num_rows == 0


def test_a_position_without_a_message_is_named(flow: tuple[Topic, list[Position]]) -> None:
    topic, positions = flow
    for nowhere in (Position(0, 0, 2), Position(0, 9, 0), Position(7, 0, 0), topic.head):
        with pytest.raises(NotFoundError, match=str(nowhere)):
            topic.messages_at([positions[0], nowhere], ["payload"])
    with pytest.raises(InvalidArgumentError, match="null"):
        topic.messages_at(pa.table({"ledger": [0], "entry": pa.array([None], pa.int64()), "index": [0]}), ["payload"])


def test_every_position_has_its_number_and_every_number_its_position(flow: tuple[Topic, list[Position]]) -> None:
    topic, positions = flow
    for number, position in enumerate(positions):
        assert place_of(topic.storage, position) == (position, number)
        assert position_of(topic.storage, number) == position
    assert place_of(topic.storage, Position(99, 0, 0)) == (topic.head, 14)
    assert position_of(topic.storage, 14) == topic.head
    assert place_of(topic.storage, Position(0, 0, 7)) == (Position(0, 1, 0), 2)
    assert place_of(topic.storage, Position(1, 5, 0)).ordinal == 8


def test_advancing_by_a_number_of_messages_ends_between_entries(flow: tuple[Topic, list[Position]]) -> None:
    topic, positions = flow
    boundaries = [*(position for position in positions if position.index == 0), topic.head]
    for start in positions:
        for messages in (1, 2, 3, 5, 100):
            end = topic.advance(start, messages)
            number = positions.index(end) if end in positions else place_of(topic.storage, end).ordinal
            taken = number - positions.index(start)
            assert end in boundaries or place_of(topic.storage, end).position in boundaries
            assert taken >= 1
            following = next((at for at in boundaries if at > start), topic.head)
            assert taken <= messages or place_of(topic.storage, end).position == following
