"""Backups of a database in which another process appends, seals, compacts, truncates, puts and acks without a pause."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.backup.contents import drained, rows
from tests.backup.load import GROUPS, TABLE, TOPIC

import waterclock as wc
from waterclock.backup.backing_up import BackedUp
from waterclock.backup.manifest import read_manifest

HOUR = 3_600_000_000_000
ROOT = Path(__file__).parents[2]


class Books:
    """What the other process has printed as done."""

    def __init__(self) -> None:
        self.appended = self.put = 0
        self.acked: set[int] = set()
        self.steps = Counter[str]()
        self._changed = threading.Condition()

    def follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            what, number = line.split()
            with self._changed:
                self.steps[what] += 1
                match what:
                    case "appended":
                        self.appended = int(number)
                    case "put":
                        self.put = int(number) + 1
                    case "acked":
                        self.acked.add(int(number))
                    case _:
                        pass
                self._changed.notify_all()

    def wait_for_more(self) -> tuple[int, int, set[int]]:
        """Wait until each has done something more; give what is done."""
        with self._changed:
            before = Counter(self.steps)
            names = ("appended", "put", "acked", "kept")
            assert self._changed.wait_for(lambda: all(self.steps[n] > before[n] + 1 for n in names), timeout=60)
            return self.appended, self.put, set(self.acked)


@contextmanager
def busy(url: str, ledgers: Path) -> Generator[Books]:
    command = [sys.executable, "-m", "tests.backup.load", url, str(ledgers)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        books = Books()
        follower = threading.Thread(target=books.follow, args=(process,))
        follower.start()
        try:
            yield books
        finally:
            assert process.stdin is not None
            process.stdin.close()
            follower.join()
    assert process.returncode == 0


def check(folder: Path, done: tuple[int, int, set[int]]) -> None:
    """Restore a backup, and compare it with the snapshot in it and with what was done before it began."""
    appended, put, acked = done
    url = f"sqlite:///{folder}-copy.db"
    restored = wc.restore(folder, url)
    snapshot = sa.create_engine(f"sqlite:///{folder / read_manifest(folder).database.path}")
    with wc.connect(url) as copy:
        assert rows(copy.backend.engine) == rows(snapshot)
        snapshot.dispose()
        topic = copy.topic(TOPIC)
        messages = list(topic.read())
        numbers = [message.event_time for message in messages]
        first = topic.ledgers()[0].first_ordinal
        assert numbers == list(range(first, first + len(numbers))), "each message once, in order, without a hole"
        assert first + len(numbers) >= appended, "all that was appended before is in it"
        assert all(message.payload == b"x" * 40 for message in messages)
        with copy.backend.engine.connect() as connection:
            state = dict(connection.execute(sa.text(f"SELECT id, time_acked FROM {TABLE}")).all())  # noqa: S608
        assert sorted(state) == list(range(len(state)))
        assert len(state) >= put, "all that was put before is in it"
        assert all(state[number] is not None for number in acked), "all that was acked before is acked"
    # After the leases of that time.
    with wc.connect(url, clock=lambda: restored.taken_at + HOUR) as copy:
        left: dict[str | None, list[int]] = {}
        for group, payload in drained(copy, TABLE):
            left.setdefault(group, []).append(int(payload))
        waiting = [number for number, at in sorted(state.items()) if at is None]
        groups = {f"g{each}": [number for number in waiting if number % GROUPS == each] for each in range(GROUPS)}
        assert left == {group: numbers for group, numbers in groups.items() if numbers}, "each group, in order"


def back_up_while_busy(sqlite_url: str, tmp_path: Path, backups: int) -> None:
    ledgers = tmp_path / "ledgers"
    made: list[tuple[BackedUp, tuple[int, int, set[int]]]] = []
    with wc.connect(sqlite_url, ledgers) as database:
        database.create_topic(TOPIC, roll_after=None)
        database.create_table(TABLE, payload="text", groups="sequenced", purge_after=None)
        with busy(sqlite_url, ledgers) as books:
            for number in range(backups):
                done = books.wait_for_more()
                # The second one goes into the folder of the first.
                made.append((database.backup(tmp_path / f"backup-{max(number, 1)}"), done))
    for backup, done in made[1:]:
        check(backup.folder, done)


def test_backups_of_a_busy_database_are_consistent(sqlite_url: str, tmp_path: Path) -> None:
    back_up_while_busy(sqlite_url, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_backups_of_a_busy_database_are_consistent(sqlite_url: str, tmp_path: Path) -> None:
    back_up_while_busy(sqlite_url, tmp_path, 30)
