"""Calls of Spark's state that do not wait, with PySpark's own client; the state is a socket that answers when told."""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor_api_client
from pyspark.sql.streaming.proto import StateMessage_pb2
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType

from waterclock.spark.state_answers import answers_later

PATIENCE_S = 30
KEY = StructType([StructField("source", StringType())])
VALUE = StructType([StructField("timer", LongType())])
TOLD = ["setImplicitKey", "delete", "register", "valueStateUpdate"]


class State:
    """Stands for the state in Spark's Java."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(PATIENCE_S)
        self.port = self._server.getsockname()[1]

    def accept(self) -> None:
        self._peer, _ = self._server.accept()
        self._peer.settimeout(PATIENCE_S)
        self._file = self._peer.makefile("rwb")

    def asked(self) -> str:
        """Take the next request, and say what for."""
        _, length = struct.unpack("!ii", self._file.read(8))
        part: Any = StateMessage_pb2.StateRequest.FromString(self._file.read(length))
        name = ""
        while part.DESCRIPTOR.oneofs:
            name = part.WhichOneof("method")
            part = getattr(part, name)
        return name

    def answer(self, status: int = 0, error: str = "", value: bytes = b"") -> None:
        answer = StateMessage_pb2.StateResponse(statusCode=status, errorMessage=error, value=value)
        self._file.write(struct.pack("!i", answer.ByteSize()) + answer.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        self._file.close()
        self._peer.close()
        self._server.close()


@pytest.fixture
def state() -> Generator[State]:
    state = State()
    yield state
    state.close()


@pytest.fixture
def handle(state: State) -> Generator[StatefulProcessorHandle]:
    client = stateful_processor_api_client.StatefulProcessorApiClient(state.port, KEY)
    state.accept()
    yield StatefulProcessorHandle(client)
    client.sockfile.close()
    client._client_socket.close()


@pytest.fixture
def values(handle: StatefulProcessorHandle, state: State, in_background: ThreadPoolExecutor) -> Any:
    made = in_background.submit(handle.getValueState, "batcher", VALUE)
    assert state.asked() == "getValueState"
    state.answer()
    return made.result(PATIENCE_S)


@pytest.fixture
def in_background() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def tell(handle: StatefulProcessorHandle, values: Any) -> None:
    later = answers_later(handle)
    handle._statefulProcessorApiClient.set_implicit_key(("press-01",))
    with later():
        handle.deleteTimer(1)
        handle.registerTimer(2)
        values.update((2,))


def test_nothing_waits_but_what_brings_something(
    handle: StatefulProcessorHandle, values: Any, state: State, in_background: ThreadPoolExecutor
) -> None:
    tell(handle, values)  # returns, though nothing is answered
    found: Future[Any] = in_background.submit(values.get)
    assert [state.asked() for _ in range(5)] == [*TOLD, "get"]
    for _ in TOLD:
        state.answer()
    state.answer(value=handle._statefulProcessorApiClient._serialize_to_bytes(VALUE, (7,)))
    assert found.result(PATIENCE_S) == (7,)


@pytest.mark.parametrize("refused", range(len(TOLD)))
def test_a_refusal_fails_the_task_before_spark_commits_its_state(
    handle: StatefulProcessorHandle, values: Any, state: State, in_background: ThreadPoolExecutor, refused: int
) -> None:
    tell(handle, values)
    client = handle._statefulProcessorApiClient
    # What PySpark calls before a task's state is committed.
    ended = in_background.submit(
        client.set_handle_state, stateful_processor_api_client.StatefulProcessorHandleState.DATA_PROCESSED
    )
    assert [state.asked() for _ in range(5)] == [*TOLD, "setHandleState"]
    for number in range(5):
        state.answer(int(number == refused), "no room")
    with pytest.raises(PySparkRuntimeError, match=r"refused .* \(status 1\): no room"):
        ended.result(PATIENCE_S)


def test_other_answers_are_waited_for(
    handle: StatefulProcessorHandle, values: Any, state: State, in_background: ThreadPoolExecutor
) -> None:
    answers_later(handle)
    removed = in_background.submit(values.clear)  # in no context in which it need not wait
    assert state.asked() == "clear"
    state.answer(1, "no room")
    with pytest.raises(PySparkRuntimeError, match="no room"):
        removed.result(PATIENCE_S)


def test_a_handle_of_another_make_is_left_as_it_is() -> None:
    with answers_later(object())():
        pass
