"""``waterclock topic``: make topics, append to them, read them, find a moment, seal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from cyclopts import App

from waterclock.cli.common import Common
from waterclock.ingest.files import read_messages
from waterclock.message import Position
from waterclock.time import format_time, system_clock, to_time
from waterclock.topics.ledgers import LedgerInfo

app = App(name="topic", help="Logs of messages, found by time.")

_TIMES = ("event_time", "publish_time", "receive_time")
_BOUNDS = tuple(f"{end}_{time}" for time in _TIMES for end in ("begin", "end"))
_LEDGER_COLUMNS = ("ledger", "state", "entries", "messages", "size", "first_ordinal", *_BOUNDS, "file")


@app.command
def add(
    name: str,
    /,
    *,
    roll_after: str = "1h",
    roll_size: int = 64 << 20,
    retention: str | None = None,
    exist_ok: bool = False,
    common: Common = Common(),  # noqa: B008  # immutable
) -> None:
    """Make a topic.

    Parameters
    ----------
    name
        Its name.
    roll_after
        How long a ledger stays open at the most.
    roll_size
        Bytes at which the open ledger is closed.
    retention
        How long messages are kept; for ever unless given.
    exist_ok
        Do nothing where the topic exists already.
    """
    with common.connect(create=True) as database:
        topic = database.create_topic(
            name, roll_after=roll_after, roll_size=roll_size, retention=retention, exist_ok=exist_ok
        )
        common.output.talk(f"topic {topic.name} is there")


@app.command
def ls(*, common: Common = Common()) -> None:  # noqa: B008  # immutable
    """List the topics."""
    with common.connect() as database:
        rows = [_summary(name, database.topic(name).ledgers()) for name in database.topics()]
        common.output.rows(rows, ("name", "ledgers", "messages", "size"))


@app.command
def info(name: str, /, *, common: Common = Common()) -> None:  # noqa: B008  # immutable
    """Show what a topic holds, from when to when, and where it ends."""
    with common.connect() as database:
        topic = database.topic(name)
        ledgers = topic.ledgers()
        bounds = [ledger.bounds for ledger in ledgers if ledger.bounds]
        times: dict[str, str | None] = dict.fromkeys(_TIMES)
        if bounds:
            for time in _TIMES:
                first, last = min(b.begin[time] for b in bounds), max(b.end[time] for b in bounds)
                times[time] = f"{format_time(first)} to {format_time(last)}"
        common.output.facts(_summary(name, ledgers) | {"head": topic.head} | times)


@app.command
def append(name: str, /, file: str = "-", *, common: Common = Common()) -> None:  # noqa: B008  # immutable
    """Append the messages of a file: JSON lines, or .parquet; - is standard input.

    Parameters
    ----------
    name
        The topic.
    file
        Where the messages are, a line each: {"source": "a", "stream": "load", "event_time": "…Z", "payload": "17"}.
    """
    with common.connect() as database:
        topic = database.topic(name)
        count = 0
        for chunk in read_messages(file):
            appended = topic.append(chunk)
            count += appended.count
        common.output.talk(f"appended {count} messages; the topic now ends at {topic.head}")


@app.command
def read(
    name: str,
    /,
    *,
    start: str | None = None,
    stop: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
    common: Common = Common(),  # noqa: B008  # immutable
) -> None:
    """Print messages, one a line.

    Parameters
    ----------
    name
        The topic.
    start
        First position, ledger:entry:index.
    stop
        Position before which to stop.
    since
        First publish time: a time with offset, or a duration such as 2h for that long ago.
    until
        Publish time before which to stop.
    limit
        At most this many messages.
    """
    with common.connect() as database:
        now = system_clock()
        messages = database.topic(name).read(
            None if start is None else Position.parse(start),
            None if stop is None else Position.parse(stop),
            since=None if since is None else to_time(since, "since", now=now),
            until=None if until is None else to_time(until, "until", now=now),
            limit=limit,
        )
        output = common.output
        for message in messages:
            output.message(message)


@app.command
def find(
    name: str,
    time: str,
    /,
    *,
    by: Literal["publish_time", "event_time", "receive_time"] = "publish_time",
    common: Common = Common(),  # noqa: B008  # immutable
) -> int:
    """Find the first message at or after a time. Exit code 1 where there is none yet.

    Parameters
    ----------
    name
        The topic.
    time
        A time with offset, or a duration such as 2h for that long ago.
    by
        Which of a message's times is meant.
    """
    with common.connect() as database:
        found = database.topic(name).find(to_time(time, now=system_clock()), by=by)
        common.output.facts({"position": found.position, "found": found.found})
        return 0 if found.found else 1


@app.command
def ledgers(name: str, /, *, common: Common = Common()) -> None:  # noqa: B008  # immutable
    """List a topic's ledgers with their bounds in time."""
    with common.connect() as database:
        common.output.rows(_ledger_rows(database.topic(name).ledgers()), _LEDGER_COLUMNS)


@app.command
def roll(name: str, /, *, common: Common = Common()) -> None:  # noqa: B008  # immutable
    """Close the open ledger and open the next one."""
    with common.connect() as database:
        topic = database.topic(name)
        topic.roll()
        common.output.talk(f"the topic goes on at {topic.head}")


@app.command
def seal(name: str, /, *, common: Common = Common()) -> None:  # noqa: B008  # immutable
    """Write every closed ledger to Parquet."""
    with common.connect() as database:
        common.output.talk(f"sealed {database.topic(name).seal()} ledgers")


def _summary(name: str, ledgers: list[LedgerInfo]) -> dict[str, Any]:
    return {
        "name": name,
        "ledgers": len(ledgers),
        "messages": sum(ledger.messages for ledger in ledgers),
        "size": sum(ledger.size for ledger in ledgers),
    }


def _ledger_rows(ledgers: list[LedgerInfo]) -> Iterator[dict[str, Any]]:
    for ledger in ledgers:
        row: dict[str, Any] = {name: getattr(ledger, name, None) for name in _LEDGER_COLUMNS}
        if ledger.bounds:
            for time in _TIMES:
                row[f"begin_{time}"] = format_time(ledger.bounds.begin[time])
                row[f"end_{time}"] = format_time(ledger.bounds.end[time])
        yield row
