"""A server some way off: a proxy on this machine that hands on every byte a while later, and counts round trips.

It is one process that sleeps until the next bytes come or are due, so what it costs is the processor time of handing
on: `SlowWire.busy_s`, which a benchmark writes beside its figures.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import select
import socket
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

import sqlalchemy as sa

_PIECE = 1 << 18  # bytes handed on at once
_ROOM = 1 << 22  # bytes of a socket's buffers: a side that does not read must not keep the other from being heard
_PR_SET_TIMERSLACK = 29  # Linux wakes a sleeper 50 µs late by itself, which is a tenth of what is to be shown
_TRIPS, _SENT, _BUSY = range(3)


@dataclass(frozen=True)
class SlowWire:
    """A way to a server.

    Attributes
    ----------
    url
        Where the server seems to be.
    """

    url: str
    _counts: Any

    @property
    def trips(self) -> int:
        """How often a client has spoken after it was answered: what it sends without waiting is one round trip.

        A client that does not wait and is halted for longer than the way is long counts as one that waited. So ask the
        same several times, and believe the fewest.
        """
        return self._counts[_TRIPS]

    @property
    def sent(self) -> int:
        """Bytes in both directions."""
        return self._counts[_SENT]

    @property
    def busy_s(self) -> float:
        """Processor time that handing on has taken, s."""
        return self._counts[_BUSY] / 1e9


@contextmanager
def slow_wire(url: str, round_trip_s: float) -> Generator[SlowWire]:
    """Put a way to a server on which a round trip takes this much longer; half of it there, half of it back."""
    target = sa.make_url(url)
    counts = RawArray("q", 3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        where = target.set(host="127.0.0.1", port=listening.getsockname()[1])
        to = (target.host or "127.0.0.1", target.port)
        process = multiprocessing.get_context("spawn").Process(
            target=_hand_on, args=(listening, to, round_trip_s / 2, counts), daemon=True
        )
        process.start()
    try:
        yield SlowWire(where.render_as_string(hide_password=False), counts)
    finally:
        process.kill()
        process.join()


def _hand_on(listening: socket.socket, to: tuple[str, int], delay_s: float, counts: Any) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    others: dict[socket.socket, socket.socket] = {}
    clients: dict[socket.socket, bool] = {}  # and whether each was answered since it spoke
    under_way: deque[tuple[float, socket.socket, bytes]] = deque()
    began = time.process_time_ns()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([listening, *others], [], [], wait)
        for one in readable:
            if one is listening:
                _connect(listening, to, others, clients)
                continue
            piece = _received(one)
            if clients.get(one) and piece:
                counts[_TRIPS] += 1
                clients[one] = False
            counts[_SENT] += len(piece)
            under_way.append((time.monotonic() + delay_s, others[one], piece))
            if not piece:
                del others[one]
        while under_way and under_way[0][0] <= time.monotonic():
            _, one, piece = under_way.popleft()
            if one in clients:
                clients[one] = True
            with contextlib.suppress(OSError):
                one.sendall(piece) if piece else one.shutdown(socket.SHUT_WR)
        counts[_BUSY] = time.process_time_ns() - began


def _connect(
    listening: socket.socket,
    to: tuple[str, int],
    others: dict[socket.socket, socket.socket],
    clients: dict[socket.socket, bool],
) -> None:
    client, server = listening.accept()[0], socket.create_connection(to)
    for one in (client, server):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    others[client], others[server] = server, client
    clients[client] = True


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(_PIECE)
    except OSError:
        return b""
