"""Verifies a topic: checks that everything in the catalogue exists and is intact.

The catalogue's rows are checked against one another, then each file against the catalogue, several at a time. A topic
may be in use meanwhile: ledgers that were sealed, compacted or deleted since the verification began are not faults.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock._support.quoting import counted
from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.database.schema.topic_catalogue import BOUNDED, entries, ledgers
from waterclock.errors import DamagedError
from waterclock.time import MIN_NS
from waterclock.topics.catalogue.pending_files import new_file
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import is_lost
from waterclock.topics.format.entries import decode_entries
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.model.counter import Counter
from waterclock.topics.verifying.faults import Fault, Progress, Verified
from waterclock.topics.verifying.importing import is_of_another, orphans
from waterclock.topics.verifying.verifying_files import check_file

FILES_AT_ONCE = 8
"""Files that are read at the same time: a store on another machine answers several as fast as one."""

_FACTS = ("ledger", "state", "entries", "messages", "first_ordinal", "path")


class _Checked(NamedTuple):
    """The result for one piece: its faults, and how many entries and messages it holds."""

    faults: list[Fault]
    entries: int = 0
    messages: int = 0


def verify_topic(storage: Storage, *, deep: bool = False, progress: Progress | None = None) -> Verified:
    """Check a topic's rows against one another, and its files against the rows.

    Raises `UnavailableError` if the store or the database cannot be reached, or is another one: that is not a fault.

    Parameters
    ----------
    deep
        Read every byte and compare it with its checksum, and every bound with the messages. Otherwise check that files
        exist with the right length and an intact footer, and that numbers and bounds agree.
    progress
        Called with the number of finished files and unsealed ledgers, and the number of all.
    """
    storage.files.check()
    rows, topic = _catalogue(storage)
    counter = Counter.of_row(topic)
    faults = [*check_succession(rows, topic), *check_peaks(rows)]
    by_path: dict[str, list[int]] = defaultdict(list)
    unsealed = [counter.ledger]
    for row in rows:
        if row["state"] == "sealed" and row["path"] is None:
            text = f"the catalogue does not name the file of ledger {row['ledger']}"
            faults.append(Fault("missing file", text, row["ledger"], None, row["messages"]))
        elif row["state"] == "sealed":
            by_path[row["path"]].append(row["ledger"])
        elif row["state"] == "closed":
            unsealed.append(row["ledger"])
    checked = _all_checked(storage, by_path, unsealed, deep=deep, progress=progress)
    faults += [fault for each in checked for fault in each.faults]
    faults += _orphans(storage, set(by_path))
    faults.sort(key=lambda fault: (fault.ledger is None, fault.ledger or 0, fault.entry or 0))
    readable = sum(each.messages for each in checked)
    return Verified(
        topic=storage.name,
        deep=deep,
        ledgers=len(rows) + 1,
        entries=sum(each.entries for each in checked),
        files=len(by_path),
        messages=readable,
        lost=max(topic["ordinal"] - topic["first_ordinal"] - readable - sum(fault.messages for fault in faults), 0),
        faults=tuple(faults),
    )


def _catalogue(storage: Storage) -> tuple[Sequence[sa.RowMapping], sa.RowMapping]:
    columns = [ledgers.c[name] for name in _FACTS]
    columns += [ledgers.c[f"{which}_{time}"] for which in ("end", "peak") for time in BOUNDED]
    statement = sa.select(*columns).where(ledgers.c.topic_id == storage.topic_id).order_by(ledgers.c.ledger)
    with storage.backend.snapshot() as connection:
        return connection.execute(statement).mappings().all(), storage.row(connection)


def check_succession(rows: Sequence[Mapping[Any, Any]], topic: Mapping[Any, Any]) -> Iterator[Fault]:
    """Yield a fault where ledgers do not follow one another, from their rows and the topic's."""
    ledger, ordinal = topic["first_ledger"], topic["first_ordinal"]
    open_ledger = {"ledger": topic["ledger"], "first_ordinal": topic["ordinal"] - topic["messages"], "messages": 0}
    for row in (*rows, open_ledger):
        missing = row["first_ordinal"] - ordinal
        if row["ledger"] > ledger:
            which = (
                f"ledger {ledger} is" if row["ledger"] == ledger + 1 else f"ledgers {ledger}-{row['ledger'] - 1} are"
            )
            text = f"{which} missing in the catalogue, with {counted(max(missing, 0), 'message')}"
            yield Fault("missing ledger", text, ledger, messages=max(missing, 0))
        elif missing:
            text = f"ledger {row['ledger']} begins with message {row['first_ordinal']}, not with {ordinal}"
            yield Fault("catalogue", text, row["ledger"])
        ledger, ordinal = row["ledger"] + 1, row["first_ordinal"] + row["messages"]


def check_peaks(rows: Iterable[Mapping[Any, Any]]) -> Iterator[Fault]:
    """Yield a fault for each running maximum that is too low, so that searches skip messages."""
    peak: dict[str, int] = dict.fromkeys(BOUNDED, MIN_NS)
    for row in rows:
        ends = {time: row[f"end_{time}"] for time in BOUNDED}
        if row["messages"] and row["state"] != "lost" and None in ends.values():
            yield Fault("catalogue", f"ledger {row['ledger']} has no bounds in the catalogue", row["ledger"])
            continue
        for time, end in ends.items() if row["state"] != "lost" else ():  # no search ends in a lost ledger
            peak[time] = max(peak[time], peak[time] if end is None else end)
        low = [time for time in BOUNDED if row[f"peak_{time}"] is not None and row[f"peak_{time}"] < peak[time]]
        if low:
            text = f"the running maximum of ledger {row['ledger']} is too low: {', '.join(low)}"
            yield Fault("catalogue", text, row["ledger"])


def _orphans(storage: Storage, paths: set[str]) -> Iterator[Fault]:
    """Yield unknown files next to the topic's own."""
    for folder in sorted({posixpath.dirname(path) for path in (*paths, new_file(storage, 0, 0).path)}):
        try:
            found = list(orphans(storage, folder))
        except DamagedError:
            continue  # the folder of a path outside the store, which is reported with its ledger
        for path, size in found:
            if is_of_another(storage, path):
                continue
            name = storage.files.name(path)
            yield Fault("orphan", f"the file {name} of {size} bytes is not in the catalogue", file=name)


def _all_checked(
    storage: Storage, by_path: Mapping[str, list[int]], unsealed: list[int], *, deep: bool, progress: Progress | None
) -> list[_Checked]:
    total = len(by_path) + len(unsealed)
    checked: list[_Checked] = []
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="verify") as pool:
        work = [pool.submit(_check_rows, storage, ledger, deep=deep) for ledger in unsealed]
        work += [pool.submit(_sealed, storage, path, numbers, deep=deep) for path, numbers in by_path.items()]
        try:
            for done in as_completed(work):
                checked.append(done.result())
                if progress is not None:
                    progress(len(checked), total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return checked


def _check_rows(storage: Storage, ledger: int, *, deep: bool) -> _Checked:
    """Check the entries of a ledger that is not sealed, as one snapshot shows them."""
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    with storage.backend.snapshot() as connection:
        row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
        topic = storage.row(connection)
        if row is None and topic["ledger"] != ledger:
            return _Checked([])  # deleted since
        if row is not None and row["state"] != "closed":
            again = row  # sealed since
        else:
            expected = row or {**topic, "first_ordinal": topic["ordinal"] - topic["messages"]}
            return _check_entries(storage, connection, ledger, expected, deep=deep)
    return _sealed(storage, again["path"], [ledger], deep=deep) if again["state"] == "sealed" else _Checked([])


def _sealed(storage: Storage, path: str, numbers: Sequence[int], *, deep: bool) -> _Checked:
    checked = check_file(storage, path, numbers, deep=deep)
    return _Checked(checked.faults, 0, checked.messages)


def _check_entries(
    storage: Storage, connection: sa.Connection, ledger: int, expected: Mapping[Any, Any], *, deep: bool
) -> _Checked:
    columns = [column for column in entries.c if deep or column is not entries.c.data]
    statement = (
        sa.select(*columns)
        .where(entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)
        .order_by(entries.c.entry)
    )
    faults: list[Fault] = []
    bounds: Bounds | None = None
    count = messages = number = 0
    ordinal = expected["first_ordinal"]
    for row in connection.execute(statement.execution_options(yield_per=64)).mappings():
        faults += _gap(ledger, number, row["entry"], row["first_ordinal"] - ordinal)
        number, ordinal = row["entry"] + 1, row["first_ordinal"] + row["messages"]
        count += 1
        own = Bounds.of_row(row)
        bounds = bounds if own is None else own.joined(bounds)
        if deep and not is_lost(row["data"]):
            faults += _check_entry(ledger, row, own)
        messages += 0 if deep and is_lost(row["data"]) else row["messages"]
    end = expected["first_ordinal"] + expected["messages"]
    faults += _gap(ledger, number, expected["entries"], end - ordinal)
    known = Bounds.of_row(expected)  # pyright: ignore[reportArgumentType]  # a mapping of the same names
    if not faults and bounds is not None and known != bounds:
        faults.append(Fault("catalogue", f"the bounds of ledger {ledger} do not match its entries", ledger))
    return _Checked(faults, count, messages)


def _gap(ledger: int, expected: int, found: int, messages: int) -> Iterator[Fault]:
    if found > expected:
        which = f"entry {expected} is" if found == expected + 1 else f"entries {expected}-{found - 1} are"
        text = f"{which} missing in ledger {ledger}, with {counted(max(messages, 0), 'message')}"
        yield Fault("missing entries", text, ledger, expected, max(messages, 0))
    elif messages or found < expected:
        text = f"entry {found} of ledger {ledger} does not follow the entry before it: {messages} messages between"
        yield Fault("catalogue", text, ledger, found)


def _check_entry(ledger: int, row: Mapping[Any, Any], known: Bounds | None) -> Iterator[Fault]:
    try:
        batch = decode_entries(ledger, [(row["entry"], row["data"])], MESSAGE_SCHEMA.names).batch
    except DamagedError as error:
        yield Fault("damaged", str(error), ledger, row["entry"], row["messages"])
        return
    if batch.num_rows != row["messages"]:
        text = (
            f"entry {row['entry']} of ledger {ledger} holds {counted(batch.num_rows, 'message')}, not {row['messages']}"
        )
        yield Fault("damaged", text, ledger, row["entry"], row["messages"])
    elif Bounds.of_messages(batch) != known:
        text = f"the bounds of entry {row['entry']} of ledger {ledger} do not match its messages"
        yield Fault("catalogue", text, ledger, row["entry"])
