"""A store of ledger files has an identity; without it nothing is read, written or deleted."""

from __future__ import annotations

import errno
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import sqlalchemy as sa
from pyarrow import fs
from tests.topics.conftest import MakeTopic, MovableClock
from tests.topics.flows import CountingFiles, append_ledgers, ledger_files_in, ledger_path, published

import waterclock as wc
from waterclock.database.schema.topic_catalogue import entries, files, ledgers, topics
from waterclock.errors import AlreadyExistsError, DamagedError, InvalidArgumentError, UnavailableError
from waterclock.message import Message
from waterclock.topics.catalogue import stores
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store.ledger_files import MARKER, LedgerFiles, StoreError, UnreachableStoreError
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import retention, sealing

DAY = 86_400_000_000_000
FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


def identity_in(root: Path) -> str:
    return json.loads((root / MARKER).read_text())["identity"]


def rows(topic: Topic, table: sa.Table) -> int:
    with topic.storage.backend.snapshot() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def change(topic: Topic, statement: Any) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(statement))


def ten_daily_ledgers(topic: Topic, clock: MovableClock) -> None:
    append_ledgers(topic, [[[day * DAY, day * DAY + 1]] for day in range(10)])
    topic.roll()
    clock.now = 10 * DAY
    assert topic.seal() == 10


@pytest.fixture
def daily(clocked_topic: Topic, clock: MovableClock) -> Topic:
    """Ten sealed ledgers of a day each, retention of 30 days; nothing is due."""
    ten_daily_ledgers(clocked_topic, clock)
    change(clocked_topic, sa.update(topics).values(retention=30 * DAY))
    clocked_topic.subscribe("s")
    return clocked_topic


WRONG_ROOTS: dict[str, Callable[[Path], object]] = {
    "renamed": lambda root: root.rename(root.with_name("elsewhere")),
    "unmounted": lambda root: (root.rename(root.with_name("elsewhere")), root.mkdir()),
    "another": lambda root: (
        root.rename(root.with_name("elsewhere")),
        root.mkdir(),
        (root / MARKER).write_text(json.dumps({"identity": "0" * 32, "format": 1})),
    ),
}


@pytest.mark.parametrize("fault", WRONG_ROOTS)
def test_no_deletion_and_no_write_goes_through_a_store_that_is_not_the_topics(
    daily: Topic, clock: MovableClock, tmp_path: Path, fault: str
) -> None:
    root = tmp_path / "ledgers"
    before = identity_in(root)
    WRONG_ROOTS[fault](root)
    assert daily.seal() == 0
    assert daily.expire("20d") == (wc.Position(0, 0, 0), 0, 0)
    assert daily.truncate(-DAY) == 0
    assert len(daily.ledgers()) == 11
    # Also where something is due, an absent store is a fault to report.
    clock.now = 35 * DAY
    for deleting in (daily.seal, daily.enforce_retention, lambda: daily.expire("1d"), lambda: daily.truncate(5 * DAY)):
        with pytest.raises(StoreError, match=before) as refused:
            deleting()
        assert str(root) in str(refused.value)
    with pytest.raises(StoreError, match=before):
        list(daily.read())
    with pytest.raises(StoreError, match=before):
        daily.compact()
    assert len(daily.ledgers()) == 11
    daily.append(published([clock.now]))
    daily.roll()
    change(daily, sa.update(topics).values(retention=None))
    with pytest.raises(StoreError, match=before):
        daily.seal()
    assert set(tmp_path.rglob("*.parquet*")) == ledger_files_in(tmp_path / "elsewhere")
    assert root.exists() == (fault != "renamed")
    with pytest.raises(StoreError, match=before) as refused:
        Topic.open(daily.storage.backend, str(tmp_path / "wrong"), daily.name)
    assert str(root) in str(refused.value)
    assert str(tmp_path / "wrong") in str(refused.value)
    assert not (tmp_path / "wrong").exists()


def test_after_a_store_is_back_all_continues(daily: Topic, clock: MovableClock, tmp_path: Path) -> None:
    (tmp_path / "ledgers").rename(tmp_path / "elsewhere")
    clock.now = 35 * DAY
    with pytest.raises(StoreError):
        daily.truncate(5 * DAY)
    (tmp_path / "elsewhere").rename(tmp_path / "ledgers")
    assert daily.truncate(5 * DAY, force=True) == 5
    assert len(times(daily)) == 10


def test_a_relative_root_and_a_home_mean_the_same_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "other").mkdir()
    for name, given, meant in (
        ("relative", "store", tmp_path / "store"),
        ("home", "~/store", tmp_path / "home" / "store"),
        ("url", f"file://{tmp_path}/a%20b", tmp_path / "a b"),
        ("up", "other/../up", tmp_path / "up"),
    ):
        monkeypatch.chdir(tmp_path)
        with wc.connect(f"sqlite:///{tmp_path}/{name}.db", given) as database:
            topic = database.create_topic("t")
            assert identity_in(meant) == topic.storage.files.identity
            topic.append(published([1]))
            topic.roll()
            topic.seal()
            monkeypatch.chdir(tmp_path / "other")
            assert topic.files()[0].startswith(f"{meant}/t-1/")
            assert times(topic) == [1]
            assert times(wc.connect(f"sqlite:///{tmp_path}/{name}.db").topic("t")) == [1]


def test_a_store_in_use_that_is_absent_is_not_made_a_second_time(tmp_path: Path) -> None:
    root = tmp_path / "f.db-ledgers"
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("t")
        root.rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match=r"waterclock-store.json is missing"):
            database.create_topic("u")
        with pytest.raises(StoreError, match=r"waterclock-store.json is missing"):
            database.create_topic("t", exist_ok=True)
        assert not root.exists()
        (tmp_path / "elsewhere").rename(root)
        database.create_topic("u")
        database.create_topic("t", exist_ok=True)
        with pytest.raises(AlreadyExistsError):
            database.create_topic("t")


def test_a_database_that_was_moved_with_the_folder_next_to_it_finds_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with wc.connect(f"sqlite:///{tmp_path}/old/f.db") as database:
        topic = database.create_topic("t")
        append_ledgers(topic, FLOW)
        topic.seal()
    (tmp_path / "old").rename(tmp_path / "new")
    with wc.connect(f"sqlite:///{tmp_path}/new/f.db") as database:
        assert times(database.topic("t")) == list(range(9))


def test_databases_share_a_store_under_one_identity(tmp_path: Path) -> None:
    opened = [wc.connect(f"sqlite:///{tmp_path}/{name}.db", tmp_path / "shared") for name in "ab"]
    made = [database.create_topic("t") for database in opened]
    assert {topic.storage.files.identity for topic in made} == {identity_in(tmp_path / "shared")}
    for topic in made:
        append_ledgers(topic, FLOW)
        topic.seal()
    made[0].remove()
    assert times(made[1]) == list(range(9))
    for database in opened:
        database.close()


def test_concurrent_creators_of_a_store_agree_on_one_identity(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    made: list[str] = []

    def make(number: int) -> None:
        store = LedgerFiles(str(tmp_path / "store"))
        barrier.wait()
        made.append(store.write_marker(f"{number:032x}"))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(made) == {identity_in(tmp_path / "store")}
    assert len(made) == 8
    assert [path.name for path in (tmp_path / "store").iterdir()] == [MARKER]


def test_a_creator_on_an_object_store_adopts_the_final_marker(tmp_path: Path) -> None:
    class Race(CountingFiles):
        def open_output_stream(self, path: str, metadata: object) -> Any:
            stream = super().open_output_stream(path, metadata)
            stream.write(json.dumps({"identity": "f" * 32, "format": 1}).encode())
            stream.close()
            return super().open_output_stream(f"{path}.loser", metadata)

    store = LedgerFiles("store", fs.PyFileSystem(Race(tmp_path)))
    assert store.write_marker("0" * 32) == "f" * 32


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"identity": 7, "format": 1}', '{"identity": "../x", "format": 1}']
)
def test_a_marker_that_is_damaged_is_named(sqlite_topic: Topic, tmp_path: Path, text: str) -> None:
    (tmp_path / "ledgers" / MARKER).write_text(text)
    with pytest.raises(StoreError, match=rf"ledgers/{MARKER} is corrupt"):
        Topic.open(sqlite_topic.storage.backend, None, sqlite_topic.name)


def test_a_marker_of_a_newer_version_is_named(sqlite_topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "ledgers" / MARKER).write_text('{"identity": "x", "format": 2}')
    with pytest.raises(StoreError, match="Update waterclock"):
        Topic.open(sqlite_topic.storage.backend, None, sqlite_topic.name)


class Unreachable(CountingFiles):
    """A store that can be switched off."""

    is_down = False

    def open_input_file(self, path: str) -> Any:
        if self.is_down:
            raise OSError("AWS Error NETWORK_CONNECTION")
        return super().open_input_file(path)

    def delete_file(self, path: str) -> None:
        if self.is_down:
            raise OSError("AWS Error NETWORK_CONNECTION")
        super().delete_file(path)


def test_producers_continue_while_the_store_cannot_be_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = Unreachable(tmp_path)
    place = {"ledgers": "bucket", "filesystem": fs.PyFileSystem(handler)}
    with wc.connect(f"sqlite:///{tmp_path}/f.db", **place) as database:
        topic = database.create_topic("t")
        append_ledgers(topic, FLOW)
        topic.seal()
        stores._found.clear()
        handler.is_down = True
        again = database.topic("t")
        again.append(published([9]))
        with pytest.raises(UnavailableError, match="NETWORK_CONNECTION"):
            times(again)
        assert "Appends continue" in caplog.text
        handler.is_down = False
        assert times(again) == [*range(9), 9]


def test_sealing_says_why_a_store_that_is_down_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Unreachable(tmp_path)
    with wc.connect(f"sqlite:///{tmp_path}/f.db", "bucket", fs.PyFileSystem(handler)) as database:
        topic = database.create_topic("t")
        append_ledgers(topic, FLOW)
        write = sealing.write_ledger

        def go_down(*arguments: Any) -> Any:
            write(*arguments)
            handler.is_down = True
            raise OSError("AWS Error NETWORK_CONNECTION: could not connect")

        monkeypatch.setattr(sealing, "write_ledger", go_down)
        with pytest.raises(UnavailableError, match=r"cannot write bucket/t-1/.*could not connect$"):
            topic.seal()
        assert "the next sweep will remove" in caplog.text
        assert rows(topic, files) == 1  # the catalogue forgets no file that it could not delete
        change(topic, sa.update(files).values(until=0))
        assert topic.sweep() == 0
        assert rows(topic, files) == 1
        monkeypatch.undo()
        handler.is_down = False
        change(topic, sa.update(files).values(until=0))
        assert topic.sweep() == 1
        assert topic.seal() == 2


@pytest.mark.parametrize(("number", "asked"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_only_a_full_disk_is_asked_for(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch, number: int, asked: bool
) -> None:
    append_ledgers(sqlite_topic, FLOW)

    def fail(*_: object) -> None:
        raise OSError(number, "it is said here")

    monkeypatch.setattr(sealing, "write_ledger", fail)
    with pytest.raises(UnavailableError, match="it is said here") as refused:
        sqlite_topic.seal()
    assert ("is the disk full?" in str(refused.value)) == asked


def test_a_folder_that_is_unmounted_while_a_file_is_written_gets_no_ledger(
    sqlite_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_ledgers(sqlite_topic, FLOW)
    write = sealing.write_ledger

    def unmount(*arguments: Any) -> Any:
        written = write(*arguments)
        (tmp_path / "ledgers").rename(tmp_path / "elsewhere")
        for part in (tmp_path / "elsewhere").rglob("*.part"):
            (tmp_path / "ledgers" / part.parent.name).mkdir(parents=True)
            part.rename(tmp_path / "ledgers" / part.parent.name / part.name)
        return written

    monkeypatch.setattr(sealing, "write_ledger", unmount)
    with pytest.raises(StoreError, match=r"waterclock-store.json is missing"):
        sqlite_topic.seal()
    assert {info.state for info in sqlite_topic.ledgers()} == {"closed", "open"}


@pytest.mark.one_database
def test_a_ledger_that_cannot_be_measured_stays_and_stops_what_follows_it(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    ten_daily_ledgers(clocked_topic, clock)
    bounds = {column.name: None for column in ledgers.c if column.name.startswith(("begin_", "end_", "peak_"))}
    change(clocked_topic, sa.update(ledgers).where(ledgers.c.ledger.in_((2, 4))).values(**bounds))
    ledger_path(clocked_topic, 4).unlink()
    change(clocked_topic, sa.update(ledgers).where(ledgers.c.ledger == 4).values(row_groups=None, checksums=None))
    assert clocked_topic.truncate(8 * DAY) == 4  # ledger 2 was measured
    assert [info.ledger for info in clocked_topic.ledgers()] == [*range(4, 11)]
    change(clocked_topic, sa.update(topics).values(retention=1))
    clocked_topic.append(published([1]))
    clocked_topic.roll()
    assert clocked_topic.seal() == 1  # and it does not keep others from being sealed
    # Once a repair has recorded the loss, its messages are known to be older than the closing of their ledger.
    lost = {"state": "lost", "path": None, "closed_at": 5 * DAY}
    change(clocked_topic, sa.update(ledgers).where(ledgers.c.ledger == 4).values(**lost))
    assert clocked_topic.truncate(5 * DAY) == 0
    assert clocked_topic.truncate(5 * DAY + 1) == 1


@pytest.mark.one_database
def test_expiry_leaves_a_subscription_where_the_rest_of_its_ledger_cannot_be_read(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    append_ledgers(clocked_topic, [[[10, 500]], [[20], [30, 510]]])
    clocked_topic.roll()
    clocked_topic.seal()
    subscription = clocked_topic.subscribe("s", start=wc.Position(1, 1, 0))
    ledger_path(clocked_topic, 1).unlink()
    clock.now = 605
    assert subscription.expire(100) == (wc.Position(1, 1, 0), 0, 0)


def test_a_hundred_ledgers_with_rows_and_files_are_deleted_by_range(
    make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LEDGERS_AT_ONCE", 7)
    topic = make_topic()
    append_ledgers(topic, [[[number], [number]] for number in range(20)])
    topic.seal()
    for number in range(20, 40):
        topic.roll()
        topic.append(published([number]))
    assert topic.truncate(35) == 35
    assert times(topic) == [35, 36, 37, 38, 39]
    assert rows(topic, files) == 19
    assert rows(topic, entries) == 5


@pytest.mark.parametrize("kind", ["fsspec-memory", "fsspec-local", "pyarrow-local", "pyarrow-subtree"])
def test_any_filesystem_of_pyarrow_or_fsspec_holds_ledgers(kind: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    filesystem, root = {
        "fsspec-memory": (fsspec.filesystem("memory"), f"/memory-{tmp_path.name}/store"),
        "fsspec-local": (fsspec.filesystem("file"), str(tmp_path / "store")),
        "pyarrow-local": (fs.LocalFileSystem(), str(tmp_path / "store")),
        "pyarrow-subtree": (fs.SubTreeFileSystem(str(tmp_path / "below"), fs.LocalFileSystem()), "store"),
    }[kind]
    url = f"sqlite:///{tmp_path}/f.db"
    with wc.connect(url, root, filesystem) as database:
        topic = database.create_topic("t")
        append_ledgers(topic, FLOW)
        topic.seal()
        assert topic.compact() == 1
        assert topic.find(4).position == wc.Position(1, 0, 1)
        slices = pickle.loads(pickle.dumps(topic.plan()))  # noqa: S301  # our own
        assert sum(batch.num_rows for part in slices for batch in read_slice(part)) == 9
    with wc.connect(url) as database:
        if kind.endswith("local"):
            assert times(database.topic("t")) == list(range(9))
        else:
            with pytest.raises(InvalidArgumentError, match=r"cannot open the files of .* without ledgers="):
                database.topic("t")
    with wc.connect(url, root, filesystem) as database:
        database.topic("t").remove()


def test_a_url_that_fsspec_knows_holds_ledgers(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db", f"memory://{tmp_path.name}/store") as database:
        topic = database.create_topic("t")
        append_ledgers(topic, FLOW)
        topic.seal()
        assert topic.files()[0].startswith(f"memory://{tmp_path.name}/store/t-1/")
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        assert times(database.topic("t")) == list(range(9))


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("nonsense://bucket/x", "must be a folder or a URL"),
        ("s3://bucket/x?nonsense=1", "Unexpected query parameter"),
        ("s3://key:sec/ret@bucket/x", "must be a folder or a URL"),
        ("sftp://user:password@host/x", "a library is not installed.*paramiko"),
        ("dropbox://x", "a library is not installed"),
    ],
)
def test_a_root_that_cannot_be_opened_is_one_clear_line(tmp_path: Path, root: str, said: str) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db", root) as database:
        with pytest.raises(InvalidArgumentError, match=said) as refused:
            database.create_topic("t")
        assert "\n" not in str(refused.value)
        assert not any(secret in str(refused.value) for secret in ("sec/ret", "password", "key:"))


def test_something_that_is_not_a_filesystem_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="got a str"):
        wc.connect(f"sqlite:///{tmp_path}/f.db", "x", "y")
    with pytest.raises(InvalidArgumentError, match="Pass the path of the ledger files"):
        wc.connect(f"sqlite:///{tmp_path}/f.db", filesystem=fs.LocalFileSystem())


def test_a_database_on_a_server_needs_no_root_but_for_new_topics(database_url: str, tmp_path: Path) -> None:
    with wc.connect(database_url) as database:
        if not database_url.startswith("sqlite"):
            with pytest.raises(InvalidArgumentError, match="ledgers is missing"):
                database.create_topic("t")
        database.create_table("orders").put(b"x")
        with wc.connect(database_url, tmp_path / "store") as other:
            append_ledgers(other.create_topic("t"), FLOW)
        topic = database.topic("t")
        assert topic.seal() == 2
        assert times(topic) == list(range(9))
        assert database.create_topic("t", exist_ok=True).files() == topic.files()


def test_files_are_named_once_each(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, FLOW)
    assert sqlite_topic.files() == []
    sqlite_topic.seal()
    assert sqlite_topic.files() == [str(ledger_path(sqlite_topic, number)) for number in (0, 1)]
    sqlite_topic.compact()
    assert sqlite_topic.files() == [str(ledger_path(sqlite_topic, 0))]


def test_a_store_that_does_not_answer_is_distinguished_from_one_that_is_not_there(tmp_path: Path) -> None:
    handler = Unreachable(tmp_path)
    store = LedgerFiles("bucket", fs.PyFileSystem(handler), identity="0" * 32)
    with pytest.raises(StoreError, match=r"waterclock-store.json is missing"):
        store.check()
    handler.is_down = True
    with pytest.raises(UnreachableStoreError, match="cannot reach"):
        store.check()


def test_a_message_of_an_earlier_time_is_kept_by_a_later_one_in_its_ledger(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    clocked_topic.append([Message("a", "b", 0, publish_time=1, receive_time=1)])
    clocked_topic.append([Message("a", "b", 0, publish_time=500, receive_time=500)])
    clocked_topic.roll()
    change(clocked_topic, sa.update(topics).values(retention=100))
    clock.now = 600
    assert clocked_topic.enforce_retention() == 0
    clock.now = 601
    assert clocked_topic.enforce_retention() == 1


PATHS_OUTSIDE = [
    "../victim.parquet",
    "topic-1/../../victim.parquet",
    "/victim.parquet",
    "topic-1//victim.parquet",
    "./victim.parquet",
    "..\\victim.parquet",
    "victim\0.parquet",
    "",
    MARKER,
]


@pytest.mark.parametrize("path", PATHS_OUTSIDE)
def test_a_path_outside_the_store_is_refused_before_any_use(tmp_path: Path, path: str) -> None:
    store = LedgerFiles(str(tmp_path / "store"))
    store.write_marker("0" * 32)
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"not ours")
    uses: list[Callable[[], object]] = [
        lambda: store.create(path).__enter__(),
        lambda: store.open(path),
        lambda: store.read_range(path, 8, 0, 8),
        lambda: store.size(path),
        lambda: store.size_if_there(path),
        lambda: store.delete(path),
    ]
    for use in uses:
        with pytest.raises(DamagedError, match="must lie inside the store"):
            use()
    assert victim.read_bytes() == b"not ours"
    assert store.marker() == "0" * 32


def test_a_path_that_leaves_the_store_through_a_symlink_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "victim.parquet"
    victim.write_bytes(b"not ours")
    store = LedgerFiles(str(tmp_path / "store"))
    store.write_marker("0" * 32)
    (tmp_path / "store" / "link").symlink_to(outside)
    (tmp_path / "store" / "file.parquet").symlink_to(victim)
    (tmp_path / "store-other").symlink_to(outside)  # its name only begins like that of the store
    (tmp_path / "store" / "beside").symlink_to(tmp_path / "store-other")
    for path in ("link/victim.parquet", "beside/victim.parquet", "file.parquet", "link/new.parquet"):
        uses: list[Callable[[], object]] = [
            lambda path=path: store.create(path).__enter__(),
            lambda path=path: store.open(path),
            lambda path=path: store.size_if_there(path),
            lambda path=path: store.delete(path),
        ]
        for use in uses:
            with pytest.raises(DamagedError, match="must lie inside the store"):
                use()
    assert victim.read_bytes() == b"not ours"
    assert list(outside.iterdir()) == [victim]


def test_the_root_of_a_store_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = LedgerFiles(str(tmp_path / "root"))
    store.write_marker("0" * 32)
    with store.create("t-1/x.parquet") as sink:
        sink.write(b"abc")
    assert store.size("t-1/x.parquet") == 3
    assert list(store.listing("t-1")) == [("t-1/x.parquet", 3)]
    store.delete("t-1/x.parquet")
    assert list(store.listing("t-1")) == []


def test_listing_a_store_follows_no_symlinks(tmp_path: Path) -> None:
    store = LedgerFiles(str(tmp_path))
    store.write_marker("0" * 32)
    folder = tmp_path / "t-1"
    folder.mkdir()
    (folder / "x.parquet").write_bytes(b"abc")
    (folder / "again").symlink_to(tmp_path)
    (folder / "around").symlink_to(tmp_path)
    (folder / "nowhere.parquet").symlink_to(tmp_path / "missing")
    assert sorted(store.listing()) == [("t-1/x.parquet", 3), (MARKER, len((tmp_path / MARKER).read_bytes()))]
    assert list(store.listing("no-folder")) == []


def test_a_path_outside_the_store_deletes_nothing_and_stops_nothing_else(sqlite_topic: Topic, tmp_path: Path) -> None:
    append_ledgers(sqlite_topic, FLOW)
    assert sqlite_topic.seal() == 2
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"not ours")
    name = "../victim.parquet"
    backend = sqlite_topic.storage.backend
    gone = {"topic_id": sqlite_topic.storage.topic_id, "ledger": 0, "state": "deleted", "owner": "", "until": 0}
    backend.transact(lambda connection: connection.execute(sa.insert(files), {"path": name, **gone}))
    sqlite_topic.roll()
    assert sqlite_topic.seal() == 1  # sweeps first
    backend.transact(
        lambda connection: connection.execute(sa.update(ledgers).where(ledgers.c.ledger == 0).values(path=name))
    )
    with pytest.raises(DamagedError, match=r"'\.\./victim\.parquet' in the catalogue must lie inside the store"):
        list(sqlite_topic.read())
    assert {fault.kind for fault in sqlite_topic.verify().faults if fault.ledger == 0} == {"damaged"}
    assert victim.read_bytes() == b"not ours"
