"""Large catalogues: queries about a whole topic read its row and the ends of indexes, and walk no ledgers."""

from __future__ import annotations

import pytest
from tests.topics.conftest import MakeTopic
from tests.topics.flows import CountedStatements, append_ledgers

from waterclock.errors import InvalidArgumentError
from waterclock.message import Message, Position
from waterclock.topics.catalogue import ledgers as listing
from waterclock.topics.catalogue.topic_info import list_topics, smallest
from waterclock.topics.finding import positions
from waterclock.topics.finding.positions import position_of
from waterclock.topics.reading import planning
from waterclock.topics.reading.pruning import ReadFilter
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store import sealed_file
from waterclock.topics.topic import Topic

FLOW = [[[0, 1], [2], [3, 4, 5]], [[6, 7]], [[8], [9, 10, 11]], [[12], [13]]]


def sizes(topic: Topic) -> tuple[int, int, int]:
    """Add up what the ledgers say: how many, their messages, their bytes."""
    infos = topic.ledgers()
    return len(infos), sum(info.messages for info in infos), sum(info.size for info in infos)


def test_totals_agree_with_the_ledgers_through_a_topics_whole_life(topic: Topic) -> None:
    assert topic.info[1:4] == sizes(topic) == (1, 0, 0)
    append_ledgers(topic, FLOW)
    assert topic.info[1:4] == sizes(topic)
    topic.roll()
    assert topic.seal() == len(FLOW)
    assert topic.info[1:4] == sizes(topic)
    topic.append([Message("a", "b", 1)])
    assert topic.compact() > 0
    assert topic.info[1:4] == sizes(topic)
    topic.truncate(Position(2, 0, 0))
    assert topic.info[1:4] == sizes(topic)
    assert topic.info.messages == 7
    topic.truncate(topic.head)
    assert topic.info[1:4] == sizes(topic) == (1, 0, 0)


def test_options_of_a_topic_are_shown(make_sqlite_topic: MakeTopic) -> None:
    info = make_sqlite_topic("t", roll_after="1h", roll_size=1000, retention="2d").info
    hour = 3_600_000_000_000
    assert (info.name, info.roll_after, info.roll_size, info.retention) == ("t", hour, 1000, 48 * hour)
    assert (info.max_ahead, info.head) == (None, Position(0, 0, 0))


def test_the_bounds_of_a_topic_are_those_of_what_is_left(topic: Topic) -> None:
    assert topic.bounds is None
    for event, publish in ((500, 10), (20, 400), (30, 60)):
        topic.append([Message("a", "b", event, publish_time=publish, receive_time=publish)])
        assert topic.bounds is not None
        topic.roll()
    for expected in (((20, 500), (10, 400)), ((20, 30), (60, 400)), ((30, 30), (60, 60))):
        bounds = topic.bounds
        assert bounds is not None
        assert tuple((bounds.begin[time], bounds.end[time]) for time in ("event_time", "publish_time")) == expected
        topic.truncate(Position(topic.ledgers(limit=1)[0].ledger + 1, 0, 0))
    assert topic.bounds is None


def test_the_bounds_come_from_the_ends_of_indexes(topic: Topic) -> None:
    append_ledgers(topic, [[[i]] for i in range(30)])
    topic.roll()
    engine = topic.storage.backend.engine
    statement = smallest("event_time").params(topic=topic.storage.topic_id)
    text = str(statement.compile(engine, compile_kwargs={"literal_binds": True}))
    with topic.storage.backend.snapshot(indexed=True) as connection:
        if engine.dialect.name == "sqlite":
            plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
            assert ["waterclock_ledgers_begin_event_time_idx" in step for step in plan] == [True], plan
        elif engine.dialect.name == "postgresql":
            plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {text}")]
            assert any("waterclock_ledgers_begin_event_time_idx" in step for step in plan), plan
            assert not [step for step in plan if "Sort" in step], plan
        else:
            (row,) = connection.exec_driver_sql(f"EXPLAIN {text}").mappings()
            assert row["key"] == "waterclock_ledgers_begin_event_time_idx"
            assert "filesort" not in row["Extra"]


def test_all_topics_are_described_with_one_query(make_sqlite_topic: MakeTopic) -> None:
    topics = [make_sqlite_topic(name) for name in ("c", "a", "B")]
    append_ledgers(topics[0], FLOW)
    backend = topics[0].storage.backend
    with CountedStatements(backend._reader) as counted:
        infos = list_topics(backend)
    assert [(info.name, info.ledgers, info.messages) for info in infos] == [("B", 1, 0), ("a", 1, 0), ("c", 4, 14)]
    assert len(counted.selects) == 1
    assert infos == [topic.info for topic in sorted(topics, key=lambda topic: topic.name)]


def test_ledgers_are_listed_a_page_at_a_time(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    topic.truncate(Position(1, 0, 0))
    whole = topic.ledgers()
    assert [info.ledger for info in whole] == [1, 2, 3, 4]
    assert topic.ledgers(limit=2) == whole[:2]
    assert topic.ledgers(3) == whole[2:]
    assert topic.ledgers(start=2, limit=3) == whole[1:]
    assert topic.ledgers(4, 1) == whole[3:]
    assert topic.ledgers(5) == []
    with pytest.raises(InvalidArgumentError, match="limit must be an integer ≥ 1, got 0"):
        topic.ledgers(limit=0)


def test_row_groups_are_not_read_until_they_are_asked_for(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    read: list[str] = []
    parse = listing.row_groups_from_json
    monkeypatch.setattr(listing, "row_groups_from_json", lambda text: read.append(text) or parse(text))
    infos = topic.ledgers()
    assert [info.bounds is None for info in infos] == [False] * 4 + [True]
    assert read == []
    assert [group.messages for group in infos[2].row_groups] == [4]
    assert len(read) == 1


@pytest.mark.parametrize(
    ("compacted", "start", "stop", "wanted", "looked_into"),
    [
        (False, None, None, {}, 0),
        (False, Position(0, 1, 0), Position(3, 1, 0), {}, 2),  # where the range begins and where it ends
        (False, Position(1, 0, 0), Position(3, 0, 0), {}, 0),
        (False, None, None, {"publish_time": (0, 99)}, 0),
        (False, None, None, {"publish_time": (1, 12)}, 2),  # those of which not all is wanted
        (True, None, None, {}, 2),  # the first and the last of those that share the file
    ],
)
def test_a_plan_looks_only_into_ledgers_that_have_to_be_cut(
    make_sqlite_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    compacted: bool,
    start: Position | None,
    stop: Position | None,
    wanted: dict[str, tuple[int, int]],
    looked_into: int,
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    if compacted:
        topic.compact()
    read: list[str] = []
    parse = planning.checked_row_groups
    monkeypatch.setattr(planning, "checked_row_groups", lambda row: read.append(row["row_groups"]) or parse(row))
    parts = topic.plan(start, stop, wanted=ReadFilter(wanted))
    assert len(read) == looked_into
    assert len(parts) == (1 if compacted else 2 if stop == Position(3, 0, 0) else 4)


def test_a_plan_cuts_no_row_group_and_fills_no_slice_too_much(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 2)
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    for most in range(1, 9):
        parts = topic.plan(max_messages=most)
        assert all(part.messages <= max(most, 2) for part in parts)
        held = [(part.path, group) for part in parts for group in range(*(part.groups or (0, 99)))]
        assert len(held) == len(set(held))
        read = [time for part in parts for batch in read_slice(part) for time in batch["publish_time"].to_pylist()]
        assert read == list(range(14))


def test_the_position_of_a_message_in_the_open_ledger_is_found_without_walking_the_closed_ones(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    for ordinal in range(14):
        position = position_of(topic.storage, ordinal)
        assert next(topic.read(position)).publish_time == ordinal
    text = str(positions._ledger_holding(topic.storage, 13))
    assert "first_ordinal + " not in text  # which no index could answer
