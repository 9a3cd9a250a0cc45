"""``waterclock backup`` and ``waterclock restore`` copy a database and its ledger files to a folder, and back."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from waterclock._support.urls import without_secrets
from waterclock.backup.backing_up import holds_backup
from waterclock.backup.copying import Report, no_report
from waterclock.backup.new_store import make_independent
from waterclock.backup.restoring import check_backup
from waterclock.backup.restoring import restore as restore_backup
from waterclock.backup.snapshot import database_file
from waterclock.cli.terminal.common import Common
from waterclock.errors import InvalidArgumentError
from waterclock.time import format_time


def backup(destination: str, /, *, common: Common = Common()) -> int:
    """Back up an SQLite database with its ledger files, while others write.

    Exit code 1 if ledger files were already missing; the backup then holds all other files.

    Parameters
    ----------
    destination
        A new or empty folder, or the folder of an earlier backup of the same database, which is replaced.
    """
    database_file(common.database_url)  # refuses a server before opening anything
    earlier = holds_backup(Path(destination))
    if earlier is not None:
        common.confirm(f"replace the backup of {format_time(earlier.taken_at)} in {destination}")
    with common.connect() as database, _progress(common) as report:
        done = database.backup(destination, report)
    facts = {"folder": done.folder, "ledger_files": done.ledger_files, "copied": done.copied, "bytes": done.size}
    common.output.facts({"taken_at": format_time(done.taken_at), **facts, "faults": len(done.faults)})
    for fault in done.faults:
        common.output.talk(f"missing or corrupt in the backup: {fault}")
    return int(bool(done.faults))


def restore(
    source: Path | None = None,
    /,
    *,
    dry_run: bool = False,
    new_identity: bool = False,
    common: Common = Common(),
) -> None:
    """Restore a backup into a new SQLite database with ledger files of its own.

    Every checksum is compared before anything is written. --url and --ledgers name the target; both must be new.

    Parameters
    ----------
    source
        The folder of the backup.
    dry_run
        Only check the backup.
    new_identity
        Restore nothing. Make a database that other tools have copied (--url) and its copied ledger files (--ledgers)
        independent of the original.
    """
    if new_identity:
        _make_independent(common)
        return
    if source is None:
        raise InvalidArgumentError("source is missing; name the folder of the backup")
    with _progress(common) as report:
        if dry_run:
            whole = check_backup(source, report)
            faults = whole.faults
            facts = {"ledger_files": len(whole.ledgers), "bytes": whole.size}
            taken_at = whole.taken_at
        else:
            done = restore_backup(source, common.database_url, common.ledgers, report)
            faults, taken_at = done.faults, done.taken_at
            facts = {"database": done.database, "ledgers": done.ledgers, "ledger_files": done.ledger_files}
            facts["bytes"] = done.size
    common.output.facts({"taken_at": format_time(taken_at), **facts, "faults": len(faults)})
    for fault in faults:
        common.output.talk(f"was already missing or corrupt at the time of the backup: {fault}")


def _make_independent(common: Common) -> None:
    if common.ledgers is None:
        raise InvalidArgumentError("--ledgers is missing; name the folder of the copied ledger files")
    common.confirm("give a new identity to the database and its ledger files, which must be a copy")
    with common.connect() as database:
        count = make_independent(database.backend, common.ledgers)
    common.output.talk(f"the copy now uses its own {count} ledger files in {without_secrets(common.ledgers)}")


@contextmanager
def _progress(common: Common) -> Generator[Report]:
    if common.quiet or not sys.stderr.isatty():
        yield no_report
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total)

        yield report
