from __future__ import annotations

import logging
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.topics.conftest import MakeTopic, MovableClock
from tests.topics.flows import (
    CountedStatements,
    append_ledgers,
    first_at_or_after,
    ledger_path,
    on_counting_files,
    published,
)

from waterclock.database.schema.topic_catalogue import BOUNDED, entries, ledgers, topics
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.message import Message, Position
from waterclock.topics.finding.finding import Found, find_statement
from waterclock.topics.topic import Topic

TEN_LEDGERS = [[[10 * i, 10 * i + 1], [10 * i + 2]] for i in range(10)]


def test_a_time_is_found_at_it_or_after_it(topic: Topic) -> None:
    first = topic.append(published([100])).first
    second = topic.append(published([200])).first
    assert topic.find(99) == Found(first, found=True)
    assert topic.find(100) == Found(first, found=True)
    assert topic.find(101) == Found(second, found=True)
    assert topic.find(200) == Found(second, found=True)
    assert topic.find(201) == Found(Position(0, 2, 0), found=False)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(("time", "expected"), [(420, 42), (421, 43), (431, 44), (491, None), (401, 41), (399, 40)])
def test_timestamps_ten_apart(make_sqlite_topic: MakeTopic, time: int, expected: int | None, *, sealed: bool) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, [[[10 * i] for i in range(40, 45)], [[10 * i for i in range(45, 50)]]])
    if sealed:
        topic.roll()
        topic.seal()
    found = topic.find(time)
    assert found.found is (expected is not None)
    if expected is not None:
        assert next(topic.read(start=found.position)).publish_time == 10 * expected


@pytest.mark.parametrize("cut", range(8))
@pytest.mark.parametrize("sealed", [False, True])
def test_the_largest_of_unordered_times_is_the_first_that_reaches_it(
    make_sqlite_topic: MakeTopic, cut: int, *, sealed: bool
) -> None:
    topic = make_sqlite_topic()
    times = [0, 1, 2, 3, 4, 6, 5]
    pieces = [piece for piece in (times[:cut], times[cut:]) if piece]
    placed = append_ledgers(topic, [[piece] for piece in pieces])
    if sealed:
        topic.roll()
        topic.seal()
    assert topic.find(5).position == placed[5][1]
    assert topic.find(6).position == placed[5][1]


def test_a_time_that_continues_into_the_next_ledger_is_found_where_it_begins(topic: Topic) -> None:
    placed = append_ledgers(topic, [[[1], [5, 5]], [[5], [5]], [[5, 6]]])
    assert topic.find(5).position == placed[1][1]
    assert topic.find(2).position == placed[1][1]
    topic.seal()
    assert topic.find(5).position == placed[1][1]
    assert topic.find(6).position == placed[-1][1]


@pytest.mark.parametrize("messages", range(6))
@pytest.mark.parametrize(("entry_messages", "ledger_entries"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("closed", ["open", "closed", "sealed"])
def test_every_boundary_of_small_topics(
    make_sqlite_topic: MakeTopic, messages: int, entry_messages: int, ledger_entries: int, closed: str
) -> None:
    topic = make_sqlite_topic()
    times = [10 * (i + 1) for i in range(messages)]
    appends = [times[i : i + entry_messages] for i in range(0, messages, entry_messages)]
    placed = append_ledgers(topic, [appends[i : i + ledger_entries] for i in range(0, len(appends), ledger_entries)])
    if closed != "open":
        topic.roll()
    if closed == "sealed":
        topic.seal()
    reopened = Topic.open(topic.storage.backend, topic.storage.files.root, topic.name)
    for time in chain.from_iterable((10 * i - 1, 10 * i, 10 * i + 1) for i in range(messages + 2)):
        expected = first_at_or_after(placed, time)
        assert reopened.find(time) == Found(expected or topic.head, found=expected is not None)


def test_empty_ledgers_are_skipped(sqlite_topic: Topic) -> None:
    # This library makes none; an older one, or a repair by hand, may have.
    topic = sqlite_topic
    placed = append_ledgers(topic, [[[10]], [[20]], [[30]]])
    topic.roll()
    _make_empty(topic, 1)
    assert topic.find(11).position == placed[2][1]
    assert topic.find(10).position == placed[0][1]
    assert topic.seal() == 3
    assert topic.find(11).position == placed[2][1]
    assert [message.publish_time for message in topic.read()] == [10, 30]


def _make_empty(topic: Topic, ledger: int) -> None:
    bounds = {
        f"{kind}_{time}": None for kind in ("begin", "end") for time in BOUNDED if (kind, time) != ("begin", BOUNDED[3])
    }

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(entries).where(entries.c.ledger == ledger))
        here = ledgers.c.ledger == ledger
        messages = connection.execute(sa.select(ledgers.c.messages).where(here)).scalar_one()
        connection.execute(sa.update(ledgers).where(here).values(messages=0, entries=0, **bounds))
        for table in (ledgers, entries):
            earlier = {"first_ordinal": table.c.first_ordinal - messages}
            connection.execute(sa.update(table).where(table.c.ledger > ledger).values(earlier))
        connection.execute(sa.update(topics).values(ordinal=topics.c.ordinal - messages))

    topic.storage.backend.transact(work)


def test_a_future_time_is_found_once_it_is_published(topic: Topic) -> None:
    append_ledgers(topic, [[[1], [2]]])
    not_yet = topic.find(50)
    assert not_yet == Found(Position(0, 2, 0), found=False)
    topic.append(published([50]))
    assert topic.find(50) == Found(not_yet.position, found=True)


def test_each_of_the_three_times_is_found_by_its_own_name(topic: Topic) -> None:
    topic.append(
        [
            Message("a", "b", 300, publish_time=10, receive_time=2000),
            Message("a", "b", 100, publish_time=30, receive_time=1000),
            Message("a", "b", 200, publish_time=20, receive_time=3000),
        ]
    )
    topic.append([Message("a", "b", 400, publish_time=40, receive_time=4000)])
    for _ in range(2):
        assert topic.find(150, by="event_time").position == Position(0, 0, 0)
        assert topic.find(301, by="event_time").position == Position(0, 1, 0)
        assert topic.find(20).position == Position(0, 0, 1)
        assert topic.find(2001, by="receive_time").position == Position(0, 0, 2)
        assert topic.find(4001, by="receive_time").found is False
        topic.roll()
        topic.seal()


def test_by_must_name_a_time(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match=r"effective_time, got 'ingest_time'"):
        sqlite_topic.find(1, by="ingest_time")


@pytest.mark.one_database
def test_a_duration_counts_back_from_the_databases_clock(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, [[[1_000_000_000, 2_000_000_000, 3_000_000_000]]])
    clock.now = 4_000_000_000
    assert clocked_topic.find("2s").position == Position(0, 0, 1)


@pytest.mark.parametrize("time", [0, 5, 31, 33, 57, 92, 93])
def test_finding_costs_one_query_and_at_most_one_ranged_read(topic: Topic, tmp_path: Path, time: int) -> None:
    topic, files = on_counting_files(topic, tmp_path)
    placed = append_ledgers(topic, TEN_LEDGERS)
    topic.seal()
    for by in ("publish_time", "event_time", "receive_time"):
        files.reads.clear()
        with CountedStatements(topic.storage.backend._reader) as counted:
            found = topic.find(time, by=by)
        assert len(counted.selects) == 1
        assert len(files.reads) <= 1
        assert by != "publish_time" or found.position == (first_at_or_after(placed, time) or topic.head)


def test_the_catalogue_query_goes_down_indexes_on_each_database(topic: Topic) -> None:
    append_ledgers(topic, [[[i]] for i in range(30)])
    topic.roll()
    append_ledgers(topic, [[[100 + i] for i in range(30)]])
    backend = topic.storage.backend
    statement = find_statement("publish_time").params(topic=topic.storage.topic_id, time=15, lost=-1)
    text = str(statement.compile(backend.engine, compile_kwargs={"literal_binds": True}))
    with backend.engine.connect() as connection:
        if backend.dialect.name == "sqlite":
            plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
            assert not [step for step in plan if step.startswith("SCAN")], plan
            assert not [step for step in plan if "TEMP B-TREE" in step], plan
            assert any("waterclock_ledgers_publish_time_idx" in step for step in plan)
            assert any("waterclock_entries_publish_time_idx" in step for step in plan)
        elif backend.dialect.name == "postgresql":
            connection.exec_driver_sql(
                "SET enable_seqscan = off"
            )  # on thirty rows a scan is cheaper; can it do without?
            plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {text}")]
            assert not [step for step in plan if "Seq Scan" in step or "Sort" in step], plan
            assert any("waterclock_ledgers_publish_time_idx" in step for step in plan)
            assert any("waterclock_entries_publish_time_idx" in step for step in plan)
        else:
            rows = connection.exec_driver_sql(f"EXPLAIN {text}").mappings().all()
            assert {row["type"] for row in rows} <= {"const", "ref", "range", "eq_ref", "system"}, rows
            keys = {row["key"] for row in rows}
            assert {"waterclock_ledgers_publish_time_idx", "waterclock_entries_publish_time_idx"} <= keys, rows


def test_missing_bounds_are_measured_once_and_filled_in(topic: Topic, tmp_path: Path) -> None:
    topic, files = on_counting_files(topic, tmp_path)
    placed = append_ledgers(topic, [[[10 * i, 10 * i + 7], [10 * i + 3]] for i in range(6)])
    topic.roll()
    topic.seal()
    before = topic.ledgers()
    _forget_bounds(topic, [1, 4])
    assert topic.ledgers()[1].bounds is None
    files.reads.clear()
    assert topic.find(25).position == first_at_or_after(placed, 25)
    assert topic.ledgers()[1].bounds == before[1].bounds
    assert topic.ledgers()[4].bounds is None  # behind the answer: no caller has to know
    assert len(files.reads) == 1  # the answer: the catalogue knows the bounds of row groups
    for time in range(65):
        assert topic.find(time).position == (first_at_or_after(placed, time) or topic.head)
    assert topic.ledgers() == before


def test_missing_bounds_of_a_ledger_that_is_not_sealed_are_measured_from_its_rows(sqlite_topic: Topic) -> None:
    placed = append_ledgers(sqlite_topic, [[[5, 90], [6]], [[7]], [[100]]])
    _forget_bounds(sqlite_topic, [0])
    for time in (4, 6, 8, 91, 101):
        assert sqlite_topic.find(time).position == (first_at_or_after(placed, time) or sqlite_topic.head)


def test_bounds_that_were_missing_raise_the_running_maximum_of_later_ledgers(sqlite_topic: Topic) -> None:
    # As if ledger 0 had come from elsewhere: the later ones were closed without knowing its times.
    topic = sqlite_topic
    placed = append_ledgers(topic, [[[5, 90]], [[7]], [[8]]])
    topic.roll()
    _forget_bounds(topic, [0])
    values = {f"peak_{time}": ledgers.c[f"end_{time}"] for time in BOUNDED}
    topic.storage.backend.transact(
        lambda connection: connection.execute(sa.update(ledgers).where(ledgers.c.ledger > 0).values(values))
    )
    assert topic.find(8).position == placed[1][1]
    topic.append(published([9]))
    topic.roll()
    assert topic.find(9).position == placed[1][1]
    assert topic.find(91) == Found(topic.head, found=False)


def _forget_bounds(topic: Topic, numbers: list[int]) -> None:
    columns = [column for column in ledgers.c if column.name.startswith(("begin_", "end_", "peak_"))]
    values = {column.name: None for column in columns}
    topic.storage.backend.transact(
        lambda connection: connection.execute(sa.update(ledgers).where(ledgers.c.ledger.in_(numbers)).values(values))
    )


@pytest.mark.one_database
def test_lost_files_are_skipped_with_a_warning(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    placed = append_ledgers(topic, TEN_LEDGERS)
    topic.roll()
    topic.seal()
    for ledger in (0, 5):
        ledger_path(topic, ledger).unlink()
    ledger_path(topic, 9).unlink()
    readable = [(time, position) for time, position in placed if position.ledger not in (0, 5, 9)]
    with caplog.at_level(logging.WARNING):
        for time in range(-1, 105):
            expected = first_at_or_after(readable, time)
            assert topic.find(time) == Found(expected or topic.head, found=expected is not None)
    assert str(ledger_path(topic, 0)) in caplog.text
    topic.append(published([200]))
    assert topic.find(95).position == Position(10, 0, 0)


def test_a_lost_file_without_bounds_is_skipped_too(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, TEN_LEDGERS)
    topic.roll()
    topic.seal()
    _forget_bounds(topic, [2])
    path = ledger_path(topic, 2)
    path.unlink()
    readable = [(time, position) for time, position in placed if position.ledger != 2]
    for time in (-1, 12, 20, 21, 30, 92, 93):
        assert topic.find(time).position == (first_at_or_after(readable, time) or topic.head)


def test_a_store_that_cannot_be_reached_is_an_error_and_not_a_lost_file(
    sqlite_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, files = on_counting_files(sqlite_topic, tmp_path)
    append_ledgers(topic, TEN_LEDGERS)
    topic.seal()

    def unreachable(path: str) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(files, "open_input_file", unreachable)
    with pytest.raises(UnavailableError, match=r"\.parquet.*connection refused"):
        topic.find(50)


@pytest.mark.one_database
def test_newest_is_the_first_message_with_the_largest_time(topic: Topic) -> None:
    assert topic.newest() == Found(topic.head, found=False)
    placed = append_ledgers(topic, [[[5, 9]], [[40, 80, 80, 3]], [[7], [80, 60]]])
    newest = Found(placed[3][1], found=True)
    assert topic.newest("publish_time") == newest
    topic.seal()
    assert topic.newest("publish_time") == newest
    topic.append(published([81, 2]))
    assert topic.newest("publish_time") == Found(Position(2, 2, 0), found=True)
    assert topic.newest() == Found(Position(0, 0, 0), found=True)  # their event times are equal


def test_newest_costs_two_queries_and_one_ranged_read(sqlite_topic: Topic, tmp_path: Path) -> None:
    topic, files = on_counting_files(sqlite_topic, tmp_path)
    append_ledgers(topic, [*TEN_LEDGERS, [[1]]])
    topic.seal()
    files.reads.clear()
    with CountedStatements(topic.storage.backend._reader) as counted:
        assert topic.newest("publish_time").position == Position(9, 1, 0)
    assert (len(counted.selects), len(files.reads)) == (2, 1)


@pytest.mark.one_database
def test_newest_is_among_the_remaining_messages(topic: Topic) -> None:
    append_ledgers(topic, [[[900]], [[5, 30]], [[20, 25]], [[4]]])
    topic.seal()
    topic.truncate(Position(1, 0, 0))
    values = {"stale_peaks": 3, **{f"peak_{time}": 900 for time in BOUNDED}}  # as if killed before peaks were lowered
    with topic.storage.backend.engine.begin() as connection:
        connection.execute(sa.update(topics).values(values))
        connection.execute(sa.update(ledgers).values({name: 900 for name in values if name != "stale_peaks"}))
    assert topic.newest("publish_time") == Found(Position(1, 0, 1), found=True)


def test_newest_measures_ledgers_without_bounds(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, [[[5]], [[30, 90]], [[20]]])
    topic.roll()
    topic.seal()
    _forget_bounds(topic, [1])
    with topic.storage.backend.engine.begin() as connection:
        connection.execute(sa.update(topics).values({f"peak_{time}": 30 for time in BOUNDED}))
    assert topic.newest("publish_time") == Found(placed[2][1], found=True)


def test_newest_skips_lost_files(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, [[[5, 50]], [[90]], [[80]], [[20]]])
    sqlite_topic.seal()
    for ledger in (1, 2):
        ledger_path(sqlite_topic, ledger).unlink()
    assert sqlite_topic.newest("publish_time") == Found(Position(0, 0, 1), found=True)


def test_index_and_at_are_inverse_for_every_message(topic: Topic) -> None:
    placed = append_ledgers(topic, TEN_LEDGERS)
    topic.seal()
    assert [topic.index(position) for _, position in placed] == list(range(30))
    assert [topic.at(number) for number in range(30)] == [position for _, position in placed]
    assert topic.index(topic.head) == 30
    assert topic.at(30) == topic.at(2**63 - 1) == topic.head


def test_index_and_at_of_a_deleted_message_lead_to_the_next_one_left(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, TEN_LEDGERS)
    sqlite_topic.seal()
    sqlite_topic.truncate(Position(4, 0, 0))
    assert sqlite_topic.index(Position(1, 0, 0)) == 12
    assert sqlite_topic.at(3) == Position(4, 0, 0)


@pytest.mark.parametrize("index", [-1, True, 1.5, "3"])
def test_at_refuses_an_invalid_message_number(sqlite_topic: Topic, index: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"index must be an integer ≥ 0, got "):
        sqlite_topic.at(index)
