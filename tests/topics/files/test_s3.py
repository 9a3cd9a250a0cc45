"""Topics whose ledgers lie on S3, over the protocol that Amazon's and others' stores speak."""

from __future__ import annotations

import logging
import pickle
import secrets
from collections.abc import Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.s3 import KEY, SECRET, S3Server
from tests.topics.conftest import MovableClock
from tests.topics.flows import append_ledgers, published

import waterclock as wc
from waterclock.database.schema.topic_catalogue import files
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store import roots
from waterclock.topics.store.ledger_files import MARKER, LostFileError, StoreError
from waterclock.topics.topic import Topic

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]
HOUR = 3_600_000_000_000


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    name = f"bucket-{secrets.token_hex(4)}"
    s3_server.filesystem.create_dir(name)
    return name


@pytest.fixture
def database(s3_server: S3Server, bucket: str, tmp_path: Path, clock: MovableClock) -> Generator[wc.Database]:
    with wc.connect(f"sqlite:///{tmp_path}/f.db", s3_server.url(f"{bucket}/data"), clock=clock) as database:
        yield database


def test_a_topic_lives_on_s3(
    database: wc.Database, s3_server: S3Server, bucket: str, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = database.create_topic("t")
    append_ledgers(topic, FLOW)
    assert topic.seal() == 2
    assert times(topic) == list(range(9))
    assert topic.find(4).position == wc.Position(1, 0, 1)
    assert topic.compact() == 1
    assert times(topic) == list(range(9))
    slices = pickle.loads(pickle.dumps(topic.plan()))  # noqa: S301  # our own
    assert sum(batch.num_rows for part in slices for batch in read_slice(part)) == 9
    (file,) = topic.files()
    assert file.startswith(f"s3://{bucket}/data/t-1/")
    assert topic.ledgers()[0].file == file
    for shown in (repr(slices), repr(topic), repr(topic.storage), repr(database), caplog.text):
        assert not any(secret in shown for secret in (KEY, SECRET, "endpoint_override", "s3cr3t"))

    topic.subscribe("s")
    clock.now = 1_000_006
    assert topic.expire(1_000_000) == (wc.Position(2, 0, 0), 6, 2)
    assert times(topic) == [6, 7, 8]
    clock.now += HOUR + 1
    assert topic.sweep() == 3
    objects = s3_server.filesystem.get_file_info(roots.fs.FileSelector(f"{bucket}/data", recursive=True))
    assert [info.base_name for info in objects if info.is_file] == [MARKER]
    with pytest.raises(InvalidArgumentError, match=rf"s3://{bucket}/data needs credentials"):
        wc.connect(str(database.backend.url)).topic("t")


def test_a_deleted_object_is_lost_and_nothing_else(
    database: wc.Database, s3_server: S3Server, clock: MovableClock
) -> None:
    topic = database.create_topic("t", retention="1h")
    append_ledgers(topic, FLOW)
    topic.seal()
    s3_server.filesystem.delete_file(topic.files()[1].removeprefix("s3://"))
    with pytest.raises(LostFileError, match="is missing"):
        times(topic)
    topic.subscribe("s")
    assert topic.expire(1_000_000).ledgers == 0
    assert topic.seal() == 0
    assert len(topic.ledgers()) == 3
    clock.now += HOUR
    assert topic.expire("1h").ledgers == 3


def test_a_bucket_that_is_missing_is_an_absent_store(database: wc.Database, s3_server: S3Server, bucket: str) -> None:
    topic = database.create_topic("t")
    append_ledgers(topic, FLOW)
    topic.seal()
    absent = wc.connect(str(database.backend.url), s3_server.url("no-such-bucket/data"))
    with pytest.raises(
        StoreError, match=rf"s3://no-such-bucket/data: waterclock-store.json is missing.*s3://{bucket}/data"
    ):
        absent.topic("t")
    with pytest.raises(
        UnavailableError, match=r"cannot create a ledger store at s3://no-such-bucket/data.*NO_SUCH_BUCKET"
    ):
        absent.create_topic("u")
    store = s3_server.filesystem
    held = {path: store.open_input_file(path).read() for path in _objects(s3_server, bucket)}
    store.delete_dir(bucket)
    topic.append(published([9]))
    topic.roll()
    for use in (lambda: times(topic), topic.seal, topic.compact, lambda: topic.truncate(3)):
        with pytest.raises(StoreError, match=r"waterclock-store.json is missing"):
            use()
    assert len(topic.ledgers()) == 4
    store.create_dir(bucket)
    for path, data in held.items():
        with store.open_output_stream(path) as sink:
            sink.write(data)
    assert times(topic) == [*range(9), 9]


def _objects(server: S3Server, bucket: str) -> list[str]:
    listed = server.filesystem.get_file_info(roots.fs.FileSelector(bucket, recursive=True))
    return [info.path for info in listed if info.is_file]


def test_a_server_that_stops_midway_loses_nothing_and_all_continues_after_it(
    s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "ATTEMPTS", 1)
    roots.opened.cache_clear()
    with wc.connect(f"sqlite:///{tmp_path}/f.db", s3_server.url(f"{bucket}/data", "s3a")) as database:
        topic = database.create_topic("t")
        append_ledgers(topic, [[list(range(4))], [list(range(4, 8))], [[8]]])
        assert topic.seal() == 2
        topic.roll()
        reader = topic.read()
        read = [next(reader).publish_time]
        s3_server.stop()
        try:
            for use in (lambda: list(reader), topic.seal, topic.compact, lambda: topic.truncate(topic.head)):
                with pytest.raises(UnavailableError, match=rf"s3://{bucket}/data.*(?s:.)NETWORK_CONNECTION") as refused:
                    use()
                assert SECRET not in str(refused.value)
            other = database.topic("t")
            other.append(published([9]))
        finally:
            s3_server.start()
        assert len(topic.ledgers()) == 4
        assert topic.seal() == 1
        assert topic.compact() == 2
        assert times(other) == list(range(10))
        assert read == [0]
        with topic.storage.backend.snapshot() as connection:
            assert connection.execute(sa.select(sa.func.count()).where(files.c.state == "pending")).scalar() == 0


def test_a_topic_moves_to_s3_and_back(database: wc.Database, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    topic = wc.connect(str(database.backend.url), tmp_path / "local").create_topic("t")
    append_ledgers(topic, FLOW)
    topic.seal()
    assert topic.relocate(s3_server.url(f"{bucket}/moved")) == (f"s3://{bucket}/moved", 2, 0)
    assert times(topic) == list(range(9))
    assert topic.relocate(tmp_path / "local") == (str(tmp_path / "local"), 0, 2)
    assert times(topic) == list(range(9))
