"""Searches the unacked messages of a table with a filter.

A search only reads, and it reads a bounded number of rows. No index supports a filter by header, payload or error. So
such a search reads only the first and the last `SCANNED` messages in the order of delivery. A search by id or group
covers all messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.selection import bind_condition, has_header
from waterclock.tables.messages.inspecting.estimating import state_sql
from waterclock.tables.messages.putting.putting import check_id
from waterclock.tables.model.condition_parser import parse_condition
from waterclock.tables.model.failure_groups import normalised
from waterclock.tables.model.row_conditions import is_waiting

SCANNED = 5_000  # messages that a search reads from either end: some 50 ms if payloads are small
LONGEST_TEXT = 1_000  # maximum length of a text to search for

SearchState = Literal["ready", "scheduled", "in_flight", "delayed", "held", "expired", "failed"]
"""The states to search for; ``"failed"``: has an error, whatever its state."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages to find: those that match every set attribute."""

    id: Any = None
    group: str | None = None
    state: SearchState | None = None
    header: tuple[str, str] | None = None  # name and value
    where: str | None = None  # a condition on columns, as consumers use it
    text: str | None = None  # a text in the payload
    error: str | None = None  # normalised as in `FailureGroup`

    def __post_init__(self) -> None:
        """Check the contents of a form."""
        if self.state is not None and self.state not in get_args(SearchState):
            known = ", ".join(get_args(SearchState))
            raise InvalidArgumentError(f"state must be one of {known}, got {quoted(self.state)}")
        for name in ("text", "error"):
            value = getattr(self, name)
            if value is not None and len(value) > LONGEST_TEXT:
                raise InvalidArgumentError(f"{name} must have at most {LONGEST_TEXT} characters, got {quoted(value)}")


class ScanWindow(NamedTuple):
    """The messages at both ends of the order of delivery."""

    seqs: Sequence[int]  # their numbers
    complete: bool  # whether these are all unacked messages

    def holds(self, context: TableContext) -> sa.ColumnElement[bool]:
        """Return the condition that an unacked message is one of them, which needs `parameters`."""
        return sa.true() if self.complete else context.sql.any_of(context.rows.c.seq, "scanned")

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers as one parameter: ten thousand parameters took most of a search's time."""
        return {} if self.complete else {"scanned": list(self.seqs)}


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message that was found; without its payload. Times in ns."""

    id: Any
    group: str | None
    priority: int
    epoch: int
    consumer: str | None
    headers: str | None  # JSON
    state: str  # in the metrics
    time_scheduled: int
    time_next: int
    time_created: int | None
    error: str | None  # why it failed last; None: it has not failed


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The outcome of a search."""

    messages: Sequence[FoundMessage]  # in the order in which they are due
    more: bool  # whether there are more than the limit
    complete: bool  # whether the search covered every message


def find_messages(
    context: TableContext,
    connection: sa.Connection,
    wanted: MessageFilter,
    limit: int,
    window: ScanWindow | None = None,
) -> SearchResult:
    """Find up to ``limit`` unacked messages.

    Raises `InvalidArgumentError` if the condition is invalid.

    ``window`` holds the messages to search, if they have been read already; searches by id or group ignore it.
    """
    rows = context.rows
    now = context.backend.now(connection)
    conditions = list(_conditions(context, wanted))
    parameters: dict[str, Any] = {"now": now}
    complete = True
    if wanted.id is None and wanted.group is None:
        window = window or read_window(context, connection)
        complete = window.complete
        conditions.append(window.holds(context))
        parameters |= window.parameters
    names = ("id", "group_id", "priority", "epoch", "consumer", "headers")
    times = ("time_scheduled", "time_next", "time_created", "last_error")
    statement = (
        sa.select(*(rows.c[name] for name in (*names, *times)), state_sql(rows).label("state"))
        .where(is_waiting(rows), *conditions)
        .order_by(rows.c.time_next, rows.c.seq)
        # A normalised error is compared here, so that rows are left out only afterwards.
        .limit(limit + 1 if wanted.error is None else 2 * SCANNED)
    )
    found = [
        row
        for row in connection.execute(statement, parameters)
        if wanted.error is None or (row.last_error is not None and normalised(row.last_error) == wanted.error)
    ]
    return SearchResult([_message(row) for row in found[:limit]], len(found) > limit, complete)


def read_window(context: TableContext, connection: sa.Connection) -> ScanWindow:
    """Read up to `SCANNED` messages at both ends."""
    rows = context.rows
    by_group = context.options.groups is not None and not context.sql.orders_groups_by_priority
    # Only columns of the index of unacked messages, which is read from either end.
    forward = (rows.c.group_id, rows.c.position) if by_group else (rows.c.priority.desc(), rows.c.time_next)
    back = (rows.c.group_id.desc(), rows.c.position.desc()) if by_group else (rows.c.priority, rows.c.time_next.desc())
    which = is_waiting(rows)
    first = connection.scalars(sa.select(rows.c.seq).where(which).order_by(*forward).limit(SCANNED)).all()
    if len(first) < SCANNED:
        return ScanWindow(first, complete=True)
    last = connection.scalars(sa.select(rows.c.seq).where(which).order_by(*back).limit(SCANNED)).all()
    seqs = list({*first, *last})
    return ScanWindow(seqs, complete=len(seqs) < 2 * SCANNED)


def _conditions(context: TableContext, wanted: MessageFilter) -> Iterator[sa.ColumnElement[bool]]:
    rows = context.rows
    if wanted.id is not None:
        yield rows.c.id == check_id(context, wanted.id)
    if wanted.group is not None:
        yield rows.c.group_id == wanted.group if wanted.group else rows.c.group_id.is_(None)
    if wanted.state == "failed" or wanted.error is not None:
        yield rows.c.last_error.is_not(None)
    if wanted.state is not None and wanted.state != "failed":
        yield state_sql(rows) == wanted.state
    if wanted.header is not None:
        name, value = wanted.header
        yield has_header(context, name, [value])
    if wanted.where is not None:
        yield bind_condition(context, wanted.where, parse_condition(wanted.where), {})
    if wanted.text is not None:
        yield _has_text(context, wanted.text)


def _has_text(context: TableContext, text: str) -> sa.ColumnElement[bool]:
    payload: Any = context.rows.c.message
    if context.options.payload == "bytes":
        return context.sql.has_in_it(payload, text.encode())
    return context.sql.has_in_it(sa.cast(payload, sa.Text) if context.options.payload == "json" else payload, text)


def _message(row: sa.Row[*tuple[Any, ...]]) -> FoundMessage:
    return FoundMessage(
        row.id,
        row.group_id or None,
        row.priority,
        row.epoch or 0,
        row.consumer,
        row.headers,
        row.state,
        row.time_scheduled or 0,
        row.time_next or 0,
        row.time_created,
        row.last_error,
    )
