"""Verifies the files of sealed ledgers: against the catalogue, and byte by byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import DamagedError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.file_checksums import footer_checksum
from waterclock.topics.format.row_groups import RowGroup, bounds_of
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.reading.footers import read_footer
from waterclock.topics.reading.reading import path_now
from waterclock.topics.reading.sealed_ledger import SealedLedger, checked_row_groups
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.verifying.faults import Fault


class CheckedFile(NamedTuple):
    """The result for a file: its faults, and how many of its messages can be read."""

    faults: list[Fault]
    messages: int


def check_file(storage: Storage, path: str, numbers: Sequence[int], *, deep: bool) -> CheckedFile:
    """Check a file against the rows of those ledgers that it still holds."""
    rows = _rows(storage, path, numbers)
    if not rows:
        return CheckedFile([], 0)
    name = storage.files.name(path)
    try:
        size = storage.files.size(path)
    except LostFileError:
        still = [row for row in rows if path_now(storage, row["ledger"]) == path]
        text = f"the file {name} is missing"
        return CheckedFile(
            [Fault("missing file", text, row["ledger"], None, row["messages"], name) for row in still], 0
        )
    except DamagedError as error:  # a path outside the store
        return CheckedFile(
            [Fault("damaged", str(error), row["ledger"], None, row["messages"], name) for row in rows], 0
        )
    if size != rows[0]["file_bytes"]:
        text = f"the file {name} has {size} bytes instead of {rows[0]['file_bytes']}"
        return CheckedFile([Fault("damaged", text, row["ledger"], None, row["messages"], name) for row in rows], 0)
    faults = list(_check_footer(storage, rows, name))
    opened: list[tuple[sa.RowMapping, SealedLedger]] = []
    for row in rows:
        try:
            opened.append((row, SealedLedger(storage, row)))
        except DamagedError as error:
            faults.append(Fault("damaged", str(error), row["ledger"], None, row["messages"], name))
    for row, ledger in opened:
        faults += _check_groups(row, ledger.groups, name)
    messages = sum(group.messages for _, ledger in opened for group in ledger.groups)
    if deep:
        damaged = [fault for each in _by_row_group(opened) for fault in _check_row_group(*each, name)]
        faults += damaged
        messages -= sum(fault.messages for fault in damaged)
    return CheckedFile(faults, messages)


def _rows(storage: Storage, path: str, numbers: Sequence[int]) -> Sequence[sa.RowMapping]:
    statement = (
        sa.select(ledgers)
        .where(
            ledgers.c.topic_id == storage.topic_id,
            ledgers.c.ledger.between(min(numbers), max(numbers)),
            ledgers.c.path == path,
        )
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        return connection.execute(statement).mappings().all()


def _check_footer(storage: Storage, rows: Sequence[sa.RowMapping], name: str) -> Iterator[Fault]:
    """Compare both copies of the footer with the checksum."""
    both = [row[name] for row in rows for name in ("footer", "shared_footer")]
    copies = [copy for copy in both if copy is not None]
    try:
        _, checksums = checked_row_groups(rows[0])
    except DamagedError:
        return  # reported when the ledger is opened
    ledger = rows[0]["ledger"]
    if copies and footer_checksum(copies[0]) != checksums.footer:
        yield Fault("spare", f"the catalogue's copy of the footer of {name} is corrupt", ledger, file=name)
    try:
        whole = footer_checksum(read_footer(storage.files, rows[0]["path"])) == checksums.footer
    except DamagedError:
        whole = False
    if not whole:
        yield Fault("spare", f"the footer of {name} is corrupt; its copy in the catalogue is used", ledger, file=name)


def _check_groups(row: Mapping[Any, Any], groups: Sequence[RowGroup], name: str) -> Iterator[Fault]:
    """Compare the catalogue's row groups with its ledger."""
    counted = sum(group.messages + group.skipped for group in groups)
    if counted > row["messages"]:
        text = f"the row groups of ledger {row['ledger']} hold {counted} messages instead of {row['messages']}"
        yield Fault("catalogue", text, row["ledger"], file=name)
    known = Bounds.of_row(row)  # pyright: ignore[reportArgumentType]  # a mapping of the same names
    if known is not None and bounds_of(groups) != known:
        text = f"the bounds of ledger {row['ledger']} do not match its row groups"
        yield Fault("catalogue", text, row["ledger"], file=name)


class _RowGroupPart(NamedTuple):
    ledger: SealedLedger
    group: RowGroup
    at: int


def _by_row_group(opened: Iterable[tuple[Any, SealedLedger]]) -> Iterator[tuple[int, list[_RowGroupPart]]]:
    """Return each row group of the file once, with the pieces of all ledgers in it."""
    pieces: dict[int, list[_RowGroupPart]] = {}
    for _, ledger in opened:
        for at, group in enumerate(ledger.groups):
            pieces.setdefault(at if group.number is None else group.number, []).append(_RowGroupPart(ledger, group, at))
    yield from sorted(pieces.items())


def _check_row_group(number: int, pieces: list[_RowGroupPart], name: str) -> Iterator[Fault]:
    try:
        table = pieces[0].ledger.read_whole(number)
    except DamagedError as error:
        for piece in pieces:
            group = piece.group
            yield Fault("damaged", str(error), piece.ledger.number, group.entry, group.messages, name, number)
        return
    for ledger, group, _ in pieces:
        if not group.is_in(table, ledger.number):
            text = f"row group {number} of {name} does not match the catalogue's facts of ledger {ledger.number}"
            yield Fault("damaged", text, ledger.number, group.entry, group.messages, name, number)
