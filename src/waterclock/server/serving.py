"""Serves an application at an address until a signal ends it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from waterclock._support.quoting import quoted
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.server.access import Policy, is_loopback
from waterclock.server.app import create_app
from waterclock.server.connections import ClientConnection
from waterclock.server.limits import MAX_REQUESTS
from waterclock.tables.model.options import check_count
from waterclock.work.running.signals import stopping_at_signals

_LAST_PORT = 65_535
_ENDS_WITHIN = 3  # s in which open streams must end


def parse_address(listen: str) -> tuple[str, int]:
    """Return the host and port of HOST:PORT."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port[:6]) <= _LAST_PORT):
        raise InvalidArgumentError(f"listen must be HOST:PORT, such as 127.0.0.1:8040, got {quoted(listen)}")
    return host, int(port)


def serve(
    database: Database,
    listen: str,
    *,
    require_token: bool,
    read_only: bool,
    rate_limit: int | None,
    certificate: Path | None,
    key: Path | None,
    started: Callable[[str, Policy], None],
) -> None:
    """Serve until SIGINT or SIGTERM; a second signal ends it at once.

    Parameters
    ----------
    rate_limit
        Maximum requests per second of each token; None: `MAX_REQUESTS`.
    started
        Called with the URL once connections are accepted.

    Raises
    ------
    InvalidArgumentError
        If the address or a certificate is invalid.
    UnavailableError
        If it cannot listen at the address.
    """
    host, port = parse_address(listen)
    if (certificate is None) != (key is None):
        raise InvalidArgumentError("certificate and key must both be given or both be omitted")
    most = MAX_REQUESTS if rate_limit is None else check_count(rate_limit, "rate_limit")
    policy = Policy(is_loopback(host), require_token, read_only, most)
    files: dict[str, Any] = {} if certificate is None else {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    config = uvicorn.Config(
        create_app(database, policy),
        log_config=None,
        log_level="warning",  # our own lines report its start and end
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=ClientConnection,
        timeout_graceful_shutdown=_ENDS_WITHIN,
        **files,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgumentError(f"cannot use the certificate {quoted(str(certificate))}: {error}") from error
    with listening(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        started(f"{'http' if certificate is None else 'https'}://{shown}:{bound.getsockname()[1]}", policy)
        server = _Server(config)

        def stop(*, again: bool) -> None:
            server.should_exit = True
            server.force_exit = server.force_exit or again

        with stopping_at_signals(stop):
            server.run(sockets=[bound])


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the caller: uvicorn would end the process by raising them again."""
        yield


@contextmanager
def listening(host: str, port: int) -> Generator[socket.socket]:
    """Listen at an address until the block ends."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UnavailableError(f"cannot listen at {quoted(f'{host}:{port}')}: {error.strerror or error}") from error
    with bound:
        # Connections inherit this option. asyncio sets it only if it opens the socket itself. Without it, each answer
        # takes two packets, and the second one waits 40 ms for the client's delayed ACK.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield bound
