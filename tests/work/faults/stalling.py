"""A way to a server that can fall silent: it takes what is sent, keeps every connection open, and hands on nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import sqlalchemy as sa

_PIECE = 1 << 16


class StallingWire:
    """A proxy in threads of this process.

    Attributes
    ----------
    url
        Where the server seems to be.
    target
        Where it is.
    opened
        How many connections there have been.
    """

    def __init__(self, url: str) -> None:
        self.opened = 0
        self.target = url
        target = sa.make_url(url)
        self._to = (target.host or "127.0.0.1", target.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = target.set(host="127.0.0.1", port=self._listening.getsockname()[1]).render_as_string(
            hide_password=False
        )
        self._silent: set[socket.socket] = set()
        self._all: set[socket.socket] = set()
        self._is_silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Hand on nothing of any connection from now on, for ever; nor of new ones, until `speak`."""
        self._is_silent = True
        self._silent |= self._all

    def speak(self) -> None:
        """Let connections that are opened from now on through."""
        self._is_silent = False

    def close(self) -> None:
        self._listening.close()
        for one in list(self._all):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.opened += 1
                self._all.add(client)
                if self._is_silent:
                    self._silent.add(client)
                    continue
                server = socket.create_connection(self._to)
                self._all.add(server)
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._hand_on, args=(one, other), daemon=True).start()

    def _hand_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(_PIECE):
                if one not in self._silent:
                    other.sendall(piece)
        if one not in self._silent:
            with suppress(OSError):
                other.shutdown(socket.SHUT_WR)


@contextmanager
def stalling(url: str) -> Generator[StallingWire]:
    """Put a way to a server that can fall silent."""
    wire = StallingWire(url)
    try:
        yield wire
    finally:
        wire.close()
