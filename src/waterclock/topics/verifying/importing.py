"""Imports ledger files into a catalogue that has lost some or all of them.

A file lists the ledgers that it holds, with facts about each (`waterclock.topics.format.file_facts`). The file is read
completely before a row is written: its footer and pages are compared with their checksums, and its messages with the
facts. Only ledgers that the catalogue lacks are imported: those in a gap, those recorded as lost, and all of them if
the topic is empty. Ledgers that were deleted on purpose stay deleted.

Databases may share a store, so a topic takes only files with its own origin, the random id of a topic. A topic that has
never held a message may have been created again after its catalogue and origin were lost. So such a topic takes the
files with its name, if all these files have the same origin, and adopts that origin. Another database may still use
these files, so an imported file is never deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import sqlalchemy as sa

from waterclock._support.quoting import counted
from waterclock.database.schema.topic_catalogue import files as file_rows
from waterclock.database.schema.topic_catalogue import ledgers, topics
from waterclock.errors import DamagedError
from waterclock.topics.catalogue.ledgers import write_counter
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.file_checksums import FileChecksums
from waterclock.topics.format.file_facts import LedgerFacts, facts_in
from waterclock.topics.format.row_groups import RowGroup, bounds_of, row_groups_to_json
from waterclock.topics.model.counter import Counter
from waterclock.topics.reading.footers import checked_unknown_footer, read_footer
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.store.sealed_file import SealedFile

_log = logging.getLogger(__name__)


class _Offer(NamedTuple):
    """A file unknown to the catalogue, and its facts about its ledgers."""

    path: str
    size: int
    topic: str
    origin: str
    ledgers: Sequence[LedgerFacts]


def orphans(storage: Storage, folder: str | None = None) -> Iterator[tuple[str, int]]:
    """List the files of the store, or of a folder in it, that the catalogue does not know: names and sizes in bytes.

    Files that are being written, or wait for their deletion, are left out.
    """
    found = {path: size for path, size in storage.files.listing(folder) if path.endswith(".parquet")}
    # Look them up after listing: a file is recorded before it is written.
    with storage.backend.snapshot() as connection:
        for column in (ledgers.c.path, file_rows.c.path):
            for path in connection.execute(sa.select(column).where(column.is_not(None)).distinct()).scalars():
                found.pop(path, None)
    yield from sorted(found.items())


def is_of_another(storage: Storage, path: str) -> bool:
    """Return whether a file belongs to another topic that shares the store, perhaps in another database.

    The topic's origin decides: its name may have changed since the file was written.
    """
    try:
        facts = facts_in(checked_unknown_footer(storage.files, path))
    except (DamagedError, LostFileError):
        return False
    return facts is not None and facts.origin != storage.origin


def import_lost(storage: Storage) -> list[int]:
    """Import every ledger that the catalogue lacks and that a file of the store holds intact; return their numbers.

    Raises `UnavailableError` if the store or the database cannot be reached.
    """
    imported: list[int] = []
    for offer in _ours(storage, list(_offers(storage))):
        wanted = _wanted(storage, offer)
        if not wanted:
            continue
        try:
            chunks = _checked(storage, offer, wanted)
        except (DamagedError, LostFileError) as error:
            _log.warning("cannot import %s into topic %r: %s", storage.files.name(offer.path), storage.name, error)
            continue
        imported += _commit(storage, offer, wanted, chunks)
    return sorted(imported)


def _offers(storage: Storage) -> Iterator[_Offer]:
    """Yield the files that may hold missing messages, as far as they can be read."""
    for path, size in (*orphans(storage), *_beside_holes(storage)):
        try:
            facts = facts_in(checked_unknown_footer(storage.files, path))
        except (DamagedError, LostFileError) as error:
            _log.warning("%s is not a ledger file, or is corrupt: %s", storage.files.name(path), error)
            continue
        if facts is not None and facts.ledgers:
            yield _Offer(path, size, facts.topic, facts.origin, facts.ledgers)


def _beside_holes(storage: Storage) -> Iterator[tuple[str, int]]:
    """Return the files of the ledgers around a missing or lost one, which may have shared one of these files."""
    statement = sa.select(ledgers.c.ledger, ledgers.c.state, ledgers.c.path, ledgers.c.file_bytes).where(
        ledgers.c.topic_id == storage.topic_id
    )
    with storage.backend.snapshot() as connection:
        rows = connection.execute(statement.order_by(ledgers.c.ledger)).all()
        first, behind = storage.row(connection)["first_ledger"], storage.row(connection)["ledger"]
    sealed = [row for row in rows if row.state == "sealed" and row.path is not None]
    numbers = [first - 1, *(row.ledger for row in sealed), behind]
    found: dict[str, int] = {}
    for row, before, after in zip(sealed, numbers, numbers[2:], strict=False):
        if row.ledger - before > 1 or after - row.ledger > 1:
            found[row.path] = row.file_bytes
    yield from found.items()


def _ours(storage: Storage, offers: list[_Offer]) -> list[_Offer]:
    """Leave out files of other topics; files with most ledgers come first.

    If the topic is empty and the files of its name all belong to one topic, it takes them, including those written
    before that topic was renamed.
    """
    others = sa.select(topics.c.origin).where(topics.c.id != storage.topic_id)
    with storage.backend.snapshot() as connection:
        topic = storage.row(connection)
        taken = set(connection.execute(others).scalars())  # written by topics that once had this name
    fresh = topic["ordinal"] == 0 and topic["first_ledger"] == 0
    origin = topic["origin"]
    origins = {offer.origin for offer in offers if offer.topic == topic["name"]} - taken
    if fresh and len(origins) == 1:
        origin = origins.pop()
        _take_origin(storage, origin)
    return sorted(
        (offer for offer in offers if offer.origin == origin),
        key=lambda offer: (offer.ledgers[0].ledger, -len(offer.ledgers), offer.path),
    )


def _take_origin(storage: Storage, origin: str) -> None:
    statement = sa.update(topics).where(topics.c.id == storage.topic_id, topics.c.ordinal == 0).values(origin=origin)
    storage.backend.transact(lambda connection: connection.execute(statement))


def _wanted(storage: Storage, offer: _Offer) -> list[LedgerFacts]:
    with storage.backend.snapshot() as connection:
        return _missing(storage, connection, offer.ledgers)


def _missing(storage: Storage, connection: sa.Connection, offered: Sequence[LedgerFacts]) -> list[LedgerFacts]:
    """Choose the ledgers that the catalogue lacks, and that fit into its gaps."""
    topic = storage.row(connection)
    counter = Counter.of_row(topic)
    first, last = offered[0].ledger, offered[-1].ledger
    statement = sa.select(ledgers.c.ledger, ledgers.c.state, ledgers.c.first_ordinal, ledgers.c.messages).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.between(first - 1, last + 1)
    )
    rows = {row.ledger: row for row in connection.execute(statement)}
    fresh = counter.ledger == 0 and counter.ordinal == 0 and topic["first_ledger"] == 0
    chosen: list[LedgerFacts] = []
    for facts in offered:
        row = rows.get(facts.ledger)
        if row is not None:
            if row.state == "lost" and (row.first_ordinal, row.messages) == (facts.first_ordinal, facts.messages):
                chosen.append(facts)
        elif fresh or topic["first_ledger"] <= facts.ledger < counter.ledger:
            chosen.append(facts)
        elif facts.ledger >= counter.ledger and counter.entries == 0 and facts.first_ordinal >= counter.ordinal:
            chosen.append(facts)  # the catalogue was restored from an older backup
    return chosen


def _checked(storage: Storage, offer: _Offer, wanted: Sequence[LedgerFacts]) -> dict[int, list[int]]:
    """Read the row groups of the wanted ledgers whole, compare them with their facts, and return their checksums."""
    metadata: pq.FileMetaData = checked_unknown_footer(storage.files, offer.path)
    file = SealedFile(storage.files, offer.path, offer.size, metadata, None)
    chunks: dict[int, list[int]] = {}
    for facts in wanted:
        if sum(group.messages + group.skipped for group in facts.row_groups) > facts.messages:
            raise DamagedError(
                f"the file lists {counted(facts.messages, 'message')} for ledger {facts.ledger}, but holds more"
                " messages"
            )
    pieces = [(facts, at, group) for facts in wanted for at, group in enumerate(facts.row_groups)]
    table, read = None, -1
    for facts, at, group in pieces:
        number = at if group.number is None else group.number
        if number != read or table is None:
            table, chunks[number], _ = file.read_back(number, 0)
            read = number
        if not group.is_in(table, facts.ledger):
            raise DamagedError(f"row group {number} does not match the file's metadata of ledger {facts.ledger}")
    return chunks


def _commit(storage: Storage, offer: _Offer, wanted: Sequence[LedgerFacts], chunks: dict[int, list[int]]) -> list[int]:
    footer = read_footer(storage.files, offer.path)
    total = sum(facts.messages for facts in offer.ledgers)

    def insert_ledgers(connection: sa.Connection) -> list[int]:
        topic, now = storage.lock(connection)
        chosen = _missing(storage, connection, wanted)
        counter = Counter.of_row(topic)
        for facts in chosen:
            row = _row(offer, facts, footer, chunks, total, now)
            key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == facts.ledger)
            connection.execute(sa.delete(ledgers).where(*key))
            connection.execute(sa.insert(ledgers), {"topic_id": storage.topic_id, **row})
            if facts.ledger >= counter.ledger:
                counter = _behind(counter, facts)
        if counter != Counter.of_row(topic):
            write_counter(storage, connection, counter)
        if chosen and topic["first_ledger"] == 0 and topic["ordinal"] == 0:
            begin = {"first_ledger": chosen[0].ledger, "first_ordinal": chosen[0].first_ordinal}
            connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(begin))
        return [facts.ledger for facts in chosen]

    return storage.backend.transact(insert_ledgers)


def _row(
    offer: _Offer, facts: LedgerFacts, footer: bytes, chunks: dict[int, list[int]], total: int, now: int
) -> dict[str, Any]:
    """Build the catalogue's row of a ledger; the running maxima follow when the topic is measured again."""
    row_groups = row_groups_to_json(facts.row_groups)
    shared = len(offer.ledgers) > 1
    own = {number: chunks[number] for number in _numbers(facts.row_groups)}
    bounds = bounds_of(facts.row_groups)
    return {
        **{
            name: getattr(facts, name)
            for name in ("ledger", "first_ordinal", "entries", "messages", "opened_at", "closed_at")
        },
        "state": "sealed",
        "imported": 1,
        "sealed_at": now,
        "path": offer.path,
        "file_bytes": offer.size,
        "bytes": offer.size * facts.messages // max(total, 1),
        "row_groups": row_groups,
        "footer": None if shared else footer,
        "shared_footer": footer if shared and facts.ledger == offer.ledgers[-1].ledger else None,
        "checksums": FileChecksums.of(footer, row_groups, own).to_bytes(),
        **({} if bounds is None else bounds.columns()),
    }


def _numbers(groups: Sequence[RowGroup]) -> list[int]:
    return [at if group.number is None else group.number for at, group in enumerate(groups)]


def _behind(counter: Counter, facts: LedgerFacts) -> Counter:
    """Move the topic's end to after an imported ledger."""
    return replace(counter, ledger=facts.ledger + 1, ordinal=facts.first_ordinal + facts.messages)
