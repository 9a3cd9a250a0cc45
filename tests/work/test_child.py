"""The child process of a worker: what it does with the words that its parent sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest

import waterclock as wc
from waterclock.tables.message_table import MessageTable
from waterclock.work.running.child import Cancel, Ended, HandledTable, _Child


class _Sent(Exception):  # noqa: N818  # it ends the listener, and is no error
    pass


class _Pipe:
    """The child's end of a pipe in which all words of the parent wait."""

    def __init__(self, words: list[Any]) -> None:
        self._words = iter(words)
        self.answers: list[Ended] = []

    def recv(self) -> Any:
        try:
            return next(self._words)
        except StopIteration:
            raise _Sent from None

    def send(self, answer: Ended) -> None:
        self.answers.append(answer)


class _ThreadAhead(threading.Thread):
    """A thread that is done before `start` returns, as that of the listener may be on a busy machine."""

    def start(self) -> None:
        with suppress(_Sent):
            self.run()


@pytest.mark.one_database
@pytest.mark.parametrize(("cancels", "verb"), [("it", "give_back"), ("an earlier one", "ack")])
def test_a_child_cancels_the_message_that_its_parent_names_before_its_handler_begins(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, cancels: str, verb: str
) -> None:
    orders = make_table()
    orders.put("x")
    [delivery] = orders.receive(1)
    leased = delivery.leased
    name = Cancel(leased.claim_id - (cancels == "an earlier one"), leased.seq)

    def handle(delivery: wc.Delivery) -> None:
        if delivery.cancelled:
            raise asyncio.CancelledError

    pipe = _Pipe([(0, delivery.facts()), name, None])
    with asyncio.Runner() as loop, ExitStack() as stack:
        child = _Child(cast("Any", pipe), [HandledTable("", "orders", handle)], None, loop, stack)
        monkeypatch.setattr(threading, "Thread", _ThreadAhead)
        child.serve()
    assert [answer.outcome.verb for answer in pipe.answers] == [verb]
