"""Finds the first message at or after a time, with one catalogue query and at most one ranged read of a file.

A running maximum never falls, even if the times are disordered. The first message with ``time >= t`` is the first
message at which the running maximum reaches t. So each level (ledger, entry or row group, message) needs one search.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, NamedTuple, get_args

import numpy as np
import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, ledgers, topics
from waterclock.errors import DamagedError, InvalidArgumentError
from waterclock.message import Position
from waterclock.time import Time
from waterclock.topics.catalogue.damage_policy import Damage, OnDamage, located
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.finding.measuring import measure_ledger
from waterclock.topics.finding.positions import Place, place_of
from waterclock.topics.format.entries import decode_entries
from waterclock.topics.model.bounds import time_column
from waterclock.topics.model.literals import By
from waterclock.topics.reading.reading import check_position, path_now
from waterclock.topics.reading.sealed_ledger import SealedLedger
from waterclock.topics.store.ledger_files import LostFileError

FINDABLE: tuple[By, ...] = get_args(By)

_TOPIC = sa.bindparam("topic", type_=sa.BigInteger)
_TIME = sa.bindparam("time", type_=sa.BigInteger)

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The place of a time in a topic."""

    position: Position
    """Position of the first message at or after the time; if all are earlier, that of the next message to be written.
    """
    found: bool  # whether there is such a message


def check_by(by: str) -> By:
    """Check the name of a time."""
    if by not in FINDABLE:
        raise InvalidArgumentError(f"'by' must be one of {', '.join(FINDABLE)}, got {by!r}")
    return by


def find_first(
    storage: Storage,
    by: str,
    time: int,
    on_damage: OnDamage = "raise",
    *,
    at_lost: bool = False,
) -> Found:
    """Find the first remaining message with ``by`` at or after ``time``.

    After *PIP-345: Optimize finding message by timestamp* ('Detailed Design', step 12).

    A ledger whose file is lost is skipped with a warning: the result is the first readable message.

    Raises `DamagedError` if the message is in a damaged part. Raises `UnavailableError` if a file cannot be read now,
    but may be later.

    Parameters
    ----------
    by
        publish_time, event_time, receive_time or effective_time.
    time
        ns since the epoch.
    on_damage
        ``skip``: if the message is in a damaged entry or row group, return the beginning of that, for a reader that
        skips it. If a whole ledger is corrupt, return its beginning.
    at_lost
        Return the beginning of a ledger whose file is lost, if it may hold the message, instead of skipping it.
    """
    after: int | None = None  # only ledgers that follow this one may hold the answer
    lost = -1  # up to this one, ledgers without bounds cannot hold the answer
    while True:
        row = _look(storage, by, time, after, lost)
        unmeasured = _unmeasured(row)
        if unmeasured is not None:
            if not _measured(storage, unmeasured):
                if at_lost:
                    return Found(Position(unmeasured, 0, 0), found=True)
                lost = unmeasured
                after = unmeasured if unmeasured == row["ledger"] else after
        elif row["data"] is not None:
            return Found(_place_in_entry(storage, row, by, time, on_damage), found=True)
        elif row["ledger"] is None:
            return Found(Position(row["open_ledger"], row["open_entries"], 0), found=False)
        else:
            place = _place_in_file(storage, row, by, time, on_damage, at_lost=at_lost)
            if place is not None:
                return Found(place, found=True)
            after = row["ledger"]


def find_newest(storage: Storage, by: str) -> Found:
    """Find the first of the messages with the largest ``by``; not found in a topic without messages.

    The catalogue's largest time may belong to messages that were deleted or lost since. Then no message is found for
    it, and the next smaller largest time of a ledger is tried.
    """
    time = _largest(storage, by)
    while time is not None:
        found = find_first(storage, by, time)
        if found.found:
            return found
        time = _largest_below(storage, by, time)
    return Found(storage.head(), found=False)


def find_start(storage: Storage, by: str, time: int, on_damage: OnDamage = "raise") -> Found:
    """Find the start of a reader of the messages at or after a time.

    That is the first such message, unless an earlier lost or missing part may hold one: then the reader begins there,
    and reports it. The arguments are those of `find_first`.
    """
    found = find_first(storage, by, time, on_damage=on_damage, at_lost=True)
    ledger = found.position.ledger
    before = sa.select(sa.func.max(ledgers.c.ledger)).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < ledger
    )
    with storage.backend.snapshot() as connection:
        topic = storage.row(connection)
        last = connection.execute(before).scalar()
    missing = topic["first_ledger"] if last is None else last + 1
    reached = topic[f"peak_{by}"]  # over all ledgers that were closed, also those that are missing
    if missing >= ledger or (ledger == topic["ledger"] and (reached is None or reached < time)):
        return found
    return Found(Position(missing, 0, 0), found=True)


def place_at(storage: Storage, start: Position | Time, by: str, on_damage: OnDamage = "raise") -> Place:
    """Find the place to start reading: at ``"earliest"``, ``"latest"``, a position, or the first message of a time.

    ``by`` names the kind of time, and the time may be written as how long ago: ``"2h"``. ``on_damage`` as in
    `find_first`.
    """
    damage = Damage(storage.name, on_damage, quiet=True)
    if isinstance(start, Position):
        return place_of(storage, check_position(start, "start"), damage)
    if start == "earliest":
        return place_of(storage, Position(0, 0, 0))
    if start == "latest":
        return place_of(storage, storage.head())
    time = storage.time(start, "start")
    return place_of(storage, find_start(storage, by, time, on_damage).position, damage)


@cache
def find_statement(by: str, *, by_running_maximum: bool = True) -> sa.Select[*tuple[Any, ...]]:
    """Build the one catalogue query of a find: the ledger, and in an unsealed one the entry, that hold the answer.

    Its parameters are ``topic``, ``time``, ``lost`` and, if ledgers are searched by their own bounds, ``after``.
    """
    found = ledgers.alias("found")
    entry = entries.alias("entry")
    here = sa.func.coalesce(found.c.ledger, topics.c.ledger)
    peak = entries.c[f"peak_{by}"]
    first_entry = (
        sa.select(entries.c.entry)
        .where(entries.c.topic_id == _TOPIC, entries.c.ledger == here, peak >= _TIME)
        .order_by(peak, entries.c.entry)
        .limit(1)
        .correlate(topics, found)
        .scalar_subquery()
    )
    first_ledger = _first_by_peak(by) if by_running_maximum else _first_by_end(by)
    unsealed = sa.or_(found.c.state.is_(None), found.c.state == "closed")
    return (
        sa.select(
            topics.c.ledger.label("open_ledger"),
            topics.c.entries.label("open_entries"),
            _first_unmeasured(by).label("unmeasured"),
            found.c.ledger,
            found.c.state,
            found.c.messages,
            found.c.path,
            found.c.file_bytes,
            found.c.footer,
            found.c.row_groups,
            found.c.checksums,
            found.c[f"end_{by}"].label("end"),
            entry.c.ledger.label("entry_ledger"),
            entry.c.entry,
            entry.c.data,
        )
        .select_from(topics)
        .outerjoin(found, sa.and_(found.c.topic_id == _TOPIC, found.c.ledger == first_ledger))
        .outerjoin(
            entry,
            sa.and_(entry.c.topic_id == _TOPIC, entry.c.ledger == here, entry.c.entry == first_entry, unsealed),
        )
        .where(topics.c.id == _TOPIC)
    )


def _first_by_peak(by: str) -> sa.ScalarSelect[Any]:
    peak = ledgers.c[f"peak_{by}"]
    statement = sa.select(ledgers.c.ledger).where(ledgers.c.topic_id == _TOPIC, peak >= _TIME)
    return statement.order_by(peak, ledgers.c.ledger).limit(1).scalar_subquery()


def _first_by_end(by: str) -> sa.ScalarSelect[Any]:
    reaching = (ledgers.c[f"end_{by}"] >= _TIME, ledgers.c.ledger > sa.bindparam("after", type_=sa.BigInteger))
    statement = sa.select(ledgers.c.ledger).where(ledgers.c.topic_id == _TOPIC, *reaching)
    return statement.order_by(ledgers.c.ledger).limit(1).scalar_subquery()


def _first_unmeasured(by: str) -> sa.ScalarSelect[Any]:
    statement = sa.select(sa.func.min(ledgers.c.ledger)).where(
        ledgers.c.topic_id == _TOPIC,
        ledgers.c[f"peak_{by}"].is_(None),
        ledgers.c.ledger > sa.bindparam("lost", type_=sa.BigInteger),
        ledgers.c.messages > 0,
    )
    return statement.scalar_subquery()


def _largest(storage: Storage, by: str) -> int | None:
    """Read the largest time of all ledgers, measuring those without bounds first."""
    peak, end = topics.c[f"peak_{by}"], topics.c[f"end_{by}"]
    unmeasured = _first_unmeasured(by).label("unmeasured")
    statement = sa.select(peak.label("closed"), end.label("open"), unmeasured).where(topics.c.id == _TOPIC)
    lost = -1
    while True:
        with storage.backend.snapshot() as connection:
            found = connection.execute(statement, {"topic": storage.topic_id, "lost": lost}).mappings().one_or_none()
        row = storage.present(found)
        if row["unmeasured"] is None:
            return max((time for time in (row["closed"], row["open"]) if time is not None), default=None)
        if not _measured(storage, row["unmeasured"]):
            lost = row["unmeasured"]


def _largest_below(storage: Storage, by: str, time: int) -> int | None:
    """Read the largest ``end_*`` of a ledger that is before ``time``. Without an index, so it reads them all."""
    end = ledgers.c[f"end_{by}"]
    closed = sa.select(sa.func.max(end)).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.state != "lost", end < time
    )
    with storage.backend.snapshot() as connection:
        ends = [connection.execute(closed).scalar(), storage.row(connection)[f"end_{by}"]]
    return max((each for each in ends if each is not None and each < time), default=None)


def _look(storage: Storage, by: str, time: int, after: int | None, lost: int) -> sa.RowMapping:
    statement = find_statement(by, by_running_maximum=after is None)
    parameters = {"topic": storage.topic_id, "time": time, "lost": lost, "after": after}
    with storage.backend.snapshot() as connection:
        return storage.present(connection.execute(statement, parameters).mappings().one_or_none())


def _unmeasured(row: sa.RowMapping) -> int | None:
    """Name a ledger without bounds that could hold the answer: the one found, or one before it."""
    found, unmeasured = row["ledger"], row["unmeasured"]
    if unmeasured is not None and (found is None or unmeasured < found):
        return unmeasured
    return found if row["end"] is None and row["messages"] else None


def _measured(storage: Storage, ledger: int) -> bool:
    try:
        measure_ledger(storage, ledger)
    except LostFileError as error:
        path_now(storage, ledger)  # raises if the whole topic has moved
        _log.warning("find() skips ledger %d of topic %r: %s", ledger, storage.name, error)
        return False
    return True


def _place_in_entry(storage: Storage, row: sa.RowMapping, by: str, time: int, on_damage: OnDamage) -> Position:
    ledger = row["entry_ledger"]
    try:
        batch = decode_entries(ledger, [(row["entry"], row["data"])], _columns(by)).batch
    except DamagedError as error:
        Damage(storage.name, on_damage, quiet=True).meet(located(error, storage.name, ledger=ledger), 0)
        return Position(ledger, row["entry"], 0)
    first = int(np.argmax(time_column(batch, by).to_numpy() >= time))
    return Position(row["entry_ledger"], row["entry"], first)


def _place_in_file(
    storage: Storage, row: sa.RowMapping, by: str, time: int, on_damage: OnDamage, *, at_lost: bool
) -> Position | None:
    if row["end"] is None or row["end"] < time or row["state"] != "sealed":
        return None  # it is empty, or its running maximum came from a deleted ledger
    start = Position(row["ledger"], 0, 0)
    try:
        file = SealedLedger(storage, row)
        group = next(number for number, group in enumerate(file.groups) if group.peak[by] >= time)
        start = Position(row["ledger"], file.groups[group].entry, file.groups[group].index)
        table = file.read(group, [*_columns(by), "entry", "index"])
    except DamagedError as error:
        Damage(storage.name, on_damage, quiet=True).meet(error, 0)
        return start
    except LostFileError as error:
        path_now(storage, row["ledger"])  # raises if the whole topic has moved
        if at_lost:
            return start
        _log.warning("find() skips ledger %d of topic %r: %s", row["ledger"], storage.name, error)
        return None
    first = int(np.argmax(time_column(table, by).to_numpy() >= time))
    return Position(row["ledger"], table["entry"][first].as_py(), table["index"][first].as_py())


def _columns(by: str) -> tuple[str, ...]:
    return ("publish_time", "receive_time") if by == "effective_time" else (by,)
