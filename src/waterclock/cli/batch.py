"""``waterclock batch`` shows how a file or a topic is divided into batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from waterclock._support.quoting import counted, quoted
from waterclock.batching.batch import Batch, Rejection
from waterclock.batching.by_id.batcher import IdBatcher
from waterclock.batching.by_id.missing import missing_ids
from waterclock.batching.by_source import BySource
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.log_format import LogOptions
from waterclock.errors import InvalidArgumentError
from waterclock.figures.timeline import timeline
from waterclock.ingest.files import CHUNK, MAX_PAYLOAD, MessageFile, Progress
from waterclock.message import Message
from waterclock.time import MAX_NS, TimeUnit, format_time

_COLUMNS = ("id", "start", "end", "closed_at", "reason", "messages", "streams")
_WITH_RUN = ("id", "start", "end", "closed_at", "reason", "run", "messages", "streams")


def batch(
    messages: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    window: str | None = None,
    max_delay: str | None = None,
    max_lead: str = "0s",
    gap: str | None = None,
    boundary: Annotated[list[str] | None, Parameter(negative="")] = None,
    on_conflict: Literal["split", "replace", "isolate", "keep"] | None = None,
    by: Literal["event_time", "rate", "id"] = "event_time",
    id_of: str | None = None,
    stream: Annotated[list[str] | None, Parameter(negative="")] = None,
    batch_length: str = "1s",
    longest: str | None = None,
    timeout: str | None = None,
    clocks: Literal["as_sent", "align"] = "as_sent",
    max_disorder: str = "0s",
    forget_after: str | None = None,
    into: str | None = None,
    follow: Annotated[bool, Parameter(negative="")] = False,
    since: str | None = None,
    source: Annotated[list[str] | None, Parameter(negative="")] = None,
    max_skew: str = "10s",
    svg: Path | None = None,
    limit: Annotated[int | None, Parameter(name="--limit")] = None,
    max_payload: int = MAX_PAYLOAD,
    time_unit: TimeUnit = "ns",
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> None:
    """Cut messages into batches and print one line per batch, or put them into a message table.

    With --into, each batch becomes one message of the table, exactly once: if the command is killed, the next run
    continues. A replay and Spark return the same batches.

    Parameters
    ----------
    messages
        A file (.parquet, .csv, or JSON lines; - is standard input), or else the name of a topic.
    window
        Longest span of event time in a batch, for example 500ms. Required with --by event_time.
    max_delay
        How late a message may be received, for example 400ms. Required with --by event_time and --by id. By id, the
        delay counts from the first message of an id.
    max_lead
        How far ahead of the receive clock an event time may be.
    gap
        A batch also ends at a silence longer than this, for example 30s; window is then the longest session.
    boundary
        By event time and by rate, a stream whose messages cut windows and begin runs; may be given several times.
    on_conflict
        What to do if a stream has a second message in the open batch: split the batch, replace the older message,
        isolate the new one, or keep both. The default is split, or keep with --gap.
    by
        The rule: event_time; rate with --into, by the rates of the streams; or id, by an id in a header.
    id_of
        By id, the header that holds the id of a message.
    stream
        By id, a stream of each source; may be given several times. A batch with messages of all streams closes at once.
    batch_length
        By rate, the length of a batch; or adaptive: 1s at first, and longer while processing does not keep up.
    longest
        With --batch-length adaptive, the greatest length; 8s by default.
    timeout
        By rate, how long a batch waits for missing streams; inf for any time, auto to follow their delays.
    clocks
        By rate; align corrects each stream's event times by the estimated offset of its clock.
    max_disorder
        By rate, how far a message may be behind earlier messages of its stream; every batch closes later by this time.
    forget_after
        By rate, the silence after which a source begins again, for example 1h.
    into
        The message table that gets the batches, with text ids, in the topic's database.
    follow
        Continue with messages that are appended later, until interrupted; only with --into.
    since
        With --into, start the first run at the first message published at or after this time.
    source
        With --into, only messages of this source; may be given several times.
    max_skew
        With --into, how far a receive time may be behind earlier receive times.
    svg
        Draw the batches into this file.
    limit
        Read at most this many messages.
    max_payload
        Maximum size of a payload in a file, in bytes.
    time_unit
        Unit of integer times in a file, since 1970.
    """
    output = log.output(common)
    _check_rules(
        by,
        event_time={
            "window": window,
            "max_lead": max_lead != "0s",
            "gap": gap,
            "boundary": by == "id" and boundary,
            "on_conflict": on_conflict,
            "max_delay": by == "rate" and max_delay,
        },
        id={"id_of": id_of, "stream": stream},
        rate={
            "batch_length": batch_length != "1s",
            "longest": longest,
            "timeout": timeout,
            "clocks": clocks != "as_sent",
            "max_disorder": max_disorder != "0s",
            "forget_after": forget_after,
        },
    )
    if by == "event_time":
        window, max_delay = _checked_lengths(window, max_delay)
    elif by == "id":
        id_of, max_delay = _checked("id_of", id_of, "id", "pulse_id"), _checked("max_delay", max_delay, "id")
    if into is not None:
        if svg is not None or limit is not None:
            raise InvalidArgumentError(
                "--svg and --limit cannot be combined with --into, which puts the batches into a table instead of"
                " printing them"
            )
        from waterclock.cli.gateway.batch_into import batch_into

        rules = {
            "event_time": (window, max_delay, max_lead, on_conflict, gap, boundary),
            "rate": (batch_length, longest, timeout, clocks, max_disorder, boundary, forget_after),
            "id": (id_of, max_delay, stream),
        }
        batch_into(
            common, output, messages, into, by, rules[by], follow=follow, since=since, sources=source, max_skew=max_skew
        )
        return
    if by == "rate" or follow or since is not None or source is not None or max_skew != "10s":
        raise InvalidArgumentError(
            "--into is missing: --by rate, --follow, --since, --source and --max-skew need a message table"
        )
    make_batcher: Callable[[], EventTimeBatcher | IdBatcher]
    if by == "id":
        make_batcher = partial(IdBatcher, str(id_of), stream, max_delay=str(max_delay))
    else:
        make_batcher = partial(
            EventTimeBatcher, str(window), str(max_delay), max_lead, on_conflict, gap=gap, boundaries=boundary
        )
    make_batcher()  # refuses invalid lengths before reading anything
    batcher = BySource(make_batcher)
    batches: list[Batch] = []
    with output.progress(f"batching {messages}") as progress:
        for message in _messages(messages, limit, max_payload, time_unit, common, progress):
            batches += batcher.add(message)
    # The recording has ended, so every batch gets the time it needs to close by its own rule.
    batches += batcher.advance(MAX_NS)
    batches.sort(key=lambda b: (b.closed_at, b.source))
    rejected = batcher.take_rejected()
    output.rows(map(_row, batches), _WITH_RUN if boundary else _COLUMNS)
    output.talk(_summary(batches, rejected))
    if by == "id":
        output.talk(_missing(batches, stream))
    if svg is not None:
        svg.write_text(timeline(batches, rejected), encoding="utf-8")
        output.talk(f"drew {svg}")


def _check_rules(by: str, **options: dict[str, object]) -> None:
    """Refuse options of other rules; each rule has its own, with whether they are given."""
    for rule, given in options.items():
        for name in (name for name, value in given.items() if value and rule != by):
            raise InvalidArgumentError(f"{_option(name)} cannot be used with --by {by}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _checked_lengths(window: str | None, max_delay: str | None) -> tuple[str, str]:
    return _checked("window", window, "event time"), _checked("max_delay", max_delay, "event time")


def _checked(name: str, value: str | None, by: str, example: str = "500ms") -> str:
    if value is None:
        raise InvalidArgumentError(f"{_option(name)} is missing. Batching by {by} needs a value such as {example}")
    return value


def _messages(
    place: str, limit: int | None, max_payload: int, time_unit: TimeUnit, common: Common, progress: Progress
) -> Iterator[Message]:
    if place == "-" or Path(place).exists():
        messages = chain.from_iterable(MessageFile(place, max_payload, time_unit).chunks(progress))
    elif common.url is not None:
        messages = _read_topic(place, common, progress)
    else:
        raise InvalidArgumentError(f"no file {quoted(place)} found. To read the topic of this name, add --url")
    for message in islice(messages, limit):
        if message.receive_time is None:
            raise InvalidArgumentError(f"receive_time must be set to detect late messages, got None in {message}")
        yield message


def _read_topic(name: str, common: Common, progress: Progress) -> Iterator[Message]:
    with common.connect() as database:
        topic = database.topic(name)
        total = topic.info.messages
        for number, message in enumerate(topic.read(), start=1):
            yield message
            if number % CHUNK == 0:
                progress(number, total)


def _row(closed: Batch) -> dict[str, object]:
    return {
        "id": closed.id,
        "start": format_time(closed.start),
        "end": format_time(closed.end),
        "closed_at": format_time(closed.closed_at),
        "reason": closed.reason,
        "run": None if closed.run is None else format_time(closed.run),
        "messages": len(closed.messages),
        "streams": len({message.stream for message in closed.messages}),
    }


def _missing(batches: list[Batch], streams: list[str] | None) -> str:
    found = missing_ids(batches, streams)
    incomplete = sum(1 for ids in found if ids.streams)
    missing = sum(ids.last - ids.first + 1 for ids in found if not ids.streams)
    return f"missing: {counted(missing, 'id')}; {counted(incomplete, 'batch', 'batches')} without all streams"


def _summary(batches: list[Batch], rejected: list[Rejection]) -> str:
    messages = sum(len(closed.messages) for closed in batches)
    reasons = Counter(rejection.reason for rejection in rejected)
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none"
    return f"{counted(messages, 'message')} in {counted(len(batches), 'batch', 'batches')}; rejected: {refused}"
