"""The overview page, which shows problems first and then throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.monitoring.database_facts import Facts
from waterclock.monitoring.table_facts import TableCounts, TableRecord
from waterclock.server.access import AnyClient
from waterclock.server.pages.frame import name_url, page
from waterclock.server.pages.ingest import ingest_data
from waterclock.server.pages.pipelines import pipelines_data
from waterclock.server.pages.tables.failures import failures_of
from waterclock.server.pages.tables.table_list import tables_data
from waterclock.server.rights import Client
from waterclock.server.shared_reads import shared

_NS = 1_000_000_000
LATE, VERY_LATE = 60 * _NS, 600 * _NS
"""For how long a message may be due before it counts as a problem, and as a bad one, ns."""

LAGGING = 10_000
"""Lag of a subscription, in messages, up to which it is normal: one read takes a thousand."""

LONG_TRANSACTION = 600
"""Seconds for which a transaction may be open: until it ends the server keeps all rows that were changed since."""

MOST_TABLES_WITH_FAILURES, MOST_FAILURES = 5, 5
"""Maximum tables whose failures the overview groups, and groups of each: a table takes a tenth of a second."""

router = APIRouter(include_in_schema=False)


class Problem(NamedTuple):
    """Something that is wrong."""

    level: Literal["bad", "warn"]
    """``"bad"``: work has stopped or was lost. ``"warn"``: that may happen soon, or an operator chose it."""
    text: str  # a sentence
    url: str | None = None  # the page with the details; None: none
    command: str | None = None  # a command to run next; None without one


@router.get("/")
@shared
def show_overview(request: Request, caller: AnyClient) -> Response:
    facts: Facts = request.app.state.facts.get()
    return page(request, "overview.html", overview_data(facts, caller, request.app.state.database))


def overview_data(facts: Facts, caller: Client, database: Any) -> dict[str, Any]:
    """Return the problems, failures and throughput of everything that the caller may read."""
    tables = [one for one in facts.tables if caller.may("read", "table", one.name)]
    topics = [one for one in facts.topics if caller.may("read", "topic", one.name)]
    problems = [*_of_tables(facts, tables), *_of_topics(facts, caller), *_of_upkeep(facts, caller)]
    problems += _of_processes(database, caller)
    if caller.rights is None and (facts.oldest_transaction or 0) > LONG_TRANSACTION:
        problems.append(
            Problem(
                "warn",
                f"A transaction has been open for {facts.oldest_transaction} s. It keeps dead rows from being removed.",
                "/system",
            )
        )
    subscriptions = [one for one in facts.subscriptions if caller.may("read", "topic", one.topic)]
    return {
        "problems": [one._asdict() for one in sorted(problems, key=lambda one: one.level)],
        "failures": list(_failures(facts, tables, database)),
        "tables": tables_data(facts, caller),
        "topics": [
            {
                "name": one.name,
                "messages": one.messages,
                "bytes": one.size,
                "appended": one.appended,
                "unread": max((each.backlog for each in subscriptions if each.topic == one.name), default=None),
            }
            for one in topics
        ],
    }


def _of_tables(facts: Facts, tables: Sequence[TableRecord]) -> Iterator[Problem]:
    names = {one.name for one in tables}
    dead_letters = {counts.dead_letter for counts in facts.counts.values()}
    for one in tables:
        url = f"/tables/{name_url(one.name)}"
        if one.failing:
            yield Problem("bad", f"Consumers of table {one.name} cannot claim messages.", "/workers")
        if one.stuck:
            handlers = "1 handler" if one.stuck == 1 else f"{one.stuck:,} handlers"
            verb = "runs" if one.stuck == 1 else "run"
            yield Problem("bad", f"{handlers} of table {one.name} still {verb} after the time limit.", "/workers")
        counts = facts.counts.get(one.name)
        if counts is None:
            yield Problem("warn", f"The messages of table {one.name} could not be counted.", url)
            continue
        if one.name not in dead_letters:  # no consumer takes dead letters; their own table's line counts them
            yield from _of_counts(one, counts, url)
        dead = facts.counts.get(counts.dead_letter or "")
        if counts.dead_letter in names and dead is not None and dead.messages.depth:
            about = "" if dead.messages.exact else "about "
            letters = "1 dead letter" if dead.messages.depth == 1 else f"{about}{dead.messages.depth:,} dead letters"
            yield Problem("warn", f"Table {one.name} has {letters}.", f"{url}#failures")


def _of_counts(record: TableRecord, counts: TableCounts, url: str) -> Iterator[Problem]:
    name, age = record.name, counts.messages.oldest_age or 0
    if record.is_paused:
        yield Problem("warn", f"Table {name} is paused.", url)
    elif age > LATE:
        late = f"The oldest message of table {name} has been due for {_words(age)}"
        if record.subscribers:
            yield Problem("bad" if age > VERY_LATE else "warn", f"{late}.", url)
        else:
            yield Problem(
                "bad", f"{late}, and no consumer runs.", url, f"waterclock work MODULE:HANDLER --table {name}"
            )
    groups = counts.groups
    if groups.blocked:
        more = "" if groups.exact else "More than "
        blocked = "1 group" if groups.blocked == 1 else f"{groups.blocked:,} groups"
        verb = "is" if groups.blocked == 1 else "are"
        yield Problem("bad", f"{more}{blocked} of table {name} {verb} blocked.", f"{url}/groups")


def _of_topics(facts: Facts, caller: Client) -> Iterator[Problem]:
    for one in facts.topics:
        if one.lost and caller.may("read", "topic", one.name):
            command = f"waterclock topic verify {one.name}"
            yield Problem("bad", f"{one.lost:,} messages of topic {one.name} are lost.", _topic_url(one.name), command)
    for each in facts.subscriptions:
        if each.backlog > LAGGING and caller.may("read", "topic", each.topic):
            text = f"Subscription {each.name} of topic {each.topic} lags by {each.backlog:,} messages."
            yield Problem("warn", text, _topic_url(each.topic))


def _of_upkeep(facts: Facts, caller: Client) -> Iterator[Problem]:
    for one in facts.upkeep:
        if one.failed and one.kind in ("topic", "table") and caller.may("read", one.kind, one.name):
            yield Problem("bad", f"Upkeep failed: {one.task} of {one.kind} {one.name}.", "/system#upkeep")


def _of_processes(database: Any, caller: Client) -> Iterator[Problem]:
    for one in pipelines_data(database, caller)["pipelines"]:
        if one["state"] == "silent":
            name = f"pipeline {one['name']}" if one["kind"] == "pipeline" else f"batching into {one['name']}"
            yield Problem("bad", f"The {name} of topic {one['topic']} no longer reports.", "/pipelines")
    found = ingest_data(database, caller)
    for one in found["processes"]:
        if one["state"] == "silent":
            yield Problem("bad", f"The ingest from {one['name']} no longer reports.", "/ingest")
    for one in found["sessions"]:
        if one["dropped"]:
            text = f"The broker of session {one['name']} has dropped {one['dropped']:,} messages of its clients."
            yield Problem("warn", text, "/ingest")


def _failures(facts: Facts, tables: Sequence[TableRecord], database: Any) -> Iterator[dict[str, Any]]:
    """Group the failures of the tables with the most messages that back off."""

    def failing(record: TableRecord) -> int:
        counts = facts.counts[record.name]
        dead = facts.counts.get(counts.dead_letter or "")
        return counts.messages.messages["delayed"] + counts.groups.exhausted + (dead.messages.depth if dead else 0)

    worst = sorted((one for one in tables if one.name in facts.counts), key=failing, reverse=True)
    for one in worst[:MOST_TABLES_WITH_FAILURES]:
        context = database.table(one.name).context
        with context.backend.snapshot(indexed=True) as connection:
            yield from ({"table": one.name, **each} for each in failures_of(context, connection, MOST_FAILURES))


def _topic_url(name: str) -> str:
    return f"/topics/{name_url(name)}"


def _words(ns: int) -> str:
    minutes = ns // (60 * _NS)
    days, hours = minutes // 1440, minutes // 60
    if days:
        return f"{days} days" if days > 1 else f"{hours} hours"
    if hours > 1:
        return f"{hours} hours"
    return f"{minutes} minutes" if minutes > 1 else "a minute"
