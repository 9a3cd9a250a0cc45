from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyarrow import fs
from tests.support.killed import Killed, killing
from tests.topics.conftest import MovableClock
from tests.topics.flows import CountingFiles, append_ledgers, ledger_files_in, ledger_path, published

import waterclock as wc
from waterclock.database.schema.topic_catalogue import files, stores
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.message import Position
from waterclock.topics.catalogue.ledgers import sealed_paths
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store.ledger_files import MARKER, LedgerFiles, LostFileError, StoreError
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import relocating, sealing

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]
HOUR = 3_600_000_000_000


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


def again(topic: Topic) -> Topic:
    return Topic.open(topic.storage.backend, None, topic.name)


def left(topic: Topic) -> list[str]:
    with topic.storage.backend.snapshot() as connection:
        return list(connection.execute(sa.select(files.c.path)).scalars())


@pytest.fixture
def sealed(clocked_topic: Topic) -> Topic:
    append_ledgers(clocked_topic, FLOW)
    clocked_topic.seal()
    return clocked_topic


def test_a_renamed_store_is_recorded_and_its_other_topics_move_along(sealed: Topic, tmp_path: Path) -> None:
    backend = sealed.storage.backend
    other = Topic.create(
        backend, str(tmp_path / "ledgers"), "other", TopicOptions.check(roll_after=None, roll_size=1, retention=None)
    )
    append_ledgers(other, FLOW)
    other.seal()
    (tmp_path / "ledgers").rename(tmp_path / "new")
    with pytest.raises(StoreError):
        again(sealed)
    seen: list[tuple[int, int]] = []
    moved = sealed.relocate(tmp_path / "new", progress=lambda done, total: seen.append((done, total)))
    assert moved == (str(tmp_path / "new"), 0, 2)
    assert seen == [(1, 2), (2, 2)]
    for topic in (sealed, again(sealed), again(other)):
        assert times(topic) == list(range(9))
        assert topic.files()[0].startswith(str(tmp_path / "new"))
    sealed.roll()
    assert sealed.seal() == 1


@pytest.mark.parametrize("fault", ["missing", "short"])
def test_a_store_that_lacks_a_file_is_not_recorded(sealed: Topic, tmp_path: Path, fault: str) -> None:
    (tmp_path / "ledgers").rename(tmp_path / "new")
    path = tmp_path / "new" / ledger_path(sealed, 1).relative_to(tmp_path / "ledgers")
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LostFileError, match=path.name):
        sealed.relocate(tmp_path / "new")
    with pytest.raises(StoreError):
        again(sealed)


@pytest.mark.one_database
def test_a_copy_of_a_store_is_not_taken_for_it_while_the_original_is_there(sealed: Topic, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "ledgers", tmp_path / "copy")
    with pytest.raises(InvalidArgumentError, match="must not hold a copy of the store"):
        sealed.relocate(tmp_path / "copy")
    assert len(list((tmp_path / "copy").iterdir())) == 2  # nothing of ours was left there
    (tmp_path / "link").symlink_to(tmp_path / "ledgers")
    assert sealed.relocate(tmp_path / "link").found == 2  # the same place by another name
    (tmp_path / "copy" / MARKER).unlink()
    assert sealed.relocate(tmp_path / "copy") == (str(tmp_path / "copy"), 0, 2)


def test_files_are_copied_and_the_former_ones_go_after_their_grace_time(
    sealed: Topic, tmp_path: Path, clock: MovableClock
) -> None:
    stale, plan = again(sealed), sealed.plan()
    old = ledger_files_in(tmp_path / "ledgers")
    assert sealed.relocate(tmp_path / "new") == (str(tmp_path / "new"), 2, 0)
    assert {path.name for path in ledger_files_in(tmp_path / "new")} == {path.name for path in old}
    assert times(sealed) == times(again(sealed)) == times(stale) == list(range(9))
    assert sum(batch.num_rows for part in plan for batch in read_slice(part)) == 9
    assert sealed.compact() == 1  # the new files may go under the names that the former ones have
    clock.now += HOUR + 1
    assert again(sealed).sweep() == 4
    assert ledger_files_in(tmp_path / "ledgers") == set()
    assert len(ledger_files_in(tmp_path / "new")) == 1
    assert left(sealed) == []
    for read in (lambda: times(stale), lambda: [*read_slice(plan[0])], lambda: stale.find(4)):
        with pytest.raises(UnavailableError, match=r"was relocated from .*ledgers to .*new"):
            read()


def test_a_sealer_with_the_former_store_in_hand_loses_nothing(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = again(sealed)
    sealed.roll()
    commit = sealing._commit

    def relocate_first(*arguments: Any) -> None:
        sealed.relocate(tmp_path / "new")
        commit(*arguments)

    monkeypatch.setattr(sealing, "_commit", relocate_first)
    with pytest.raises(StoreError, match="Open the topic again"):
        stale.seal()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="Open the topic again"):
        stale.seal()
    assert len(ledger_files_in(tmp_path / "ledgers")) == 2
    assert sealed.seal() == 1
    assert times(sealed) == list(range(9))


def test_ledgers_sealed_while_files_are_copied_are_copied_too(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(sealed)
    other.roll()
    copy = relocating._copy

    def seal_first(*arguments: Any) -> int:
        other.seal()
        return copy(*arguments)

    monkeypatch.setattr(relocating, "_copy", seal_first)
    monkeypatch.setattr(relocating, "AT_ONCE", 1)
    assert sealed.relocate(tmp_path / "new").copied == 3
    assert times(sealed) == list(range(9))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["_take_back", "_record_copy", "_copy", "_turn_over"])
def test_a_relocation_killed_at_any_step_loses_nothing_and_continues(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, moment: str
) -> None:
    work: Callable[..., Any] = getattr(relocating, step)

    def killed(*arguments: Any) -> Any:
        if moment == "after":
            work(*arguments)
        raise Killed

    monkeypatch.setattr(relocating, step, killed)
    with pytest.raises(Killed):
        sealed.relocate(tmp_path / "new")
    monkeypatch.undo()
    assert times(sealed) == times(again(sealed)) == list(range(9))
    again(sealed).relocate(tmp_path / "new")
    assert times(again(sealed)) == list(range(9))
    assert again(sealed).files()[0].startswith(str(tmp_path / "new"))
    assert left(again(sealed)) == former_rows(sealed)


def former_rows(topic: Topic) -> list[str]:
    """Return the rows that a relocation leaves for the sweep of the store that ``topic`` still has open."""
    return sorted(f"{topic.storage.files.identity}:{path}" for path in sealed_paths(topic.storage))


@pytest.mark.parametrize("step", ["_record_copy", "_copy", "_turn_over"])
def test_files_of_a_killed_relocation_are_swept(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MovableClock, step: str
) -> None:
    monkeypatch.setattr(relocating, step, killing(getattr(relocating, step), "before" if step != "_copy" else "after"))
    with pytest.raises(Killed):
        sealed.relocate(tmp_path / "new")
    monkeypatch.undo()
    for path in ledger_files_in(tmp_path / "new"):
        path.with_name(f"{path.name}.part").write_bytes(b"half of it")
    copies = ledger_files_in(tmp_path / "new")
    assert bool(copies) == (step != "_record_copy")
    sealed.sweep()
    assert ledger_files_in(tmp_path / "new") == copies  # within its lease
    clock.now += HOUR + 1
    sealed.sweep()
    assert ledger_files_in(tmp_path / "new") == set()
    assert left(sealed) == []
    assert times(again(sealed)) == list(range(9))


@pytest.mark.one_database
def test_a_copy_that_is_cut_off_is_swept(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    @contextmanager
    def create(store: LedgerFiles, path: str) -> Generator[Any]:
        part = Path(f"{store.name(path)}.part")
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"half of it")
        raise Killed
        yield

    monkeypatch.setattr(LedgerFiles, "create", create)
    with pytest.raises(Killed):
        sealed.relocate(tmp_path / "new")
    monkeypatch.undo()
    assert len(ledger_files_in(tmp_path / "new")) > 0
    clock.now += HOUR + 1
    assert sealed.sweep() > 0
    assert ledger_files_in(tmp_path / "new") == set()


@pytest.mark.one_database
def test_a_relocation_that_fails_keeps_its_copies_for_the_next_one(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    def fail(*_: object) -> bool:
        raise UnavailableError("the database is away")

    monkeypatch.setattr(relocating, "_turn_over", fail)
    with pytest.raises(UnavailableError, match="is away"):
        sealed.relocate(tmp_path / "new")
    monkeypatch.undo()
    sealed.sweep()
    assert sealed.relocate(tmp_path / "new") == (str(tmp_path / "new"), 0, 2)
    clock.now += HOUR + 1
    sealed.sweep()
    assert times(sealed) == list(range(9))
    assert left(sealed) == []


@pytest.mark.one_database
def test_a_copy_that_was_there_before_is_not_removed_when_the_relocation_fails(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    shutil.copytree(tmp_path / "ledgers", tmp_path / "copy")
    (tmp_path / "copy" / MARKER).unlink()
    monkeypatch.setattr(relocating, "_turn_over", killing(relocating._turn_over, "before"))
    with pytest.raises(Killed):
        sealed.relocate(tmp_path / "copy")
    clock.now += HOUR + 1
    sealed.sweep()
    assert len(ledger_files_in(tmp_path / "copy")) == 2


@pytest.mark.parametrize("rival", ["sweep", "relocation"])
def test_a_relocation_that_lost_its_copies_does_not_turn_the_topic_over(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MovableClock, rival: str
) -> None:
    other = again(sealed)
    turn_over = relocating._turn_over

    def lose_copies(done: int, total: int) -> None:
        if done < total:
            return
        if rival == "sweep":
            clock.now += HOUR + 1
            assert other.sweep() == 2
        else:
            with monkeypatch.context() as patch:
                patch.setattr(relocating, "_turn_over", killing(turn_over, "before"))
                with pytest.raises(Killed):
                    other.relocate(tmp_path / "new")

    with pytest.raises(UnavailableError, match="another process is copying or removing its files there"):
        sealed.relocate(tmp_path / "new", progress=lose_copies)
    assert again(sealed).files()[0].startswith(str(tmp_path / "ledgers"))
    assert times(again(sealed)) == list(range(9))
    assert again(sealed).relocate(tmp_path / "new").root == str(tmp_path / "new")
    assert times(again(sealed)) == list(range(9))


def test_a_copy_that_is_written_while_its_topic_is_removed_is_deleted(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = again(sealed)
    create = LedgerFiles.create

    @contextmanager
    def create_late(store: LedgerFiles, path: str) -> Generator[Any]:  # as an object store does
        sink = io.BytesIO()
        yield sink
        other.remove()
        with create(store, path) as late:
            late.write(sink.getvalue())

    monkeypatch.setattr(LedgerFiles, "create", create_late)
    monkeypatch.setattr(relocating, "AT_ONCE", 1)
    with pytest.raises(NotFoundError, match="was removed"):
        sealed.relocate(tmp_path / "new")
    assert ledger_files_in(tmp_path / "new") == set()


@pytest.mark.parametrize("work", ["compact", "truncate"])
def test_files_that_are_gone_when_a_topic_moves_back_at_once_are_swept(
    sealed: Topic, tmp_path: Path, clock: MovableClock, work: str
) -> None:
    sealed.relocate(tmp_path / "new")
    if work == "compact":
        assert sealed.compact() == 1
    else:
        assert sealed.truncate(Position(1, 0, 0)) == 1
    sealed.relocate(tmp_path / "ledgers")
    kept = times(sealed)
    clock.now += HOUR + 1
    sealed.sweep()
    assert {str(path) for path in ledger_files_in(tmp_path / "ledgers")} == set(sealed.files())
    assert ledger_files_in(tmp_path / "new") == set()
    assert left(sealed) == []
    assert times(sealed) == kept


def test_a_sweep_with_the_former_store_open_forgets_no_file_of_the_new_one(
    sealed: Topic, tmp_path: Path, clock: MovableClock
) -> None:
    stale = again(sealed)
    sealed.relocate(tmp_path / "new")
    sealed.compact()
    clock.now += HOUR + 1
    assert stale.sweep() == 2  # those that were left in the former store
    assert sealed.sweep() == 2
    assert {str(path) for path in ledger_files_in(tmp_path / "new")} == set(sealed.files())


@pytest.mark.one_database
def test_the_probe_of_a_killed_relocation_is_swept(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    shutil.copytree(tmp_path / "ledgers", tmp_path / "copy")
    create = LedgerFiles.create

    @contextmanager
    def killed(store: LedgerFiles, path: str) -> Generator[Any]:
        with create(store, path) as sink:
            yield sink
        monkeypatch.setattr(LedgerFiles, "delete", killing(LedgerFiles.delete, "never"))
        raise Killed

    monkeypatch.setattr(LedgerFiles, "create", killed)
    with pytest.raises(Killed):
        sealed.relocate(tmp_path / "copy")
    monkeypatch.undo()
    assert len(ledger_files_in(tmp_path / "ledgers")) == 3
    clock.now += HOUR
    assert sealed.sweep() == 1
    assert {str(path) for path in ledger_files_in(tmp_path / "ledgers")} == set(sealed.files())
    assert len(ledger_files_in(tmp_path / "copy")) == 2


def test_a_topic_that_moves_back_at_once_keeps_its_files(sealed: Topic, tmp_path: Path, clock: MovableClock) -> None:
    assert sealed.relocate(tmp_path / "new").copied == 2
    assert sealed.relocate(tmp_path / "ledgers") == (str(tmp_path / "ledgers"), 0, 2)
    clock.now += HOUR + 1
    assert sealed.sweep() == 2
    assert times(sealed) == list(range(9))
    assert ledger_files_in(tmp_path / "new") == set()


@pytest.mark.one_database
def test_a_copy_that_reads_back_differently_is_rejected(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = relocating._digest

    def damage(store: LedgerFiles, path: str) -> bytes:
        file = Path(store.name(path))
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
        return digest(store, path)

    monkeypatch.setattr(relocating, "_digest", damage)
    with pytest.raises(UnavailableError, match="differs from the data"):
        sealed.relocate(tmp_path / "new")
    assert times(again(sealed)) == list(range(9))


@pytest.mark.one_database
def test_a_lost_file_keeps_its_topic_where_it_is(sealed: Topic, tmp_path: Path) -> None:
    ledger_path(sealed, 1).unlink()
    with pytest.raises(LostFileError):
        sealed.relocate(tmp_path / "new")
    assert again(sealed).files()[0].startswith(str(tmp_path / "ledgers"))


@pytest.mark.one_database
def test_a_removed_topic_also_removes_its_files_elsewhere(sealed: Topic, tmp_path: Path) -> None:
    sealed.relocate(tmp_path / "new")
    sealed.remove()
    assert ledger_files_in(tmp_path / "ledgers") == ledger_files_in(tmp_path / "new") == set()


def test_a_store_that_only_its_user_can_open_is_left_clean_at_once(tmp_path: Path) -> None:
    filesystem = fs.PyFileSystem(CountingFiles(tmp_path))
    with wc.connect(f"sqlite:///{tmp_path}/f.db", "bucket", filesystem) as database:
        topic = database.create_topic("t")
        append_ledgers(topic, FLOW)
        topic.seal()
        topic.relocate(tmp_path / "local")
        assert ledger_files_in(tmp_path / "bucket") == set()
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.topic("t")
        assert times(topic) == list(range(9))
        topic.relocate("bucket", filesystem=filesystem)
        topic.append(published([9]))
        topic.roll()
        assert topic.seal() == 1
        assert times(topic) == list(range(10))
        with topic.storage.backend.snapshot() as connection:
            kept = connection.execute(sa.select(stores.c.root, stores.c.is_complete)).all()
        assert sorted(kept) == sorted([("bucket", 0), (str(tmp_path / "local"), 1)])


@pytest.mark.parametrize("root", ["", " "])
def test_an_empty_root_is_refused(sqlite_topic: Topic, root: str) -> None:
    with pytest.raises(InvalidArgumentError, match="ledgers must be a folder or a URL"):
        sqlite_topic.relocate(root)


@pytest.mark.parametrize("root", ["s3://", "s3a:///", "gs://"])
def test_a_root_without_a_bucket_is_refused(sqlite_topic: Topic, root: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must name a bucket"):
        sqlite_topic.relocate(root)


@pytest.mark.parametrize(
    ("root", "remedy"), [("dbfs:/ledgers", "Pass the folder /dbfs/"), ("abfs:/x", "A URL has two slashes")]
)
def test_a_url_that_lacks_a_slash_is_not_a_folder(sqlite_topic: Topic, root: str, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got '{root}'. {remedy}"):
        sqlite_topic.relocate(root)
