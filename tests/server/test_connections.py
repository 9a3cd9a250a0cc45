"""Clients that send or read too slowly lose their connections, and those above the limit are refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from waterclock.server import connections
from waterclock.server.connections import BODY_WITHIN, HEADERS_WITHIN, READS_WITHIN, ClientConnection

HEADERS = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


class Client:
    """One client of a server, whose timers do not run by themselves."""

    def __init__(self, state: ServerState) -> None:
        self.timers: dict[float, Mock] = {}
        self.transport = Mock()
        self.transport.get_extra_info.return_value = None
        self.transport.is_closing.return_value = False
        loop = Mock()
        loop.call_later.side_effect = self._set
        loop.create_task.side_effect = self._begin
        config = uvicorn.Config(Mock(), http=ClientConnection, log_config=None)
        config.load()
        self.connection = ClientConnection(config, state, {}, loop)
        self.connection.connection_made(self.transport)

    def _set(self, seconds: float, function: Any) -> Mock:
        timer = Mock(side_effect=function)
        timer.cancel.side_effect = lambda: self.timers.pop(seconds)
        self.timers[seconds] = timer
        return timer

    def _begin(self, work: Any) -> Mock:
        work.close()
        return Mock()


@pytest.fixture
def state() -> ServerState:
    return ServerState()


@pytest.fixture
def client(state: ServerState) -> Client:
    return Client(state)


def test_headers_have_to_come_in_time_however_many_bytes_of_them_come(client: Client) -> None:
    late = client.timers[HEADERS_WITHIN]
    for byte in b"GET / HT":
        client.connection.data_received(bytes([byte]))
    assert client.timers == {HEADERS_WITHIN: late}
    late()
    client.transport.close.assert_called_once()


def test_a_body_has_to_come_in_time(client: Client) -> None:
    client.connection.data_received(HEADERS + b"{")
    assert [*client.timers] == [BODY_WITHIN]
    client.timers[BODY_WITHIN]()
    client.transport.close.assert_called_once()


def test_a_whole_request_may_take_as_long_as_it_takes(client: Client) -> None:
    client.connection.data_received(HEADERS)
    client.connection.data_received(b"{}")
    assert client.timers == {}


def test_a_client_that_reads_nothing_is_cut_and_a_slow_one_is_not(client: Client) -> None:
    client.connection.data_received(HEADERS + b"{}")
    for size in (300, 200, 100):
        client.transport.get_write_buffer_size.return_value = size
        client.connection.pause_writing() if size == 300 else client.timers[READS_WITHIN]()
    client.transport.abort.assert_not_called()
    client.timers[READS_WITHIN]()
    client.transport.abort.assert_called_once()


def test_a_client_that_has_read_everything_is_not_watched(client: Client) -> None:
    client.connection.data_received(HEADERS + b"{}")
    client.transport.get_write_buffer_size.return_value = 300
    client.connection.pause_writing()
    client.connection.resume_writing()
    assert client.timers == {}


def test_a_lost_connection_leaves_no_timers(client: Client) -> None:
    client.connection.data_received(HEADERS)
    client.transport.get_write_buffer_size.return_value = 300
    client.connection.pause_writing()
    client.connection.connection_lost(None)
    assert client.timers == {}


def test_connections_above_the_limit_are_refused_and_the_others_go_on(
    state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    first, _, third = (Client(state) for _ in range(3))
    assert b" 503 " in third.transport.write.call_args[0][0]
    third.transport.close.assert_called_once()
    first.transport.close.assert_not_called()
