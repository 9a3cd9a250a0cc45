"""Moves a topic's files to another store, or records the new location of a store that was moved.

A topic's files are copied under the same names, read back and compared. Then one transaction takes the topic's lock,
and checks that every file of the topic's ledgers was copied. If every file was copied, the transaction switches the
topic to the new store. A sealer or compactor that still has the former store open fails when it commits
(`pending_files.forget_pending`). Readers find the former files during the grace time. After a kill at any point, the
topic lies wholly in one of the two stores.

Each copy is recorded before it is written, as `IDENTITY:NAME`, the form for files in another store. If a relocation is
killed, the next one takes over its files, or a sweep removes them once its lease has ended.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.schema.topic_catalogue import files as file_rows
from waterclock.database.schema.topic_catalogue import ledgers, stores, topics
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.topics.catalogue import pending_files
from waterclock.topics.catalogue.ledgers import sealed_paths
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stores import new_store, place_columns, record_store
from waterclock.topics.store import roots
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError, StoreError
from waterclock.topics.store.ledger_root import LedgerRoot
from waterclock.topics.upkeep import retention
from waterclock.topics.upkeep.sweeping import sweep

AT_ONCE = 8
"""Files that are copied or checked at the same time."""

LEASE = 3_600_000_000_000
"""How long the copies of a failed or killed relocation stay, ns, so that a repeated one finds them."""

_PIECE = 4 << 20

Progress = Callable[[int, int], None]
"""Called with the number of finished files and the number of all files."""


class Relocated(NamedTuple):
    """The result of a relocation.

    Attributes
    ----------
    root
        The files' new root, without credentials and options.
    copied
        How many files were copied; 0 if the store itself was moved there.
    found
        How many files were found there with the right contents, or with the right size in a store that was moved there.
    """

    root: str
    copied: int
    found: int


def relocate_topic(
    storage: Storage, root: str, filesystem: Any, progress: Progress | None
) -> tuple[LedgerFiles, Relocated]:
    """Relocate a topic's files to ``root``, as `Topic.relocate` describes; return their store and the outcome."""
    place = LedgerRoot(root, None if filesystem is None else roots.wrapped(filesystem))
    there = place.needed(storage.backend)
    identity = there.marker()
    step = progress or (lambda _done, _all: None)
    if identity is not None and identity == _identity(storage):
        return _point_to(storage, there.at_identity(identity), step)
    return _move(storage, new_store(storage.backend, place), step)


def _identity(storage: Storage) -> str | None:
    statement = sa.select(stores.c.identity).join_from(topics, stores, topics.c.store_id == stores.c.id)
    with storage.backend.snapshot() as connection:
        return connection.execute(statement.where(topics.c.id == storage.topic_id)).scalar()


def _point_to(storage: Storage, there: LedgerFiles, step: Progress) -> tuple[LedgerFiles, Relocated]:
    """Record the store's new location, if all of the topic's files are found there."""
    _refuse_copy_of_store(storage, there)
    found: dict[str, int] = {}
    while missing := _missing(sealed_paths(storage), found):
        _for_all(missing, partial(_insist_on_size, there), step)
        found |= missing
    statement = sa.update(stores).where(stores.c.identity == there.identity).values(place_columns(there))
    storage.backend.transact(lambda connection: connection.execute(statement))
    files = LedgerFiles(there.root, there.filesystem, identity=there.identity)
    return files, Relocated(files.place, 0, len(found))


def _missing(paths: Mapping[str, int], done: Mapping[str, int]) -> dict[str, int]:
    return {path: size for path, size in paths.items() if path not in done}


def _insist_on_size(there: LedgerFiles, path: str, size: int) -> int:
    found = there.size_if_there(path)
    if found is None:
        raise LostFileError(f"cannot relocate the topic: {there.name(path)} is missing")
    if found != size:
        raise LostFileError(
            f"cannot relocate the topic: {there.name(path)} is corrupt: expected {size} bytes, found {found}"
        )
    return 0


def _refuse_copy_of_store(storage: Storage, there: LedgerFiles) -> None:
    """Refuse a store if a copy is left at the former place: a process that has it open would write there."""
    here = storage.files
    try:
        if here.identity != there.identity or here.marker() != here.identity:
            return
        # Written to the former place, where a sweep looks for it if this process is killed.
        probe = f"waterclock-probe-{secrets.token_hex(8)}"
        storage.backend.transact(partial(_record_probe, storage, probe))
        try:
            with here.create(probe) as sink:
                sink.write(b"-")
            same_place = there.size_if_there(probe) is not None
        finally:
            here.delete(probe)
            forget = sa.delete(file_rows).where(file_rows.c.path == probe)
            storage.backend.transact(lambda connection: connection.execute(forget))
    except StoreError:
        return  # the former place cannot be reached, as expected
    if not same_place:
        raise InvalidArgumentError(
            f"root must not hold a copy of the store at {here.place}, got {there.place}, which has the same"
            " marker. Rename the old store and relocate again, or remove the copy's marker so that its files are"
            " compared and adopted"
        )


def _record_probe(storage: Storage, probe: str, connection: sa.Connection) -> None:
    _, now = storage.lock(connection)
    values = _row(storage, probe) | {"owner": probe, "until": now + pending_files.LEASE}
    connection.execute(sa.insert(file_rows), values)


def _row(storage: Storage, path: str) -> dict[str, object]:
    named = pending_files.ledgers_named(path.rpartition(":")[2])
    return {"path": path, "topic_id": storage.topic_id, "ledger": named[0] if named else 0, "state": "copied"}


class _Copies:
    """The files that a relocation writes into another store or takes over there, and their lease."""

    def __init__(self, storage: Storage, there: LedgerFiles) -> None:
        self.storage = storage
        self.there = there
        self.owner = secrets.token_hex(8)
        self.taken_over: set[str] = set()
        self.written: set[str] = set()
        self._turn = threading.Lock()
        self._renew_at = moments.monotonic_ns() + LEASE // 3

    @property
    def prefix(self) -> str:
        return f"{self.there.identity}:"

    @property
    def in_store(self) -> tuple[sa.ColumnElement[bool], ...]:
        """The condition for all rows of the topic's files in the store."""
        return file_rows.c.topic_id == self.storage.topic_id, file_rows.c.path.like(f"{self.prefix}%")

    @property
    def ours(self) -> tuple[sa.ColumnElement[bool], ...]:
        """The condition for the rows of this relocation."""
        return file_rows.c.topic_id == self.storage.topic_id, file_rows.c.owner == self.owner

    def of_ledgers(self) -> sa.ColumnElement[bool]:
        """Return the condition for rows of files that the topic's ledgers have."""
        paths = sa.select(sa.literal(self.prefix) + ledgers.c.path)
        return file_rows.c.path.in_(paths.where(ledgers.c.topic_id == self.storage.topic_id, ledgers.c.path != ""))

    def renew(self) -> None:
        """Renew the lease of all copies if a third of it is over."""
        with self._turn:
            if moments.monotonic_ns() < self._renew_at:
                return
            self._renew_at = moments.monotonic_ns() + LEASE // 3
        self.storage.backend.transact(self.renew_in)

    def renew_in(self, connection: sa.Connection) -> int:
        """Renew the lease of all copies; return how many there are."""
        until = self.storage.backend.now(connection) + LEASE
        return connection.execute(sa.update(file_rows).where(*self.ours).values(until=until)).rowcount

    def let_go(self) -> None:
        """Leave the copies of a failed relocation to the next one, or to a sweep."""
        storage, there = self.storage, self.there

        def leave(connection: sa.Connection) -> None:
            _, now = storage.lock(connection)
            until = now + LEASE if there.is_complete else -1
            values = {"state": "deleted", "owner": "", "until": until}
            connection.execute(sa.update(file_rows).where(*self.ours).values(values))

        try:
            storage.backend.transact(leave)
        except NotFoundError:  # the topic was removed, and its rows with it
            for path in self.written:
                there.delete(path)
            return
        if not there.is_complete and there.identity is not None:
            sweep(storage, at_hand={there.identity: there})  # later no process could open that store


def _move(storage: Storage, there: LedgerFiles, step: Progress) -> tuple[LedgerFiles, Relocated]:
    """Copy the topic's files into another store, and switch the topic to it."""
    here = storage.files
    store = record_store(storage.backend, there)
    copies = _Copies(storage, there)
    try:
        done, copied = _copy_all(copies, store, step)
    except (Exception, KeyboardInterrupt) as error:
        try:
            copies.let_go()
        except UnavailableError as second:
            error.add_note(f"the next sweep removes the copies in {there.place}: {second}")
        raise
    if not here.is_complete and here.identity is not None:
        # Later no process could open the former store.
        sweep(replace(storage, files=there), at_hand={here.identity: here})
    return there, Relocated(there.place, copied, done - copied)


def _copy_all(copies: _Copies, store: int, step: Progress) -> tuple[int, int]:
    """Copy files until the topic can be switched; return how many are there, and how many of them were copied."""
    storage = copies.storage
    here = storage.files
    copies.taken_over = storage.backend.transact(partial(_take_back, copies))
    done: dict[str, int] = {}
    copied = 0
    while True:
        missing = _missing(sealed_paths(storage), done)
        if missing:
            here.check()
        copied += _for_all(missing, partial(_copy, copies), step)
        done |= missing
        if storage.backend.transact(partial(_turn_over, copies, store, set(done))):
            return len(done), copied


def _take_back(copies: _Copies, connection: sa.Connection) -> set[str]:
    """Take over files that an earlier relocation left in this store and that ledgers have; return their rows' paths."""
    storage = copies.storage
    _, now = storage.lock(connection)
    removing = (file_rows.c.state == "deleted", file_rows.c.owner != "", file_rows.c.until > now)
    going = sa.select(file_rows.c.path).where(*copies.in_store, *removing)
    if connection.execute(going.limit(1)).one_or_none() is not None:
        raise UnavailableError(
            f"cannot relocate topic {storage.name!r}: its former files in {copies.there.place} are being"
            " removed. Try again in a minute"
        )
    taken = {"state": "copied", "owner": copies.owner, "until": now + LEASE}
    free = sa.not_(sa.and_(*removing))  # a sweep does not take our lock
    connection.execute(sa.update(file_rows).where(*copies.in_store, copies.of_ledgers(), free).values(taken))
    return set(connection.execute(sa.select(file_rows.c.path).where(*copies.ours)).scalars())


def _record_copy(copies: _Copies, path: str, connection: sa.Connection) -> None:
    """Record a file that is about to be written."""
    storage, name = copies.storage, copies.prefix + path
    _, now = storage.lock(connection)
    storage.refuse_moved(connection)
    owner = connection.execute(sa.select(file_rows.c.owner).where(file_rows.c.path == name)).scalar()
    if owner is None:
        values = _row(storage, name) | {"owner": copies.owner, "until": now + LEASE}
        connection.execute(sa.insert(file_rows), values)
    elif owner != copies.owner:
        raise _taken_over(copies)


def _taken_over(copies: _Copies) -> UnavailableError:
    return UnavailableError(
        f"cannot relocate topic {copies.storage.name!r} to {copies.there.place}: another process is copying or"
        " removing its files there. Try again in a minute"
    )


def _for_all(paths: Mapping[str, int], work: Callable[[str, int], int], step: Progress) -> int:
    """Call a function for each file, several at a time; return the sum of its results."""
    total = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tasks = [pool.submit(work, path, size) for path, size in paths.items()]
        try:
            for number, task in enumerate(as_completed(tasks), 1):
                total += task.result()
                step(number, len(tasks))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return total


def _copy(copies: _Copies, path: str, size: int) -> int:
    """Copy a file, read it back and compare; return 1, or 0 if it was there already."""
    here, there = copies.storage.files, copies.there
    copies.renew()
    if there.size_if_there(path) == size and _digest(there, path) == _digest(here, path):
        return 0
    copies.storage.backend.transact(partial(_record_copy, copies, path))
    copies.written.add(path)
    digest = hashlib.sha256()
    count = 0
    with there.create(path) as sink:
        for piece in _pieces(here, path):
            copies.renew()
            sink.write(piece)
            digest.update(piece)
            count += len(piece)
    if count != size:
        raise LostFileError(f"the ledger file {here.name(path)} is corrupt: expected {size} bytes, found {count}")
    if _digest(there, path) != digest.digest():
        raise UnavailableError(f"{there.name(path)} differs from the data that was written to it")
    return 1


def _digest(files: LedgerFiles, path: str) -> bytes:
    digest = hashlib.sha256()
    for piece in _pieces(files, path):
        digest.update(piece)
    return digest.digest()


def _pieces(files: LedgerFiles, path: str) -> Iterator[bytes]:
    with files.open(path) as file:
        try:
            while piece := file.read(_PIECE):
                yield piece
        except OSError as error:
            raise UnavailableError(f"cannot read {files.name(path)}: {roots.first_line(error, files.root)}") from error


def _turn_over(copies: _Copies, store: int, copied: set[str], connection: sa.Connection) -> bool:
    """Switch the topic to the new store, if all of its files were copied."""
    storage = copies.storage
    row, now = storage.lock(connection)
    if row["store_id"] == store:
        return True  # already done, but the answer was lost
    storage.refuse_moved(connection)
    sealed = (ledgers.c.topic_id == storage.topic_id, ledgers.c.path.is_not(None))
    paths = {
        path: ledger for ledger, path in connection.execute(sa.select(ledgers.c.ledger, ledgers.c.path).where(*sealed))
    }
    if not paths.keys() <= copied:
        return False
    recorded = copies.taken_over | {copies.prefix + path for path in copies.written}
    others = sa.select(file_rows.c.path).where(*copies.in_store, copies.of_ledgers(), file_rows.c.owner != copies.owner)
    # Once renewed, no sweep can claim them before this transaction ends.
    if copies.renew_in(connection) != len(recorded) or connection.execute(others.limit(1)).one_or_none() is not None:
        raise _taken_over(copies)
    former = connection.execute(sa.select(stores.c.identity).where(stores.c.id == row["store_id"])).scalar_one()
    mine = (file_rows.c.topic_id == storage.topic_id, file_rows.c.path.not_like("%:%"))
    # Also those being written there: their owners can no longer commit them, and their ledgers are free.
    there = {"path": sa.literal(f"{former}:") + file_rows.c.path, "state": "deleted"}
    connection.execute(sa.update(file_rows).where(*mine).values(there))
    left = {f"{former}:{path}": ledger for path, ledger in paths.items()}
    grace = retention.GRACE if storage.files.is_complete else -1
    retention.leave_for_sweep(storage, connection, left, now + grace)
    connection.execute(sa.delete(file_rows).where(*copies.ours, copies.of_ledgers()))
    gone = {"state": "deleted", "owner": "", "until": now + retention.GRACE}  # compacted or deleted meanwhile
    connection.execute(sa.update(file_rows).where(*copies.ours).values(gone))
    name = sa.func.substr(file_rows.c.path, len(copies.prefix) + 1)
    connection.execute(sa.update(file_rows).where(*copies.in_store).values(path=name))
    connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(store_id=store))
    return True
