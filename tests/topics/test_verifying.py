from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.topics.conftest import MakeTopic
from tests.topics.flows import append_ledgers, ledger_path, published

from waterclock.database.topic_catalogue import entries, ledgers, topics
from waterclock.errors import DamagedError, UnavailableError
from waterclock.message import Message
from waterclock.topics import sealed_file
from waterclock.topics.topic import Topic

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]], [[9]]]  # two are sealed, one is closed, one is open


def change(topic: Topic, statement: sa.UpdateBase) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(statement))


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def flip_entry(topic: Topic, ledger: int, entry: int) -> None:
    here = (entries.c.ledger == ledger, entries.c.entry == entry)
    with topic.storage.backend.snapshot() as connection:
        data = bytearray(connection.execute(sa.select(entries.c.data).where(*here)).scalar_one())
    data[-5] ^= 16
    change(topic, sa.update(entries).where(*here).values(data=bytes(data)))


@pytest.fixture
def topic(sqlite_topic: Topic) -> Topic:
    """Ledgers that are sealed, closed and open."""
    append_ledgers(sqlite_topic, FLOW[:2])
    sqlite_topic.roll()
    sqlite_topic.seal()
    append_ledgers(sqlite_topic, FLOW[2:])
    return sqlite_topic


def lost_file(topic: Topic) -> None:
    ledger_path(topic, 1).unlink()


def cut_file(topic: Topic) -> None:
    path = ledger_path(topic, 1)
    path.write_bytes(path.read_bytes()[:-1])


def flipped_chunk(topic: Topic) -> None:
    flip(ledger_path(topic, 1), 40)


def flipped_entry(topic: Topic) -> None:
    flip_entry(topic, 2, 1)


def lost_entry(topic: Topic) -> None:
    change(topic, sa.delete(entries).where(entries.c.ledger == 2, entries.c.entry == 0))


def lost_row(topic: Topic) -> None:
    change(topic, sa.delete(ledgers).where(ledgers.c.ledger == 0))


def wrong_bounds(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 2).values(end_event_time=1))


def low_peak(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(peak_publish_time=4))


def flipped_footer(topic: Topic) -> None:
    flip(ledger_path(topic, 1), -30)


def stray_file(topic: Topic) -> None:
    path = ledger_path(topic, 1)
    path.with_name("0000000077-stray.parquet").write_bytes(b"x")


FAULTS = [
    (lost_file, "missing file", 1, None, 3),
    (cut_file, "damaged", 1, None, 3),
    (flipped_chunk, "damaged", 1, 0, 3),
    (flipped_entry, "damaged", 2, 1, 2),
    (lost_entry, "missing entries", 2, 0, 1),
    (lost_row, "missing ledger", 0, None, 3),
    (wrong_bounds, "catalogue", 2, None, 0),
    (low_peak, "catalogue", 1, None, 0),
    (flipped_footer, "spare", 1, None, 0),
    (stray_file, "orphan", None, None, 0),
]


def test_a_whole_topic_is_found_whole(topic: Topic) -> None:
    for deep in (False, True):
        verified = topic.verify(deep=deep)
        assert verified.faults == ()
        assert verified.is_whole
        assert (verified.ledgers, verified.files, verified.entries) == (4, 2, 3)
        assert (verified.messages, verified.lost) == (10, 0)


@pytest.mark.parametrize(("harm", "kind", "ledger", "entry", "messages"), FAULTS)
def test_each_fault_is_found_where_it_is(
    topic: Topic, harm: Callable[[Topic], None], kind: str, ledger: int, entry: int, messages: int
) -> None:
    harm(topic)
    found = [fault for fault in topic.verify(deep=True).faults if kind != "missing ledger" or fault.kind != "orphan"]
    assert [(fault.kind, fault.ledger, fault.entry, fault.messages) for fault in found] == [
        (kind, ledger, entry, messages)
    ]
    assert topic.verify(deep=True).is_whole is (kind in ("spare", "orphan"))


@pytest.mark.parametrize(("harm", "kind", "ledger", "entry", "messages"), FAULTS)
def test_after_a_repair_everything_that_is_left_is_read_and_stands_where_it_stood(
    topic: Topic, harm: Callable[[Topic], None], kind: str, ledger: int, entry: int, messages: int
) -> None:
    before = {message.publish_time: message.position for message in topic.read()}
    subscription = topic.subscribe("late", start=topic.find(9).position)
    harm(topic)
    repaired = topic.repair()
    assert repaired.is_whole
    assert repaired.lost == (0 if kind == "missing ledger" else messages)  # that ledger's file was imported
    assert repaired.imported == ((0,) if kind == "missing ledger" else ())
    left = {message.publish_time: message.position for message in topic.read()}
    assert len(left) == 10 - repaired.lost
    assert left.items() <= before.items()
    assert subscription.backlog.messages == 1
    topic.roll()
    topic.seal()
    topic.compact()
    assert {message.publish_time: message.position for message in topic.read()} == left
    verified = topic.verify(deep=True)
    assert verified.is_whole
    assert verified.lost == repaired.lost
    assert [topic.find(time).position for time in left if time is not None] == list(left.values())
    assert topic.repair().lost == 0


def test_several_faults_are_mended_at_once(topic: Topic) -> None:
    for harm in (flipped_chunk, flipped_entry, lost_row, stray_file):
        harm(topic)
    repaired = topic.repair()
    assert (repaired.imported, repaired.lost, repaired.is_whole) == ((0,), 5, True)
    assert times(topic) == [0, 1, 2, 6, 9]


def test_one_damaged_row_group_costs_only_its_own_messages(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 10)
    sqlite_topic.append(published(range(35)))
    sqlite_topic.roll()
    sqlite_topic.append(published(range(35, 40)))
    sqlite_topic.seal()
    flip(ledger_path(sqlite_topic, 0), 1200)
    verified = sqlite_topic.verify(deep=True)
    assert [fault.messages for fault in verified.faults] == [10]
    assert sqlite_topic.repair().lost == 10
    left = times(sqlite_topic)
    assert len(left) == 30
    assert sqlite_topic.head.ledger == 1
    planned = [part.messages for part in sqlite_topic.plan()]
    assert sum(planned) == 30
    assert sqlite_topic.verify(deep=True).lost == 10
    # What follows the loss is found by its number, too.
    subscription = sqlite_topic.subscribe("s", start=sqlite_topic.find(35).position)
    assert subscription.backlog.messages == 5


@pytest.mark.parametrize("compacted", [False, True])
def test_a_lost_catalogue_is_rebuilt_from_the_folder(make_topic: MakeTopic, tmp_path: Path, compacted: bool) -> None:
    topic = make_topic()
    placed = append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    if compacted:
        topic.compact()
    change(topic, sa.delete(ledgers))
    change(topic, sa.delete(topics))
    again = make_topic()  # the same folder, and the store's marker in it
    assert list(again.read()) == []
    assert again.repair().imported == (0, 1, 2, 3)
    assert [(message.publish_time, message.position) for message in again.read()] == placed
    assert again.verify(deep=True).is_whole
    assert again.append(published([10])).first == (4, 0, 0)
    assert [again.find(time).position for time, _ in placed] == [position for _, position in placed]


def test_what_was_deleted_on_purpose_is_not_imported_again(topic: Topic) -> None:
    topic.truncate(3)
    assert [fault.kind for fault in topic.verify().faults] == []  # the file waits for its deletion
    assert topic.repair().imported == ()
    assert times(topic) == [3, 4, 5, 6, 7, 8, 9]


def test_a_file_that_was_brought_back_after_its_loss_was_recorded_is_imported(topic: Topic) -> None:
    path = ledger_path(topic, 1)
    content = path.read_bytes()
    path.unlink()
    assert topic.repair().lost == 3
    path.write_bytes(content)
    assert topic.repair().imported == (1,)
    assert times(topic) == list(range(10))


def test_a_file_of_another_topic_or_a_damaged_one_is_not_imported(make_sqlite_topic: MakeTopic, topic: Topic) -> None:
    other = make_sqlite_topic("other")
    append_ledgers(other, FLOW[:1])
    other.roll()
    other.seal()
    ledger_path(other, 0).rename(ledger_path(topic, 1).with_name("0000000005-0.parquet"))
    path = ledger_path(topic, 0)
    change(topic, sa.delete(ledgers).where(ledgers.c.ledger == 0))
    flip(path, 40)
    repaired = topic.repair()
    assert (repaired.imported, repaired.lost) == ((), 3)
    assert times(topic) == [3, 4, 5, 6, 7, 8, 9]


def test_an_absent_store_is_no_fault_and_nothing_is_recorded_as_lost(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "ledgers").rename(tmp_path / "elsewhere")
    for look in (topic.verify, topic.repair):
        with pytest.raises(UnavailableError, match="is not there"):
            look()
    (tmp_path / "elsewhere").rename(tmp_path / "ledgers")
    assert topic.verify(deep=True).is_whole


def test_progress_says_how_many_pieces_are_done_and_of_how_many(topic: Topic) -> None:
    seen: list[tuple[int, int]] = []
    topic.verify(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]  # two files, a closed ledger and the open one


def test_a_topic_is_verified_while_it_is_used(sqlite_topic: Topic) -> None:
    def go_on(done: int, _total: int) -> None:
        sqlite_topic.append([Message("press", "load", done, b"x")])
        sqlite_topic.roll()
        sqlite_topic.seal()
        sqlite_topic.compact()
        sqlite_topic.truncate(3)

    append_ledgers(sqlite_topic, FLOW)
    sqlite_topic.roll()
    sqlite_topic.seal()
    for _ in range(3):
        assert sqlite_topic.verify(deep=True, progress=go_on).is_whole


def test_a_damaged_topic_says_so_until_it_is_repaired(topic: Topic) -> None:
    flipped_chunk(topic)
    with pytest.raises(DamagedError, match="waterclock topic verify"):
        times(topic)
    topic.repair()
    assert times(topic) == [0, 1, 2, 6, 7, 8, 9]
