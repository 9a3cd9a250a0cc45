from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.topics.conftest import MakeTopic
from tests.topics.flows import append_ledgers, ledger_path, published

import waterclock as wc
from waterclock.database.schema.topic_catalogue import entries, files, ledgers, topics
from waterclock.errors import DamagedError, UnavailableError
from waterclock.message import Message
from waterclock.topics.store import sealed_file
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
def test_after_a_repair_all_remaining_messages_are_read_at_their_positions(
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


def test_several_faults_are_fixed_at_once(topic: Topic) -> None:
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


@pytest.mark.both_servers
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


def test_deleted_ledgers_are_not_imported_again(topic: Topic) -> None:
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


def move_file(topic: Topic) -> None:
    path = ledger_path(topic, 1)
    (path.parent.parent / "old").mkdir()
    path.rename(path.parent.parent / "old" / "x.parquet")


def rename_file(topic: Topic) -> None:
    path = ledger_path(topic, 1)
    path.rename(f"{path}.bak")


def name_no_file(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(path="telemetry-1/0000000001.parquet"))


def name_a_file_outside(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(path="../x.parquet"))


def swap_paths(topic: Topic) -> None:
    root = Path(topic.storage.files.root)
    first, second = (str(ledger_path(topic, number).relative_to(root)) for number in (0, 1))
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 0).values(path=second))
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(path=first))


def name_the_others_file(topic: Topic) -> None:
    path = str(ledger_path(topic, 0).relative_to(topic.storage.files.root))
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(path=path))


def lose_path(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(path=None))


def wrong_size(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(file_bytes=7))


def lose_checksums(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(checksums=None))


def wrong_row_groups(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(row_groups="[]"))


def move_file_and_lose_checksums(topic: Topic) -> None:
    move_file(topic)
    lose_checksums(topic)


@pytest.mark.parametrize(
    "harm",
    [
        move_file,
        rename_file,
        name_no_file,
        name_a_file_outside,
        swap_paths,
        name_the_others_file,
        lose_path,
        wrong_size,
        lose_checksums,
        wrong_row_groups,
        move_file_and_lose_checksums,
    ],
)
def test_messages_in_a_file_of_the_store_are_not_recorded_as_lost(topic: Topic, harm: Callable[[Topic], None]) -> None:
    before = [(message.position, message.publish_time) for message in topic.read()]
    harm(topic)
    repaired = topic.repair()
    assert (repaired.lost, repaired.is_whole) == (0, True)
    assert [(message.position, message.publish_time) for message in topic.read()] == before
    assert topic.verify(deep=True).lost == 0


def test_only_the_damaged_messages_of_a_moved_file_are_lost(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 10)
    append_ledgers(sqlite_topic, [[range(35)], [range(35, 40)]])
    sqlite_topic.seal()
    path = ledger_path(sqlite_topic, 0)
    flip(path, 1200)
    path.rename(path.with_name("moved.parquet"))
    repaired = sqlite_topic.repair()
    assert (repaired.moved, repaired.lost) == ((0,), 10)
    assert len(times(sqlite_topic)) == 30


def test_the_files_of_ledgers_that_share_one_are_found_after_it_was_moved(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, FLOW)
    sqlite_topic.roll()
    sqlite_topic.seal()
    sqlite_topic.compact()
    path = ledger_path(sqlite_topic, 0)
    path.rename(path.with_name("moved.parquet"))
    assert sqlite_topic.repair().moved == (0, 1, 2, 3)
    assert times(sqlite_topic) == list(range(10))


def test_a_file_that_waits_for_its_deletion_does_not_stand_in(topic: Topic) -> None:
    path = ledger_path(topic, 1)
    copied = path.with_name("copied.parquet")
    path.rename(copied)
    row = {"path": str(copied.relative_to(topic.storage.files.root)), "topic_id": topic.storage.topic_id, "ledger": 1}
    change(topic, sa.insert(files).values(**row, state="deleted", owner="", until=0))
    assert topic.repair().lost == 3


def test_an_absent_store_is_not_a_fault_and_nothing_is_recorded_as_lost(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "ledgers").rename(tmp_path / "elsewhere")
    for look in (topic.verify, topic.repair):
        with pytest.raises(UnavailableError, match=r"waterclock-store.json is missing"):
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


def test_a_file_of_a_topic_of_the_same_name_in_another_database_is_neither_imported_nor_an_orphan(
    topic: Topic, tmp_path: Path
) -> None:
    with wc.connect(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "ledgers") as database:
        other = database.create_topic("telemetry")
        append_ledgers(other, FLOW)
        other.roll()
        other.seal()
        assert topic.verify().faults == ()
        lost_file(topic)
        change(topic, sa.delete(ledgers).where(ledgers.c.ledger == 1))
        repaired = topic.repair()
        assert (repaired.imported, repaired.lost) == ((), 3)
        assert times(topic) == [0, 1, 2, 6, 7, 8, 9]
        assert len(list(other.read())) == 10


def test_imported_files_are_never_deleted_since_another_database_may_work_on_them(topic: Topic, tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "ledgers") as database:
        copy = database.create_topic("telemetry")
        assert copy.repair().imported == (0, 1)
        copy.compact()
        copy.remove()
    assert times(topic) == list(range(10))


@pytest.mark.parametrize("missing", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_a_ledger_that_the_catalogue_has_lost_is_imported_from_the_file_that_it_shared(
    sqlite_topic: Topic, missing: list[int]
) -> None:
    append_ledgers(sqlite_topic, FLOW)
    sqlite_topic.roll()
    sqlite_topic.seal()
    sqlite_topic.compact()
    change(sqlite_topic, sa.delete(ledgers).where(ledgers.c.ledger.in_(missing)))
    repaired = sqlite_topic.repair()
    assert (repaired.imported, repaired.lost, repaired.is_whole) == (tuple(missing), 0, True)
    assert times(sqlite_topic) == list(range(10))


def test_several_ledgers_that_are_missing_side_by_side_are_recorded_at_once(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, FLOW)
    change(sqlite_topic, sa.delete(ledgers).where(ledgers.c.ledger.in_((0, 1))))
    repaired = sqlite_topic.repair()
    assert (repaired.lost, repaired.is_whole) == (6, True)
    assert times(sqlite_topic) == [6, 7, 8, 9]


def test_a_topic_that_went_on_after_its_catalogue_was_lost_stays_readable(
    make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    change(topic, sa.delete(ledgers))
    change(topic, sa.delete(topics))
    again = make_topic()
    again.append(published([10]))
    again.roll()
    again.seal()
    assert again.repair().imported == ()
    assert times(again) == [10]


def test_a_catalogue_that_does_not_say_which_file_a_ledger_has_is_damaged(topic: Topic) -> None:
    change(topic, sa.update(ledgers).where(ledgers.c.ledger == 1).values(path=None))
    with pytest.raises(DamagedError, match="does not name the file of"):
        times(topic)


def test_a_ledger_whose_entries_were_lost_and_that_got_more_is_sealed_with_the_bounds_of_these(
    sqlite_topic: Topic,
) -> None:
    append_ledgers(sqlite_topic, [[[1], [2]]])
    change(sqlite_topic, sa.delete(entries))
    assert sqlite_topic.repair().lost == 2
    sqlite_topic.append(published([5]))
    sqlite_topic.roll()
    sqlite_topic.seal()
    assert sqlite_topic.verify(deep=True).is_whole
    assert times(sqlite_topic) == [5]
