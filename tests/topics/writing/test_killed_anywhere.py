"""Appenders, sealers and expirers are killed at random moments; nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.forked import Forked
from tests.topics.flows import ledger_files_in
from tests.topics.writing.killable_workers import TOGETHER, TOPIC, batch, kill, lines, shorten_leases, start_worker

from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import entries, files
from waterclock.errors import UnavailableError
from waterclock.message import Message
from waterclock.topics.catalogue import pending_files
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import expiring, relocating, retention, sweeping

OLD = 100  # messages at the start of the flow that are long expired
PATIENCE = 60
KILLS = 10  # each costs the start of a process; `make soak` kills a thousand, from five seeds

pytestmark = pytest.mark.both_servers

Start = Callable[..., Forked]


@pytest.fixture
def start() -> Generator[Start]:
    """Start workers, and kill those that a failed test leaves."""
    started: list[Forked] = []

    def start(*arguments: Any) -> Forked:
        started.append(start_worker(*arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [(module, "LEASE") for module in (pending_files, expiring, relocating)]
    for module, name in (*leases, (sweeping, "CLAIM"), (retention, "GRACE")):
        monkeypatch.setattr(module, name, getattr(module, name))  # so that it is put back in the end
    shorten_leases()


@pytest.mark.parametrize(
    "roles",
    [
        # All that can die among three can die among four.
        pytest.param(("append", "seal", "compact"), marks=pytest.mark.slow),
        ("append", "seal", "compact", "expire"),
    ],
    ids="-".join,
)
def test_acknowledged_appends_survive_any_kill(
    database_url: str, tmp_path: Path, start: Start, short_leases: None, roles: tuple[str, ...]
) -> None:
    _kill_and_check(database_url, tmp_path, start, roles, kills=KILLS)


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_appends_of_several_threads_survive_any_kill(
    database_url: str, tmp_path: Path, start: Start, kills: int
) -> None:
    backend = Backend(database_url)
    ledgers, log = tmp_path / "ledgers", tmp_path / "log"
    topic = Topic.create(backend, str(ledgers), TOPIC, TopicOptions.check(roll_after=None, roll_size=2_000))
    dice = random.Random(0)  # noqa: S311  # not a secret
    for _ in range(kills):
        before = len(list(lines(log)))
        worker = start("append_together", database_url, ledgers, log)
        _await(lambda before=before: len(list(lines(log))) > before + 1, "nothing was appended")
        time.sleep(dice.random() * 0.05)
        kill(worker)
    messages = list(topic.read())
    _check_positions(messages)
    acknowledged = dict(line.rsplit(": ", 1) for line in lines(log) if ": " in line)
    for thread in range(TOGETHER):
        name = f"together {thread}"
        numbers = [message.event_time for message in messages if message.source == name]
        assert numbers == list(range(len(numbers))), "each message once, in order, without a hole"
        assert len(numbers) >= int(acknowledged.get(name, 0)), "nothing acknowledged is lost"
    backend.close()


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_relocation_leaves_no_file_behind_after_any_kill(
    sqlite_url: str, tmp_path: Path, start: Start, short_leases: None, kills: int
) -> None:
    backend = Backend(sqlite_url)
    ledgers, log = tmp_path / "ledgers", tmp_path / "log"
    topic = Topic.create(backend, str(ledgers), TOPIC, TopicOptions.check(roll_after=None, roll_size=1, retention=None))
    for first in range(0, OLD, 10):
        topic.append(batch(first, 10, 1))
    topic.seal()
    dice = random.Random(0)  # noqa: S311  # not a secret
    for _ in range(kills):
        started = len(list(lines(log)))
        worker = start("relocate", sqlite_url, ledgers, log)
        _await(lambda started=started: len(list(lines(log))) > started, "the relocation did not start")
        time.sleep(dice.random() * 0.1)
        kill(worker)
    topic = Topic.open(backend, None, TOPIC)
    _end_all_work(topic)
    assert ledger_files_in(ledgers) | ledger_files_in(tmp_path / "ledgers-new") == {
        Path(name) for name in topic.files()
    }
    assert [message.event_time for message in topic.read()] == list(range(OLD))
    backend.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_acknowledged_appends_survive_a_thousand_kills(
    database_url: str, tmp_path: Path, start: Start, short_leases: None, seed: int
) -> None:
    _kill_and_check(database_url, tmp_path, start, ("append", "seal", "compact", "expire"), kills=1000, seed=seed)


def _kill_and_check(url: str, folder: Path, start: Start, roles: tuple[str, ...], *, kills: int, seed: int = 0) -> None:
    backend = Backend(url)
    ledgers = folder / "ledgers"
    topic = Topic.create(
        backend, str(ledgers), TOPIC, TopicOptions.check(roll_after=None, roll_size=10_000, retention=None)
    )
    subscription = topic.subscribe("s")
    for first in range(0, OLD, 10):
        topic.append(batch(first, 10, 1), producer="p", sequence=first)
        topic.roll()
    logs = {role: folder / f"{role}.log" for role in roles}
    _keep_killing(url, ledgers, start, logs, kills, random.Random(seed))  # noqa: S311  # not a secret
    _end_all_work(topic)
    if "expire" in roles:
        _expire(topic)
        assert subscription.position >= topic.find(2).position
    _check_messages(topic, acknowledged=max(_acknowledgements(logs["append"])), expired="expire" in roles)
    _check_files(topic, ledgers)
    backend.close()


def _keep_killing(
    url: str, ledgers: Path, start: Start, logs: dict[str, Path], kills: int, dice: random.Random
) -> None:
    running: dict[str, Forked] = {}

    def begin(role: str) -> None:
        log = logs[role]
        started = sum(line == "ready" for line in lines(log))
        running[role] = start(role, url, ledgers, log, _resume_at(logs["append"]))
        _await(lambda: sum(line == "ready" for line in lines(log)) > started, f"{role} did not start")

    for _ in range(kills):
        for role in [role for role in logs if role not in running]:
            begin(role)
        time.sleep(dice.random() * 0.05)
        victim = dice.choice(list(logs))
        kill(running.pop(victim))
    if "append" not in running:
        begin("append")
    # However slow the machine, and however soon the others were killed.
    _await(lambda: max(_acknowledgements(logs["append"])) > OLD, "nothing was appended")
    for worker in running.values():
        kill(worker)


def _await(done: Callable[[], bool], otherwise: str) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < give_up_at, f"{otherwise} in {PATIENCE} s"
        time.sleep(0.001)


def _resume_at(log: Path) -> int:
    """Give where to begin again if the last acknowledgement had got lost on its way."""
    return _acknowledgements(log)[-2:][0]


def _acknowledgements(log: Path) -> list[int]:
    """Give the number after each append that was acknowledged."""
    return [OLD, *(int(line) for line in lines(log) if line.isdecimal())]


def _end_all_work(topic: Topic) -> None:
    """Seal and sweep until the dead hold nothing any more."""
    give_up_at = time.monotonic() + PATIENCE
    topic.roll()
    while topic.seal() or _count(topic, files) or any(info.state == "closed" for info in topic.ledgers()):
        assert time.monotonic() < give_up_at, "what the dead held did not come free"
        time.sleep(0.02)


def _expire(topic: Topic) -> None:
    """Expire as soon as the expirer that was killed is no longer thought to run."""
    give_up_at = time.monotonic() + PATIENCE
    expired = False
    while not expired:
        assert time.monotonic() < give_up_at, "what the dead held did not come free"
        with suppress(UnavailableError):
            topic.expire("1h")
            expired = True


def _check_messages(topic: Topic, *, acknowledged: int, expired: bool) -> None:
    messages = list(topic.read())
    numbers = [message.event_time for message in messages]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "each message once, in order, without a hole"
    assert numbers[0] == 0 or (expired and numbers[0] <= OLD)
    assert numbers[-1] >= acknowledged - 1, "nothing acknowledged is lost"
    _check_positions(messages)
    assert topic.ledgers()[-1].first_ordinal == numbers[-1] + 1


def _check_positions(messages: Sequence[Message]) -> None:
    for before, after in pairwise(message.position for message in messages):
        assert before is not None
        ledger, entry, index = before
        assert after in {(ledger, entry, index + 1), (ledger, entry + 1, 0), (ledger + 1, 0, 0)}


def _check_files(topic: Topic, ledgers: Path) -> None:
    expected = {Path(str(info.file)) for info in topic.ledgers() if info.file}
    assert ledger_files_in(ledgers) == expected
    assert _count(topic, entries) == 0


def _count(topic: Topic, table: sa.Table) -> int:
    with topic.storage.backend.snapshot() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
