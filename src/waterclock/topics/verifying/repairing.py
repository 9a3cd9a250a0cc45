"""Repairs a topic: corrects the catalogue, and records missing messages as lost.

First, the repair imports ledger files that the catalogue has lost, and finds files that were renamed, so that their
messages are not recorded as lost. Then it measures the bounds of ledgers again, and records unreadable entries, row
groups and ledgers as lost. After that, a ledger that the catalogue described wrongly is imported from its file. No file
is removed or changed: a damaged file stays in its place. Each step is a transaction of its own, so a repair that is
killed is simply run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, ledgers, topics
from waterclock.errors import DamagedError
from waterclock.topics.catalogue.running_max import lower_peaks
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import record_lost_entries, record_lost_ledger
from waterclock.topics.finding.measuring import measure_ledger
from waterclock.topics.format.file_checksums import FileChecksums
from waterclock.topics.format.row_groups import RowGroup, bounds_of, row_groups_to_json
from waterclock.topics.model.counter import Counter
from waterclock.topics.reading.sealed_ledger import SealedLedger
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.verifying.faults import HARMLESS, Fault, Progress, Repaired, Verified
from waterclock.topics.verifying.importing import import_lost
from waterclock.topics.verifying.moved_files import find_moved
from waterclock.topics.verifying.verifying import verify_topic


def repair_topic(storage: Storage, progress: Progress | None = None) -> Repaired:
    """Repair the faults that a deep verification finds, and verify again.

    Raises `UnavailableError` if the store or the database cannot be reached, or is another one: then nothing is
    recorded as lost.

    Parameters
    ----------
    progress
        As of `verify_topic`; it begins again with the second verification.
    """
    storage.files.check()
    imported = import_lost(storage)
    found = verify_topic(storage, deep=True, progress=progress)
    moved = find_moved(storage, {each.ledger for each in found.faults if each.ledger is not None})
    if moved:
        found = verify_topic(storage, deep=True, progress=progress)
    lost: dict[int | None, int] = defaultdict(int)
    for fault in found.faults:
        lost[fault.ledger] += _record_loss(storage, fault)
    for ledger in import_lost(storage) if any(lost.values()) else ():  # the catalogue was wrong, not the file
        imported.append(ledger)
        lost.pop(ledger, None)
    measured = [ledger for ledger in _wrong_in_catalogue(found) if _measure_anew(storage, ledger)]
    if measured or imported or lost:
        _carry_peaks(storage)
    left = verify_topic(storage, deep=True, progress=progress)
    return Repaired(
        topic=storage.name,
        imported=tuple(sorted(imported)),
        moved=tuple(moved),
        measured=tuple(measured),
        lost=sum(lost.values()),
        faults=found.faults,
        left=left.faults,
    )


def _wrong_in_catalogue(found: Verified) -> Iterable[int]:
    return sorted({fault.ledger for fault in found.faults if fault.kind == "catalogue" and fault.ledger is not None})


def _record_loss(storage: Storage, fault: Fault) -> int:
    """Record the messages of a fault as lost; return how many."""
    if fault.kind in (*HARMLESS, "catalogue") or fault.ledger is None:
        return 0
    ledger, entry = fault.ledger, fault.entry

    def write_tombstones(connection: sa.Connection) -> int:
        counter = Counter.of_row(storage.lock(connection)[0])
        key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
        row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
        if row is None and ledger != counter.ledger:
            return sum(record_lost_ledger(storage, connection, each) for each in _missing(storage, connection, ledger))
        if row is None or row["state"] == "closed":
            gone = [] if entry is None else _missing_entries(storage, connection, ledger, entry)
            return record_lost_entries(storage, connection, ledger, gone)
        if row["state"] != "sealed":
            return 0  # recorded already
        left = None if fault.row_group is None else _without(storage, row, fault.row_group)
        if not left:
            return record_lost_ledger(storage, connection, ledger)
        lost = {"lost_in_file": row["lost_in_file"] + fault.messages}
        connection.execute(sa.update(ledgers).where(*key).values(_values(row, left) | lost))
        return fault.messages

    return storage.backend.transact(write_tombstones)


def _missing(storage: Storage, connection: sa.Connection, first: int) -> range:
    """Return a missing ledger and the missing ones that follow it."""
    following = sa.select(sa.func.min(ledgers.c.ledger)).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger > first
    )
    behind = connection.execute(following).scalar()
    return range(first, storage.row(connection)["ledger"] if behind is None else behind)


def _missing_entries(storage: Storage, connection: sa.Connection, ledger: int, first: int) -> list[int]:
    """Return a damaged entry, or a missing one and the missing ones that follow it."""
    following = sa.select(sa.func.min(entries.c.entry)).where(
        entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger, entries.c.entry >= first
    )
    number = connection.execute(following).scalar()
    if number is None:
        key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
        count = connection.execute(sa.select(ledgers.c.entries).where(*key)).scalar()
        number = Counter.of_row(storage.row(connection)).entries if count is None else count
    return list(range(first, max(number, first + 1)))


def _without(storage: Storage, row: sa.RowMapping, damaged: int) -> Sequence[RowGroup] | None:
    """Return a ledger's row groups without one row group of the file; None if these are unknown."""
    try:
        known = SealedLedger(storage, row).groups
    except (DamagedError, LostFileError):
        return None
    left: list[RowGroup] = []
    skipped = 0
    for at, group in enumerate(known):
        # If one is left out, the others' numbers are no longer their places in the list.
        number = at if group.number is None else group.number
        if number == damaged:
            skipped += group.skipped + group.messages
            continue
        left.append(replace(group, number=number, skipped=group.skipped + skipped))
        skipped = 0
    return left


def _values(row: sa.RowMapping, groups: Sequence[RowGroup]) -> dict[str, object]:
    """Describe the remaining row groups of a ledger, and their bounds."""
    text = row_groups_to_json(groups)
    bounds = bounds_of(groups)
    checksums = FileChecksums.from_bytes(row["checksums"], "a ledger").of_text(text).to_bytes()
    return {"row_groups": text, "checksums": checksums, **({} if bounds is None else bounds.columns())}


def _measure_anew(storage: Storage, ledger: int) -> bool:
    """Correct a ledger's row from its messages; False if it is the open one or cannot be read."""
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    with storage.backend.snapshot() as connection:
        row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
    if row is None:
        return False
    try:
        measure_ledger(storage, ledger)
    except (DamagedError, LostFileError):
        return False
    return True


def _carry_peaks(storage: Storage) -> None:
    """Compute the running maxima of all ledgers again."""

    def raise_running_max(connection: sa.Connection) -> None:
        counter = Counter.of_row(storage.lock(connection)[0])
        note = sa.update(topics).where(topics.c.id == storage.topic_id).values(stale_peaks=counter.ledger)
        connection.execute(note)

    storage.backend.transact(raise_running_max)
    lower_peaks(storage)
