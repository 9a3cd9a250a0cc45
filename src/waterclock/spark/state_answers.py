"""Spares stateful operators the wait for answers of Spark's state that say no more than that it obeyed.

Spark's Python client asks its state over a socket, and waits for the answer to each call before it goes on: for a
source and micro-batch five times, of which one brings something back. The state answers one call after another, so the
other answers can be read when one is needed that brings something; meanwhile both sides work. Spark asks for one before
it commits the state of a task, so a refusal still fails the task that met it.

Spark has no setting for this. What is reached into here is private to PySpark's client, and is looked for first: where
a later PySpark has it no more, its client is left as it is, which is slower and no different otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pyspark.errors import PySparkRuntimeError

_RECEIVE = "_receive_proto_message"  # and others that begin so
_NO_ANSWER = (0, "", b"")  # status, error, value

Later = Callable[[], AbstractContextManager[None]]
"""Gives a context in which state calls do not wait; only for those whose answers nobody needs."""


def answers_later(handle: Any) -> Later:
    """Let a task's state be told what to do without waiting for its answers.

    Parameters
    ----------
    handle
        The `pyspark.sql.streaming.stateful_processor.StatefulProcessorHandle` that the task's processor was given.

    Returns
    -------
    callable
        The context for updates and clears of values, and for timers. Spark's own change from one key to the next does
        not wait from now on.
    """
    client: Any = getattr(handle, "_statefulProcessorApiClient", None)
    if not callable(getattr(client, _RECEIVE, None)) or not callable(getattr(client, "set_implicit_key", None)):
        return nullcontext
    answers = _Answers(client)
    change_key = client.set_implicit_key

    def change_key_later(key: Any) -> None:
        with answers.later():
            change_key(key)

    client.set_implicit_key = change_key_later
    return answers.later


class _Answers:
    """The answers that a client's state still owes."""

    def __init__(self, client: Any) -> None:
        self._receive: Callable[[], tuple[int, str, bytes]] = getattr(client, _RECEIVE)
        self._owed = 0
        self._waits = True
        for name in dir(client):
            if name.startswith(_RECEIVE):
                setattr(client, name, self._in_turn(getattr(client, name), may_wait=name == _RECEIVE))

    @contextmanager
    def later(self) -> Generator[None]:
        self._waits = False
        try:
            yield
        finally:
            self._waits = True

    def _in_turn(self, receive: Callable[[], Any], *, may_wait: bool) -> Callable[[], Any]:
        def received() -> Any:
            if may_wait and not self._waits:
                self._owed += 1
                return _NO_ANSWER
            self._settle()
            return receive()

        return received

    def _settle(self) -> None:
        while self._owed:
            self._owed -= 1
            status, error, _ = self._receive()
            if status:
                raise PySparkRuntimeError(f"Spark's state refused what it was told (status {status}): {error}")
