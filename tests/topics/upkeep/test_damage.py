"""A flipped bit is found before the data is used, in any place and by any reader."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.topics.conftest import MakeTopic
from tests.topics.flows import append_ledgers, ledger_path, on_counting_files, pseudo_random, published

from waterclock.arrow import from_arrow
from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError, InvalidArgumentError, UnavailableError
from waterclock.message import Message, Position
from waterclock.topics.format.file_checksums import FileChecksums
from waterclock.topics.reading import footers
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store import sealed_file
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import compacting

FLOW = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]], [[12, 13]], [[14]]]


def reopened(topic: Topic) -> Topic:
    """Give the topic as a process sees it that has read nothing yet."""
    footers._own.cache_clear()
    return Topic.open(topic.storage.backend, topic.storage.files.root, topic.name)


def by_position(topic: Topic) -> list[Message]:
    return list(reopened(topic).read())


def by_slices(topic: Topic) -> list[Message]:
    slices = pickle.loads(pickle.dumps(reopened(topic).plan(max_messages=100)))  # noqa: S301  # our own
    return [message for part in slices for batch in read_slice(part) for message in from_arrow(batch)]


def by_subscription(topic: Topic) -> list[Message]:
    with reopened(topic).subscribe(os.urandom(4).hex()) as subscription:
        read: list[Message] = []
        while messages := subscription.read():
            read += messages
        return read


def write(topic: Topic, statement: Any) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(statement))


def column(topic: Topic, ledger: int, name: str) -> Any:
    with topic.storage.backend.snapshot() as connection:
        return connection.execute(sa.select(ledgers.c[name]).where(ledgers.c.ledger == ledger)).scalar_one()


def set_columns(topic: Topic, ledger: int, **values: Any) -> None:
    write(topic, sa.update(ledgers).where(ledgers.c.ledger == ledger).values(values))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@contextmanager
def flipped_file(path: Path, bit: int) -> Iterator[None]:
    data = path.read_bytes()
    path.write_bytes(flipped(data, bit))
    yield
    path.write_bytes(data)


def damage_row_group(topic: Topic, ledger: int, group: int = 0) -> None:
    """Flip a bit in the first page of a row group's last column but one: its payloads."""
    path = ledger_path(topic, ledger)
    row_group = sealed_file.pq.read_metadata(path).row_group(group)
    path.write_bytes(flipped(path.read_bytes(), 8 * (row_group.column(0).data_page_offset + 20)))


@pytest.fixture
def messages() -> list[Message]:
    source = pseudo_random(1)
    return [
        Message(
            f"press {i % 3}",
            "load",
            i,
            source.randbytes(9),
            publish_time=i,
            receive_time=i,
            headers={"k": str(i)} if i % 2 else None,
        )
        for i in range(300)
    ]


@pytest.fixture(params=["own", "shared"])
def sealed(
    make_sqlite_topic: MakeTopic,
    request: pytest.FixtureRequest,
    messages: list[Message],
    monkeypatch: pytest.MonkeyPatch,
) -> Topic:
    """A topic of one file: of one ledger or of two."""
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 70)
    monkeypatch.setattr(compacting, "SHARED_GROUP_MESSAGES", 70)
    topic = make_sqlite_topic()
    for first in range(0, 300, 100):
        topic.append(messages[first : first + 100])
        if first == 100 and request.param == "shared":
            topic.roll()
    topic.roll()
    topic.seal()
    if request.param == "shared":
        assert topic.compact() == 1
    return topic


@pytest.mark.parametrize(
    ("read", "flips"), [(by_position, 40), (by_slices, 20), pytest.param(by_position, 1_000, marks=pytest.mark.slow)]
)
def test_a_flipped_bit_of_a_file_never_changes_what_is_read(
    sealed: Topic, read: Callable[[Topic], list[Message]], flips: int
) -> None:
    whole = read(sealed)
    assert len(whole) == 300
    path = ledger_path(sealed, 0)
    source = pseudo_random(2)
    found = 0
    for bit in source.sample(range(8 * path.stat().st_size), flips):
        with flipped_file(path, bit):
            try:
                assert read(sealed) == whole, bit
            except DamagedError:
                found += 1
    assert found > flips // 4


@pytest.mark.parametrize("name", ["row_groups", "checksums"])
def test_any_flipped_bit_in_the_catalogues_facts_of_a_file_is_found(sealed: Topic, name: str) -> None:
    whole = by_position(sealed)
    data = column(sealed, 0, name)
    assert data is not None
    source = pseudo_random(3)
    coded = data.encode() if isinstance(data, str) else data
    for bit in source.sample(range(8 * len(coded)), 40):
        changed = flipped(coded, bit)
        try:
            set_columns(sealed, 0, **{name: changed.decode() if isinstance(data, str) else changed})
        except UnicodeDecodeError:
            continue
        with pytest.raises(DamagedError, match="ledger 0") as caught:
            by_position(sealed)
        assert caught.value.ledger == 0
    set_columns(sealed, 0, **{name: data})
    assert by_position(sealed) == whole


def test_row_groups_that_are_no_json_are_damage(sealed: Topic) -> None:
    checksums = FileChecksums.from_bytes(column(sealed, 0, "checksums"), "ledger 0")
    for text in ("", "{", "[[1]]", "[3]", "null"):
        set_columns(sealed, 0, row_groups=text, checksums=checksums.of_text(text).to_bytes())
        with pytest.raises(DamagedError, match=r"ledger 0|row groups"):
            by_position(sealed)


@pytest.mark.parametrize("name", ["row_groups", "checksums"])
def test_a_sealed_ledger_without_row_groups_or_checksums_is_damaged(sealed: Topic, name: str) -> None:
    set_columns(sealed, 0, **{name: None})
    with pytest.raises(DamagedError, match="lacks the row groups of"):
        by_position(sealed)


def test_only_the_columns_that_are_asked_for_are_checked(make_sqlite_topic: MakeTopic, messages: list[Message]) -> None:
    topic = make_sqlite_topic()
    topic.append(messages)
    topic.roll()
    topic.seal()
    path = ledger_path(topic, 0)
    last = sealed_file.pq.read_metadata(path).row_group(0).column(9)
    assert last.path_in_schema == "payload"
    path.write_bytes(flipped(path.read_bytes(), 8 * (last.data_page_offset + 60)))
    assert sum(batch.num_rows for batch in topic.read_arrow(columns=["source", "event_time"])) == 300
    with pytest.raises(DamagedError, match="payload"):
        list(topic.read_arrow(columns=["payload"]))


def test_a_row_group_is_one_request_even_if_it_is_checked(sqlite_topic: Topic, tmp_path: Path) -> None:
    topic, files = on_counting_files(sqlite_topic, tmp_path)
    topic.append(published(range(100)))
    topic.roll()
    topic.seal()
    files.reads.clear()
    assert len(list(topic.read())) == 100
    assert len(files.reads) == 1


def test_one_intact_copy_of_the_footer_is_enough(
    make_sqlite_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    whole = by_position(topic)
    copy, path = column(topic, 0, "footer"), ledger_path(topic, 0)
    set_columns(topic, 0, footer=flipped(copy, 100))
    assert by_position(topic) == whole
    assert "using the footer in the file" in caplog.text
    data = path.read_bytes()
    path.write_bytes(flipped(data, 8 * len(data) - 200))
    for read in (by_position, by_slices):
        with pytest.raises(DamagedError, match="footer"):
            read(topic)
    set_columns(topic, 0, footer=copy)
    assert by_position(topic) == whole
    assert by_slices(topic) == whole
    assert "using the catalogue's copy" in caplog.text


def test_the_footer_of_a_file_that_ledgers_share_is_kept_at_the_last_of_them(
    make_sqlite_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    topic.compact()
    assert [column(topic, ledger, "shared_footer") is None for ledger in range(4)] == [True, True, True, False]
    path = ledger_path(topic, 0)
    data = path.read_bytes()
    path.write_bytes(data[:-100] + bytes(100))
    topic.truncate(Position(2, 0, 0))
    assert [message.publish_time for message in by_position(topic)] == list(range(8, 15))
    assert by_slices(topic) == by_position(topic)
    assert "using the catalogue's copy" in caplog.text


def test_a_file_that_was_cut_short_is_damaged_and_one_that_is_gone_is_lost(make_sqlite_topic: MakeTopic) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    path = ledger_path(topic, 1)
    path.write_bytes(path.read_bytes()[:-50])
    for read in (by_position, by_slices):
        with pytest.raises(DamagedError, match=r"ledger|footer") as caught:
            read(topic)
        assert caught.value.ledger == 1
    path.unlink()
    for read in (by_position, by_slices):
        with pytest.raises(LostFileError, match="is missing"):
            read(topic)


def test_find_names_the_place_of_damage(make_sqlite_topic: MakeTopic) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    write(topic, sa.update(entries).where(entries.c.ledger == 1, entries.c.entry == 1).values(data=b"WCA1 and so on"))
    assert topic.find(4).position == Position(1, 0, 0)
    with pytest.raises(DamagedError) as caught:
        topic.find(6)
    assert (caught.value.ledger, caught.value.entry) == (1, 1)
    assert [message.publish_time for message in topic.read(since=6, until=9, on_damage="skip")] == [8]


@pytest.mark.parametrize("missing", ["row", "file"])
@pytest.mark.parametrize("ledger", [0, 1])
def test_a_reader_that_begins_at_a_time_does_not_skip_missing_messages_there(
    make_sqlite_topic: MakeTopic, missing: str, ledger: int
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    first = topic.find(4).position.ledger * ledger
    assert first == ledger
    time = 4 * ledger + 1
    whole = [message.publish_time for message in topic.read(since=time)]
    gone = {message.publish_time for message in topic.read() if message.position and message.position.ledger == ledger}
    if missing == "row":
        write(topic, sa.delete(ledgers).where(ledgers.c.ledger == ledger))
    else:
        ledger_path(topic, ledger).unlink()
    for read in (
        lambda: list(topic.read(since=time)),
        lambda: topic.subscribe("by time", start=time).read(),
        lambda: topic.subscribe("earliest").read(100) if ledger == 0 else list(topic.read(since=time)),
    ):
        with pytest.raises((DamagedError, LostFileError)):
            read()
    left = [time for time in whole if time not in gone]
    assert [message.publish_time for message in topic.read(since=time, on_damage="skip")] == left
    subscription = topic.subscribe("skipping", start=time, on_damage="skip")
    assert [message.publish_time for message in subscription.read(100)] == left
    subscription.commit()
    assert subscription.backlog.messages == 0


def test_a_hole_before_the_open_ledger_does_not_matter_to_a_time_that_is_later_than_all_of_it(
    make_sqlite_topic: MakeTopic,
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.roll()
    topic.append(published([100]))
    write(topic, sa.delete(ledgers).where(ledgers.c.ledger == topic.head.ledger - 1))
    assert [message.publish_time for message in topic.read(since=50)] == [100]
    assert list(topic.read(since=200)) == []


# Reading on behind it


@pytest.fixture(params=["entry", "row group", "file", "lost file", "row groups"])
def damaged(make_sqlite_topic: MakeTopic, request: pytest.FixtureRequest) -> tuple[Topic, set[int], str]:
    """A topic in which something cannot be read: which messages that are, and how it is named."""
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    if request.param == "entry":
        data = topic.storage.backend
        with data.snapshot() as connection:
            chosen = (entries.c.ledger == 1, entries.c.entry == 1)
            bytes_ = connection.execute(sa.select(entries.c.data).where(*chosen)).scalar_one()
        write(topic, sa.update(entries).where(*chosen).values(data=flipped(bytes_, 400)))
        return topic, {6, 7}, "entry 1 of ledger 1"
    topic.seal()
    if request.param == "row group":
        damage_row_group(topic, 1)
    elif request.param == "file":
        ledger_path(topic, 1).write_bytes(b"nothing")
    elif request.param == "lost file":
        ledger_path(topic, 1).unlink()
    else:
        set_columns(topic, 1, row_groups="[]")
    return topic, {4, 5, 6, 7}, "ledger"


def test_readers_stop_at_damage_or_skip_it_and_report_how_much(
    damaged: tuple[Topic, set[int], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic, gone, name = damaged
    left = [time for time in range(15) if time not in gone]
    with pytest.raises((DamagedError, LostFileError), match=name):
        list(topic.read())
    assert [message.publish_time for message in topic.read(on_damage="skip")] == left
    assert f"skips {len(gone)} messages" in caplog.text
    assert name in caplog.text
    batches = topic.read_arrow(columns=["publish_time", "source"], on_damage="skip")
    assert [time for batch in batches for time in batch["publish_time"].to_pylist()] == left


def test_messages_are_looked_up_around_damage_that_is_skipped(damaged: tuple[Topic, set[int], str]) -> None:
    topic, gone, name = damaged
    placed = {
        time: Position(ledger, entry, index)
        for ledger, counts in enumerate(FLOW)
        for entry, times in enumerate(counts)
        for index, time in enumerate(times)
    }
    places = [*placed.values()]
    found = topic.messages_at(places, pass_over=(DamagedError, LostFileError))
    assert found["publish_time"].to_pylist() == [None if time in gone else time for time in placed]
    with pytest.raises((DamagedError, LostFileError), match=name):
        topic.messages_at(places)


def test_a_subscription_returns_messages_before_damage_and_then_raises(damaged: tuple[Topic, set[int], str]) -> None:
    topic, gone, _ = damaged
    before = list(range(min(gone)))
    with topic.subscribe("strict") as subscription:
        assert [message.publish_time for message in subscription.read()] == before
        for _ in range(2):
            with pytest.raises((DamagedError, LostFileError)):
                subscription.read()
        subscription.commit()
        assert subscription.info.unread == 15 - len(before)
    assert topic.subscribe("strict").backlog.messages == 15 - len(before)


def test_a_subscription_that_skips_damage_still_counts_correctly(damaged: tuple[Topic, set[int], str]) -> None:
    topic, gone, _ = damaged
    left = [time for time in range(15) if time not in gone]
    for limit in (1, 2, 3, 1000):
        with topic.subscribe(f"lenient {limit}", on_damage="skip") as subscription:
            read: list[int | None] = []
            while messages := subscription.read(limit):
                read += [message.publish_time for message in messages]
                subscription.commit()
                behind = [time for time in range(15) if time > (read[-1] or 0)]
                assert subscription.info.unread in (len(behind), len([time for time in behind if time not in gone]))
            assert read == left
            assert subscription.backlog == (0, 0)
            assert subscription.position == topic.head


def test_damage_at_the_end_is_skipped_once(sqlite_topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic = sqlite_topic
    append_ledgers(topic, [[[0], [1]]])
    write(topic, sa.update(entries).where(entries.c.entry == 1).values(data=b"?"))
    with topic.subscribe("lenient", on_damage="skip") as subscription:
        assert [message.publish_time for message in subscription.read()] == [0]
        for _ in range(3):
            assert subscription.read() == []
        subscription.commit()
        assert subscription.backlog.messages == 0
        assert caplog.text.count("skips") == 1
        topic.append(published([2]))
        assert [message.publish_time for message in subscription.read()] == [2]


def test_a_subscription_with_nothing_readable_left_stands_at_the_end(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    append_ledgers(topic, [[[0], [1, 2]], [[3]]])
    write(topic, sa.update(entries).values(data=b"?"))
    with topic.subscribe("lenient", on_damage="skip") as subscription:
        assert subscription.read() == []
        subscription.commit()
        assert subscription.position == topic.head
        assert subscription.backlog == (0, 0)


def test_slices_skip_damage_too(damaged: tuple[Topic, set[int], str], caplog: pytest.LogCaptureFixture) -> None:
    from waterclock.topics.catalogue.damage_policy import Damage  # noqa: PLC0415

    topic, gone, name = damaged
    left = [time for time in range(15) if time not in gone]
    damage = Damage(topic.name, "skip")
    slices = topic.plan(on_damage="skip")
    batches = [batch for part in slices for batch in read_slice(part, ["publish_time", "source"], damage=damage)]
    found = [time for batch in batches for time in batch["publish_time"].to_pylist()]
    if topic.ledgers()[1].state == "sealed" and column(topic, 1, "row_groups") == "[]":
        # A ledger that is taken whole is planned and read without what the catalogue says of its row groups.
        assert found == list(range(15))
        return
    assert found == left
    assert name in caplog.text
    assert f"skips {len(gone)} messages" in caplog.text


@pytest.mark.parametrize("on_damage", ["ignore", "", None, True])
def test_on_damage_has_two_values(sqlite_topic: Topic, on_damage: Any) -> None:
    for call in (
        lambda: next(sqlite_topic.read(on_damage=on_damage)),
        lambda: next(sqlite_topic.read_arrow(on_damage=on_damage)),
        lambda: sqlite_topic.subscribe("s", on_damage=on_damage),
        lambda: sqlite_topic.plan(on_damage=on_damage),
    ):
        with pytest.raises(InvalidArgumentError, match="on_damage"):
            call()


# Upkeep


def test_sealing_continues_with_the_others_and_names_the_skipped_one(
    sqlite_topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = sqlite_topic
    append_ledgers(topic, FLOW)
    write(topic, sa.update(entries).where(entries.c.ledger == 1, entries.c.entry == 0).values(data=b"WCA1?"))
    with pytest.raises(DamagedError, match=r"ledger 1 of topic.*others sealed: 3.*waterclock topic verify") as caught:
        topic.seal()
    assert caught.value.ledger == 1
    assert [info.state for info in topic.ledgers()] == ["sealed", "closed", "sealed", "sealed", "open"]
    assert [record.levelno for record in caplog.records if "cannot seal ledger 1" in record.message] == [logging.ERROR]
    assert [message.publish_time for message in topic.read(on_damage="skip")] == [0, 1, 2, 3, *range(6, 15)]


@pytest.mark.parametrize("how", ["damaged", "lost"])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_compaction_leaves_a_bad_ledger_and_joins_the_others_around_it(
    make_sqlite_topic: MakeTopic, how: str, bad: int
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    path = ledger_path(topic, bad)
    damage_row_group(topic, bad) if how == "damaged" else path.unlink()
    data = path.read_bytes() if how == "damaged" else None
    with pytest.raises(
        DamagedError if how == "damaged" else LostFileError, match=rf"ledger {bad} of topic.*others compacted: ."
    ):
        topic.compact()
    assert ledger_path(topic, bad) == path
    assert data is None or path.read_bytes() == data
    expected = {0: [0, 1, 1, 1], 1: [0, 1, 2, 2], 3: [0, 0, 0, 1]}[bad]
    files = [info.file for info in topic.ledgers() if info.file]
    assert [files[:i].count(files[i]) == 0 for i in range(4)] == [
        i == 0 or expected[i] != expected[i - 1] for i in range(4)
    ]
    whole = [time for n, ledger in enumerate(FLOW) if n != bad for entry in ledger for time in entry]
    assert [message.publish_time for message in topic.read(on_damage="skip")] == whole


def test_a_file_stays_as_long_as_a_bad_ledger_needs_it(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waterclock.topics.upkeep import retention  # noqa: PLC0415

    monkeypatch.setattr(retention, "GRACE", -1)
    monkeypatch.setattr(compacting, "SHARED_GROUP_MESSAGES", 1)  # a row group for each ledger
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    topic.compact()
    topic.roll()
    topic.append(published([15]))
    topic.seal()
    shared = ledger_path(topic, 0)
    damage_row_group(topic, 1, group=1)
    with pytest.raises(DamagedError, match="ledger 1 "):
        topic.compact()
    topic.sweep()
    assert shared.exists()
    assert [message.publish_time for message in topic.read(on_damage="skip")] == [0, 1, 2, 3, *range(8, 16)]


@pytest.mark.parametrize("work", ["seal", "compact"])
def test_a_bit_that_flips_between_writing_and_reading_back_is_noticed(
    make_sqlite_topic: MakeTopic, messages: list[Message], monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    topic = make_sqlite_topic()
    for part in (messages[:150], messages[150:]):
        topic.append(part)
        topic.roll()
    if work == "compact":
        topic.seal()
    before, whole = topic.ledgers(), by_position(topic)
    fsync = os.fsync

    def damage(handle: int) -> None:
        fsync(handle)
        name = Path(f"/proc/self/fd/{handle}").readlink()
        if name.suffix == ".part":
            data = name.read_bytes()
            name.write_bytes(flipped(data, place * len(data) // 20 * 8))

    for place in range(20):  # noqa: B007  # `damage` looks at it
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", damage)
            with pytest.raises(UnavailableError, match="differs from the data"):
                getattr(topic, work)()
        assert topic.ledgers() == before
    assert by_position(topic) == whole
    assert getattr(topic, work)() == (2 if work == "seal" else 1)
    assert by_position(topic) == whole


def test_values_that_change_on_their_way_are_noticed_although_every_checksum_is_right(
    make_sqlite_topic: MakeTopic, messages: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_sqlite_topic()
    topic.append(messages)
    topic.roll()
    write_row_groups = sealed_file.write_row_groups

    def write_others(sink: Any, schema: Any, tables: Any, facts: Any = None) -> bytes:
        def changed() -> Iterator[Any]:
            for table in tables:
                at = table.schema.get_field_index("payload")
                yield table.set_column(at, table.schema.field(at), [[b"another"] * table.num_rows])

        return write_row_groups(sink, schema, changed(), facts)

    monkeypatch.setattr(sealed_file, "write_row_groups", write_others)
    with pytest.raises(UnavailableError, match="differs from the data"):
        topic.seal()
    assert [message.payload for message in topic.read()] == [message.payload for message in messages]
