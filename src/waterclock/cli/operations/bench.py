"""``waterclock bench`` measures how fast Waterclock is on this machine and database."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from waterclock._support import moments
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.output import Span

if TYPE_CHECKING:
    from waterclock.connection import Database
    from waterclock.message import Message
    from waterclock.tables.message_table import MessageTable

_SECONDS = 2.0
_MANY, _ENTRY = 100, 1_000
_REFILL = 50
"""For how many claims messages are put ahead."""

_SAMPLE = 20_000
"""Messages that are batched in one call."""

_OPERATIONS = 8
"""How many operations `_measure` times."""

_PAYLOAD = b"0123456789abcdef"
_EVERY = 1_000_000
"""From one message to the next, ns of event time."""


class Measured(NamedTuple):
    """One measured operation: messages per second of its calls, and how long a call took."""

    what: str
    per_second: int
    p50: Span
    p99: Span


def bench(*, seconds: float = _SECONDS, common: Common = Common()) -> None:
    """Measure how fast this machine and database put, claim, append, find and batch messages.

    Takes about 20 seconds. Creates a message table and a topic named bench_…, and removes both at the end. Without a
    database, it measures SQLite in a temporary folder.

    Parameters
    ----------
    seconds
        How long to measure each operation.
    """
    from waterclock.errors import InvalidArgumentError

    if not 0 < seconds <= 60:  # noqa: PLR2004  # a minute for each
        raise InvalidArgumentError(f"--seconds must be greater than 0 and at most 60, got {seconds:g}")
    with _opened(common) as database, common.output.progress(f"measuring {database.backend.name}") as progress:
        found: list[Measured] = []
        for measured in _measure(database, seconds):
            found.append(measured)
            progress(len(found), _OPERATIONS)
    common.output.rows((each._asdict() for each in found), Measured._fields)


@contextmanager
def _opened(common: Common) -> Generator[Database]:
    from waterclock.connection import connect

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="waterclock-bench-"))
        ledgers = common.ledgers or f"{folder}/ledgers"  # stays empty, since nothing is sealed
        if common.url is None:
            yield stack.enter_context(connect(f"sqlite:///{folder}/bench.db", ledgers))
        else:
            yield stack.enter_context(connect(common.url, ledgers, create=False))


def _measure(database: Database, seconds: float) -> Iterator[Measured]:
    name = f"bench_{secrets.token_hex(4)}"
    with ExitStack() as stack:
        table = database.create_table(name)
        stack.callback(table.drop)
        for count in (1, _MANY):
            rows = [{"payload": _PAYLOAD}] * count
            yield _timed(f"put {count}", seconds, count, lambda _, rows=rows: table.put_many(rows))
        for count in (1, _MANY):

            def waiting(count: int = count) -> int:
                if table.stats().ready < count * _REFILL:
                    table.put_many([{"payload": _PAYLOAD}] * count * _REFILL)
                return count

            yield _timed(f"claim and ack {count}", seconds, count, lambda most: _claim(table, most), waiting)
        topic = database.create_topic(name)
        stack.callback(topic.remove)
        began = time.time_ns()
        for count in (1, _ENTRY):
            yield _timed(f"append {count:,}", seconds, count, topic.append, lambda count=count: _messages(count))
        middle = (began + time.time_ns()) // 2
        yield _timed("find a time", seconds, 1, lambda _: topic.find(middle, "event_time"))
    messages = _messages(_SAMPLE)
    yield _timed(f"batch {_SAMPLE:,} by event time", seconds, _SAMPLE, lambda _: _batch(messages))


def _timed(
    what: str, seconds: float, count: int, call: Callable[[Any], object], prepare: Callable[[], object] = lambda: None
) -> Measured:
    """Time calls for ``count`` messages each, without the time to prepare their argument."""
    call(prepare())  # compiles statements and opens connections
    took: list[int] = []
    until = moments.monotonic() + seconds
    while not took or moments.monotonic() < until:
        given = prepare()
        began = moments.monotonic_ns()
        call(given)
        took.append(moments.monotonic_ns() - began)
    took.sort()
    p50, p99 = (Span(took[len(took) * part // 100]) for part in (50, 99))
    return Measured(what, round(count * len(took) * 1e9 / sum(took)), p50, p99)


def _claim(table: MessageTable, most: int) -> None:
    table.ack(table.receive(limit=most))


def _messages(count: int) -> list[Message]:
    from waterclock.message import Message

    start = time.time_ns()
    times = (start + number * _EVERY for number in range(count))
    return [Message("bench", "load", each, _PAYLOAD, receive_time=each) for each in times]


def _batch(messages: list[Message]) -> None:
    from waterclock.batching.event_time.batcher import EventTimeBatcher

    batcher = EventTimeBatcher(window="500ms", max_delay="400ms")
    for message in messages:
        batcher.add(message)
    batcher.flush()
