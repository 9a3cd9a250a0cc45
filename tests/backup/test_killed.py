"""Backups and restores are killed at each access to a file in turn; half of one is never taken for a whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.backup.contents import messages, rows

import waterclock as wc
from waterclock.backup.restoring import check_backup
from waterclock.errors import NotFoundError

ROOT = Path(__file__).parents[2]
FEWEST = 10  # kills; where they are fewer, they were not looked for in the right place

Kills = Callable[..., Iterator[None]]


@pytest.fixture(scope="module")
def killing() -> Generator[subprocess.Popen[str]]:
    """Start the process that forks; importing and warming up takes it more than a second."""
    command = [sys.executable, "-m", "tests.backup.killed"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


@pytest.fixture
def kills(killing: subprocess.Popen[str]) -> Kills:
    """Return a function that goes on after each kill, until the backup or restore has ended without one."""

    def each(what: str, *places: object) -> Iterator[None]:
        assert killing.stdin is not None
        assert killing.stdout is not None
        print(json.dumps([what, *map(str, places)]), file=killing.stdin, flush=True)
        count = 0
        while (said := killing.stdout.readline()) == "killed\n":
            count += 1
            yield
            print(file=killing.stdin, flush=True)
        assert said == "done\n"
        assert count > FEWEST

    return each


def _is_whole(folder: Path) -> bool:
    """Read all of it; a DamagedError fails the test."""
    try:
        check_backup(folder)
    except NotFoundError:
        return False
    return True


def test_a_killed_backup_is_incomplete_and_the_next_one_completes_it(
    kills: Kills, source: wc.Database, folder: Path
) -> None:
    left = [_is_whole(folder) for _ in kills("backup", source.backend.url, source.ledgers, folder)]
    assert left == sorted(left), "what is whole once stays so"
    assert left.count(False) > FEWEST
    assert _is_whole(folder)


def test_a_killed_second_backup_leaves_the_first_or_is_whole(
    kills: Kills, source: wc.Database, folder: Path, tmp_path: Path
) -> None:
    first = source.backup(folder)
    topic = source.topic("telemetry")
    topic.truncate(wc.Position(2, 0, 0), force=True)
    topic.seal()
    seen = {check_backup(folder).taken_at for _ in kills("backup", source.backend.url, source.ledgers, folder)}
    assert first.taken_at in seen
    wc.restore(folder, f"sqlite:///{tmp_path}/copy.db")
    with wc.connect(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert messages(copy) == messages(source)
        assert rows(copy.backend.engine) == rows(source.backend.engine)
    assert len(list(folder.glob("*.db"))) == 1
    assert len(list(folder.rglob("*.parquet"))) == 2


def test_a_killed_restore_leaves_no_database(kills: Kills, source: wc.Database, folder: Path, tmp_path: Path) -> None:
    source.backup(folder)
    copy, ledgers = tmp_path / "copy.db", tmp_path / "copy-ledgers"
    for _ in kills("restore", f"sqlite:///{copy}", ledgers, folder):
        if copy.exists():  # killed after the last step
            copy.unlink()
        with suppress(FileNotFoundError):
            shutil.rmtree(ledgers)
    with wc.connect(f"sqlite:///{copy}", ledgers) as restored:
        assert messages(restored) == messages(source)
