"""The asynchronous classes have every public name of the synchronous ones, and the same signatures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import waterclock
from waterclock import aio
from waterclock.aio.calling import FacadeMethod
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_groups import MessageGroups
from waterclock.tables.message_schedules import MessageSchedules
from waterclock.topics.writing.producing import Producer

PAIRS: dict[type, type] = {
    waterclock.Database: aio.Database,
    waterclock.Topic: aio.Topic,
    waterclock.Subscription: aio.Subscription,
    waterclock.MessageTable: aio.MessageTable,
    MessageGroups: aio.MessageGroups,
    MessageSchedules: aio.MessageSchedules,
    Producer: aio.Producer,
    Delivery: aio.Delivery,
    TableSubscription: aio.Deliveries,
}

LEFT_OUT = {
    waterclock.Database: {"begin": "a transaction of the caller's comes from the caller's own AsyncEngine"},
    waterclock.Topic: {"create": "of Database", "open": "of Database"},
    waterclock.MessageTable: {
        "create": "of Database",
        "open": "of Database",
        "context": "for operations inside the library",
        "delivery": "for a server, whose clients hold the handles",
        "watched": "what receive waits for by itself",
        "give_back": "what a cancelled receive does by itself",
    },
    Delivery: dict.fromkeys(
        [
            "beat_at",
            "behind",
            "cancel",
            "context",
            "end",
            "ended_elsewhere",
            "extended",
            "facts",
            "failure",
            "given_back",
            "leased",
            "leave_to_caller",
            "lose",
            "nack_in",
            "retry_delay",
            "resumed",
            "set_facts",
            "since_claim",
            "take_back",
            "unanswered",
            "undecided",
            "waiting",
            "when_cancelled",
            "when_over",
            "without_heartbeat",
        ],
        "for subscriptions, workers and heartbeats",
    ),
    TableSubscription: dict.fromkeys(
        [
            "claims_every",
            "give_back",
            "is_failing",
            "let_go",
            "need_no_notifications",
            "was_due",
            "note_acked",
            "note_changes",
            "nudge",
            "poll",
            "put_back",
            "take",
            "wait",
            "wait_until_back",
            "watched",
        ],
        "for workers and heartbeats",
    ),
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("sync", PAIRS, ids=lambda kind: kind.__qualname__)
def test_every_public_name_is_there(sync: type) -> None:
    assert public(sync) - set(LEFT_OUT.get(sync, ())) <= public(PAIRS[sync])


@pytest.mark.parametrize("sync", LEFT_OUT, ids=lambda kind: kind.__qualname__)
def test_no_name_that_is_left_out_is_there(sync: type) -> None:
    assert not set(LEFT_OUT[sync]) & public(PAIRS[sync])


METHODS = [
    pytest.param(sync, name, id=f"{sync.__qualname__}.{name}")
    for sync, asynchronous in PAIRS.items()
    for name in sorted(public(asynchronous))
    if isinstance(inspect.getattr_static(asynchronous, name), FacadeMethod)
]


@pytest.mark.parametrize(("sync", "name"), METHODS)
def test_a_method_calls_the_method_of_the_same_name(sync: type, name: str) -> None:
    described: Any = inspect.getattr_static(PAIRS[sync], name)
    assert described._method is getattr(sync, name)


@pytest.mark.parametrize("name", ["receive", "nack", "extend"])
def test_a_method_written_out_has_the_parameters_of_the_synchronous_one(name: str) -> None:
    written, sync = (inspect.signature(getattr(kind, name)) for kind in (aio.MessageTable, waterclock.MessageTable))
    assert list(written.parameters) == list(sync.parameters)
    assert [one.default for one in written.parameters.values()] == [one.default for one in sync.parameters.values()]


def test_connect_has_the_parameters_of_the_synchronous_one() -> None:
    written, sync = (inspect.signature(connect).parameters for connect in (aio.connect, waterclock.connect))
    assert set(sync) - {"shards"} == set(written) - {"threads"}
