"""A small HTTP server for metrics and probes, with limits on threads, request times and request sizes."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, UnavailableError

PORT = 9464  # the port of examples: the one that OpenTelemetry's exporters for Prometheus use

MOST_CONNECTIONS = 16
"""Maximum concurrent requests; further ones get 503 at once, which limits the threads of slow clients."""

LONGEST_REQUEST = 8192  # bytes
SLOWEST_REQUEST = 10.0  # seconds in which a request must be sent, and also those in which its answer must be read

_HERE = "127.0.0.1"
_LAST_PORT = 65_535
_TEXT = "text/plain; charset=utf-8"

_log = logging.getLogger(__name__)

Reasons = Callable[[], Sequence[str]]  # returns the reasons why something is not ready; empty if it is ready


@contextmanager
def serving(address: str, name: str, registry: CollectorRegistry, reasons: Reasons) -> Generator[str]:
    """Answer ``/metrics``, ``/livez`` and ``/readyz`` until the block ends; yield the address, with the actual port.

    Raises `InvalidArgumentError` if the address is invalid. Raises `UnavailableError` if it cannot listen there.
    ``address`` is HOST:PORT; port 0 for any free one. ``name`` is the option that names the address, for errors.
    ``reasons`` is asked by ``/readyz``.
    """
    host, port = _parsed(address, name)
    try:
        server = _MetricsServer(host, port, registry, reasons)
    except OSError as error:
        why = error.strerror or error
        raise UnavailableError(
            f"cannot serve metrics at {quoted(address)}: {why}. Choose another address with --{name}"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="waterclock-metrics", daemon=True)
    moments.start(thread)
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"{shown}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        moments.join(thread, SLOWEST_REQUEST)


def _parsed(address: str, name: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT:
        raise InvalidArgumentError(f"{name} must be HOST:PORT, for example {_HERE}:{PORT}, got {quoted(address)}")
    return host.strip("[]") or _HERE, int(port)


class _MetricsServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, registry: CollectorRegistry, reasons: Reasons) -> None:
        self.registry = registry
        self.reasons = reasons
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__(place[:2] if family == socket.AF_INET else place, _Handler)  # pyright: ignore[reportArgumentType]  # IPv6 has four parts

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or say at once that too many requests are being answered."""
        if self._free.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._free.release()
                raise
        else:
            with suppress(OSError):
                request.setblocking(False)
                request.send(_answer(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"too many requests\n"))
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up or are too slow."""


class _Handler(socketserver.BaseRequestHandler):
    server: _MetricsServer  # pyright: ignore[reportIncompatibleVariableOverride]  # no other makes one

    def handle(self) -> None:
        """Read one request, answer it, and close."""
        head = self._head()
        if head is None:
            return
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):  # noqa: PLR2004  # method, path, version
            self._send(_answer(HTTPStatus.BAD_REQUEST, _TEXT, b"bad request\n"))
        elif words[0] not in ("GET", "HEAD"):
            self._send(_answer(HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"only GET and HEAD\n", "Allow: GET, HEAD\r\n"))
        else:
            answer = self._answer_or_fault(words[1].partition("?")[0], _headers(lines[1:]))
            self._send(answer if words[0] == "GET" else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")

    def _head(self) -> bytes | None:
        """Read to the end of the headers; None if the client is too slow, or sends too much."""
        until = moments.monotonic() + SLOWEST_REQUEST
        head = b""
        while b"\r\n\r\n" not in head:
            left = until - moments.monotonic()
            if left <= 0 or len(head) > LONGEST_REQUEST:
                return None
            self.request.settimeout(left)
            piece = self.request.recv(4096)
            if not piece:
                return None
            head += piece
        return head.partition(b"\r\n\r\n")[0]

    def _answer_or_fault(self, path: str, headers: dict[str, str]) -> bytes:
        try:
            return self._answer(path, headers)
        except Exception:  # noqa: BLE001  # no client would see it
            _log.exception("cannot answer %s", quoted(path))
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"internal error; see the log\n")

    def _answer(self, path: str, headers: dict[str, str]) -> bytes:
        if path == "/metrics":
            try:
                encode, kind = choose_encoder(headers.get("accept", ""))
            except (TypeError, ValueError):  # if the version is not a number
                encode, kind = choose_encoder("")
            return _answer(HTTPStatus.OK, kind, encode(self.server.registry))
        if path == "/livez":
            return _answer(HTTPStatus.OK, _TEXT, b"alive\n")
        if path == "/readyz":
            reasons = self.server.reasons()
            text = "".join(f"{reason}\n" for reason in reasons) or "ready\n"
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            return _answer(status, _TEXT, text.encode(errors="backslashreplace"))
        return _answer(HTTPStatus.NOT_FOUND, _TEXT, b"not found; there are /metrics, /livez and /readyz\n")

    def _send(self, answer: bytes) -> None:
        self.request.settimeout(SLOWEST_REQUEST)
        self.request.sendall(answer)


def _headers(lines: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _answer(status: HTTPStatus, kind: str, body: bytes, further: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{further}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
