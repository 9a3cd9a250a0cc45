"""``waterclock topic`` creates topics, appends to them, reads them and finds a time.

The commands that maintain their files are in `waterclock.cli.topics.upkeep`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from waterclock._support import moments
from waterclock._support.quoting import counted, in_a_line
from waterclock.cli.terminal.common import Common, TopicName
from waterclock.cli.terminal.output import span
from waterclock.cli.topics import exporting, upkeep
from waterclock.errors import InvalidArgumentError, UnavailableError, WaterclockError
from waterclock.message import Message, Position
from waterclock.time import MAX_NS, MIN_NS, TimeUnit, format_time
from waterclock.topics.model.literals import By, OnAhead

if TYPE_CHECKING:
    from waterclock.topics.catalogue.ledgers import LedgerInfo
    from waterclock.topics.catalogue.topic_info import TopicInfo
    from waterclock.topics.topic import Topic

app = App(name="topic")
for command in (
    exporting.export,
    upkeep.roll,
    upkeep.seal,
    upkeep.compact,
    upkeep.expire,
    upkeep.truncate,
    upkeep.forget,
    upkeep.files,
    upkeep.relocate,
    upkeep.verify,
    upkeep.repair,
):
    app.command(command)

FOLLOW_EVERY = 0.2
"""Seconds between two checks of ``--follow`` for new messages."""

_PAGE = 1000
_REASONS = 10  # maximum rejected messages whose reason is printed
_SUMMARY = ("name", "ledgers", "messages", "size")
_LAGS_SHOWN = 10  # in JSON
_TIMES = ("event_time", "publish_time", "receive_time")
_BOUNDS = tuple(f"{end}_{kind}" for kind in _TIMES for end in ("begin", "end"))
_LEDGER_COLUMNS = ("ledger", "state", "entries", "messages", "size", "first_ordinal", *_BOUNDS, "file")


@app.command
def add(
    name: str,
    /,
    *,
    roll_after: str = "1h",
    roll_size: int = 64 << 20,
    retention: str | None = None,
    max_ahead: str | None = None,
    on_ahead: OnAhead = "reject",
    exist_ok: bool = False,
    common: Common = Common(),
) -> None:
    """Create a topic.

    Parameters
    ----------
    name
        Its name.
    roll_after
        How long a ledger stays open at most.
    roll_size
        Bytes at which the open ledger is closed.
    retention
        How long messages are kept; forever unless given.
    max_ahead
        How far ahead of the database's clock a publish or receive time may be, for example 5m; any unless given.
    on_ahead
        What to do with a message that is further ahead: reject leaves it out, keep writes it with a warning.
    exist_ok
        Do nothing if the topic exists already.
    """
    with common.connect(create=None) as database:
        topic = database.create_topic(
            name,
            roll_after=roll_after,
            roll_size=roll_size,
            retention=retention,
            max_ahead=max_ahead,
            on_ahead=on_ahead,
            exist_ok=exist_ok,
        )
        common.output.talk(f"topic {topic.name} exists")


@app.command
def alter(
    name: TopicName,
    /,
    *,
    roll_after: str | None = None,
    roll_size: int | None = None,
    retention: str | None = None,
    max_ahead: str | None = None,
    on_ahead: OnAhead | None = None,
    unset: list[str] | None = None,
    common: Common = Common(),
) -> None:
    """Change options; others keep their values. Appends and upkeep follow within a second.

    Parameters
    ----------
    roll_after
        Age at which the open ledger is closed.
    roll_size
        Bytes at which the open ledger is closed.
    retention
        How long messages are kept.
    max_ahead
        How far ahead of the database's clock a publish or receive time may be.
    on_ahead
        What happens to a message that is further ahead: reject leaves it out, keep writes it with a warning.
    unset
        An option to remove, for example retention; may be given several times.
    """
    given = {
        "roll_after": roll_after,
        "roll_size": roll_size,
        "retention": retention,
        "max_ahead": max_ahead,
        "on_ahead": on_ahead,
    }
    changes: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    changes |= {option.replace("-", "_"): None for option in unset or []}
    if not changes:
        raise InvalidArgumentError("cannot alter the topic: no option was given. Pass at least one option")
    with common.connect() as database:
        database.topic(name).alter(**changes)
        common.output.talk(f"changed {', '.join(changes)} of {name}")


@app.command
def rename(name: TopicName, new_name: str, /, *, common: Common = Common()) -> None:
    """Rename a topic. Processes that have it open continue; the old name no longer works.

    Parameters
    ----------
    new_name
        Its name from now on.
    """
    with common.connect() as database:
        topic = database.topic(name)
        topic.rename(new_name)
        common.output.talk(f"renamed topic {name} to {topic.name}")


@app.command
def ls(*, limit: int | None = None, common: Common = Common()) -> None:
    """List the topics.

    Parameters
    ----------
    limit
        At most this many.
    """
    from waterclock.topics.reading.reading import check_limit

    with common.connect() as database:
        infos = database.topic_infos()[: check_limit(limit)]
        common.output.rows(map(_summary, infos), _SUMMARY)


@app.command
def info(name: str, /, *, common: Common = Common()) -> None:
    """Show a topic's size, its first and last times, its end, and the streams that lag most."""
    with common.connect() as database:
        topic = database.topic(name)
        facts, bounds = topic.info, topic.bounds
        times: dict[str, str | dict[str, str] | None] = dict.fromkeys(_TIMES)
        if bounds is not None:
            for kind in _TIMES:
                begin, end = format_time(bounds.begin[kind]), format_time(bounds.end[kind])
                times[kind] = {"begin": begin, "end": end} if common.json else f"{begin} to {end}"
        limits = {
            "roll_after": span(facts.roll_after),
            "roll_size": facts.roll_size,
            "retention": span(facts.retention),
            "max_ahead": span(facts.max_ahead),
            "on_ahead": facts.on_ahead,
        }
        lag = {"lag": _lag(topic, as_json=common.json)}
        common.output.facts(_summary(facts) | {"head": facts.head} | times | lag | limits)


def _lag(topic: Topic, *, as_json: bool) -> object:
    """Return how far event times of the newest messages lie behind their receive times, for the worst streams."""
    from waterclock.ingest.topic_lags import topic_lags

    try:
        lags = sorted(topic_lags(topic), key=lambda lag: -lag.largest)
    except UnavailableError:
        return None
    if not as_json:
        shown = (f"{in_a_line(f'{lag.source} {lag.stream}')} {lag.largest / 1e9:,.3f} s" for lag in lags[:3])
        return ", ".join(shown) or None
    return [
        {"source": lag.source, "stream": lag.stream, "smallest": lag.smallest / 1e9, "largest": lag.largest / 1e9}
        for lag in lags[:_LAGS_SHOWN]
    ]


@app.command
def append(
    name: TopicName,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-",
    /,
    *,
    producer: str | None = None,
    max_payload: int | None = None,
    time_unit: TimeUnit = "ns",
    common: Common = Common(),
) -> None:
    """Append the messages of a file: JSON lines, .csv or .parquet; - is standard input.

    A file or part of a file is not appended twice: the command continues after the last appended message. Exit code 1
    if the topic rejected some of its messages.

    Parameters
    ----------
    file
        The messages, one per line: {"source": "a", "stream": "load", "event_time": "…Z", "payload": "17"}.
    producer
        The producer's name; messages that it appended before, counted from the first of the file, are skipped. If
        omitted, a file is recognised by its first messages, and standard input is appended in full.
    max_payload
        Maximum size of a payload in bytes; 64 MiB unless given.
    time_unit
        Unit of integer times, since 1970.
    """
    from waterclock.cli.topics.appending import append_file
    from waterclock.ingest.files import MAX_PAYLOAD, MessageFile

    messages = MessageFile(file, MAX_PAYLOAD if max_payload is None else max_payload, time_unit)
    with common.connect() as database:
        topic = database.topic(name)
        with common.output.progress(f"appending to {name}") as progress:
            done = append_file(topic, messages, producer, progress)
        before = f", skipped {done.before} that were already appended" if done.before else ""
        common.output.talk(f"appended {counted(done.appended, 'message')}{before}; the topic now ends at {topic.head}")
        if done.rejected:
            reasons = [f"message {each.index + 1}: {each.reason}" for each in done.rejected[:_REASONS]]
            more = [f"and {len(done.rejected) - _REASONS} more"] if len(done.rejected) > _REASONS else []
            said = f"rejected {len(done.rejected)} of {done.given} messages"
            raise WaterclockError("\n".join([said, *reasons, *more]))


@app.command
def read(
    name: TopicName,
    /,
    *,
    start: str | None = None,
    stop: str | None = None,
    since: str | None = None,
    until: str | None = None,
    by: By = "publish_time",
    where_time: Annotated[bool, Parameter(negative="")] = False,
    limit: int | None = None,
    follow: bool = False,
    common: Common = Common(),
) -> None:
    """Print messages, one per line.

    Begins at the first message at or after --since, and stops before the first one at or after --until. If times are
    out of order, some messages between these two are outside the time range, and some in the range are elsewhere.
    --where-time filters by each message's own time instead.

    Parameters
    ----------
    start
        First position, ledger:entry:index.
    stop
        Position before which to stop.
    since
        First time: with offset, or a duration such as 2h for that long ago.
    until
        Time before which to stop.
    by
        The time of a message to which --since and --until refer; effective_time is the smaller of its publish and
        receive time.
    where_time
        Print the messages whose own time is in the range from --since to before --until, wherever they are.
    limit
        At most this many messages.
    follow
        Continue with messages that are appended later, until interrupted.
    """
    with common.connect() as database:
        topic = database.topic(name)
        output = common.output
        if where_time:
            if start is not None or stop is not None or follow:
                raise InvalidArgumentError(
                    "--where-time cannot be combined with --start, --stop or --follow. Use --since and --until"
                )
            for message in _within(topic, since, until, by, limit):
                output.message(message)
            return
        messages = topic.read(
            None if start is None else Position.parse(start),
            None if stop is None else Position.parse(stop),
            since=since,
            until=until,
            by=by,
            limit=limit,
        )
        is_outside = _outside(topic, since, until, by)
        following = Position.parse(start) if start is not None else topic.find(since, by).position if since else None
        outside = printed = 0
        for message in messages:
            output.message(message)
            following = _behind(message)
            printed += 1
            outside += is_outside(message)
        if outside:
            output.talk(
                f"{outside} of {printed} messages have {_article(by)} outside the range. To filter by this time, use"
                " --where-time"
            )
        while follow:
            sys.stdout.flush()
            moments.sleep(FOLLOW_EVERY)
            for message in topic.read(following or Position(0, 0, 0)):
                output.message(message)
                following = _behind(message)


@app.command
def find(
    name: TopicName,
    moment: str,
    /,
    *,
    by: By = "publish_time",
    common: Common = Common(),
) -> int:
    """Find the first message at or after a time, and print its times. Exit code 1 if none is found.

    Parameters
    ----------
    moment
        A time with offset, or a duration such as 2h for that long ago.
    by
        The time of a message to search by; effective_time is the smaller of its publish and receive time.
    """
    with common.connect() as database:
        topic = database.topic(name)
        found = topic.find(moment, by=by)
        facts: dict[str, Any] = {"position": found.position, "found": found.found, "by": by}
        message = next(topic.read(found.position, limit=1), None) if found.found else None
        for kind in _TIMES:
            time = None if message is None else getattr(message, kind)
            facts[kind] = None if time is None else format_time(time)
        common.output.facts(facts)
        return 0 if found.found else 1


@app.command
def ledgers(name: TopicName, /, *, start: int = 0, limit: int | None = None, common: Common = Common()) -> None:
    """List a topic's ledgers with their bounds in time.

    Parameters
    ----------
    start
        Number of the ledger to begin at.
    limit
        At most this many; others are not read.
    """
    from waterclock.topics.model.names import check_integer
    from waterclock.topics.reading.reading import check_limit

    with common.connect() as database:
        listed = _listed(database.topic(name), check_integer(start, "start"), check_limit(limit))
        common.output.rows(_ledger_rows(listed), _LEDGER_COLUMNS)


@app.command
def rm(name: str, /, *, common: Common = Common()) -> None:
    """Remove a topic with its messages, files, subscriptions and producers."""
    with common.connect() as database:
        topic = database.topic(name)
        common.confirm(f"remove topic {name} and everything in it")
        topic.remove()
        common.output.talk(f"removed topic {name}")


def _within(topic: Topic, since: str | None, until: str | None, by: By, limit: int | None) -> Iterator[Message]:
    from waterclock.arrow import from_arrow
    from waterclock.topics.reading.reading import check_limit
    from waterclock.topics.reading.selecting import select_by_time

    batches = select_by_time(topic.storage, *_times(topic, since, until), by)
    messages = (message for batch in batches for message in from_arrow(batch))
    return islice(messages, check_limit(limit))


def _times(topic: Topic, since: str | None, until: str | None) -> tuple[int, int]:
    """Return a range of time in ns; an omitted side is open."""
    time = topic.storage.time
    return MIN_NS if since is None else time(since, "since"), MAX_NS + 1 if until is None else time(until, "until")


def _outside(topic: Topic, since: str | None, until: str | None, by: By) -> Callable[[Message], bool]:
    """Return a function that tells whether a message's own time is outside a range."""
    first, last = _times(topic, since, until)

    def is_outside(message: Message) -> bool:
        publish, receive = message.publish_time, message.receive_time
        times = {"event_time": message.event_time, "publish_time": publish, "receive_time": receive}
        time = min(publish or 0, receive or 0) if by == "effective_time" else times[by] or 0
        return not first <= time < last

    return is_outside


def _article(by: By) -> str:
    return f"{'an' if by.startswith('e') else 'a'} {by}"


def _behind(message: Message) -> Position:
    ledger, entry, index = message.position or Position(0, 0, 0)
    return Position(ledger, entry, index + 1)


def _summary(info: TopicInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in _SUMMARY}


def _listed(topic: Topic, start: int, limit: int | None) -> Iterator[LedgerInfo]:
    """Read a page at a time, so that a long listing begins at once and is never completely in memory."""
    while limit is None or limit > 0:
        page = topic.ledgers(start, min(_PAGE, limit or _PAGE))
        yield from page
        if not page or page[-1].state == "open":
            return
        start = page[-1].ledger + 1
        limit = None if limit is None else limit - len(page)


def _ledger_rows(ledgers: Iterable[LedgerInfo]) -> Iterator[dict[str, Any]]:
    for ledger in ledgers:
        row: dict[str, Any] = {name: getattr(ledger, name, None) for name in _LEDGER_COLUMNS}
        bounds = ledger.bounds
        if bounds:
            for kind in _TIMES:
                row[f"begin_{kind}"] = format_time(bounds.begin[kind])
                row[f"end_{kind}"] = format_time(bounds.end[kind])
        yield row
