"""The three servers: how each one is set up, started, asked whether it is ready, stopped and killed."""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import random
import secrets
import signal
import socket
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from testservers.finding import Found
from testservers.processes import end_with_parent, kill_with_children

USER = "waterclock"
PATIENCE = 60.0
"""Seconds within which a server must have started, or have stopped before it is killed."""

# No client may rely on the zone of its server's clock, so the tests' servers are not in UTC.
_ZONE = "Asia/Kathmandu"
_ZONE_OFFSET = "+05:45"

_CONNECTIONS = 450  # tests of several processes at a time, one of them beside 300 that are idle

_PORTS = range(15_000, 32_000)


class ServerError(Exception):
    """A server did not do what it should; the text says how it went wrong."""


class Server(ABC):
    """One private server in a folder of its own, reachable from this machine with a password only.

    As root it runs as ``nobody``, who can read no other server's data and owns none.
    """

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    scheme: ClassVar[str]

    def __init__(self, found: Found, parent: Path) -> None:
        self.product = found.product
        self.programs = found.programs
        self.folder = parent / found.product.name
        self.data = self.folder / "data"
        self.log = parent / f"{found.product.name}.log"
        self.port = _free_port()
        self.password = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"{self.scheme}://{USER}:{self.password}@127.0.0.1:{self.port}{self._path()}"

    @property
    def pid(self) -> int:
        """The main process, which changes with every start."""
        return self._running().pid

    def set_up(self) -> None:
        """Make the data folder."""
        self.folder.mkdir(mode=0o700)
        self._give(self.folder)
        self._initialise()

    def start(self) -> None:
        """Start, and return when the server answers."""
        with self.log.open("ab") as log:
            process = subprocess.Popen[bytes](
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_account()
            )
        self._process = process
        give_up_at = time.monotonic() + PATIENCE
        while not self._ready():
            if process.poll() is not None:
                raise self._error(f"ended with exit code {process.returncode} instead of starting")
            if time.monotonic() > give_up_at:
                raise self._error(f"did not answer within {PATIENCE:g} s")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop as an administrator would: nothing committed is lost, and clients are cut off. May be called twice."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(self.stop_signal)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End every process of the server at once, as a power cut would."""
        try:
            kill_with_children(self._running(), PATIENCE)
        except TimeoutError as error:
            raise self._error(f"could not be killed: {error}") from error

    @abstractmethod
    def _initialise(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str | Path]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    @abstractmethod
    def _path(self) -> str: ...

    def _run(self, command: Sequence[str | Path], text: str = "") -> None:
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, input=text.encode(), stdout=log, stderr=log, check=False, **self._as_account()
            )
        if done.returncode != 0:
            raise self._error(f"could not be set up: {command[0]} ended with exit code {done.returncode}")

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        self._give(path)
        return path

    def _give(self, path: Path) -> None:
        if self._account:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _as_account(self) -> dict[str, Any]:
        environment = {"PATH": os.defpath + ":/usr/sbin", "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        settings = {"cwd": self.folder, "env": environment, "preexec_fn": end_with_parent(self.stop_signal)}
        if self._account:
            settings |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return settings

    def _ready(self) -> bool:
        try:
            return self._answers()
        except OSError:
            return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise self._error("has not been started")
        return self._process

    def _error(self, what: str) -> ServerError:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if self.log.exists() else ""
        return ServerError(f"{self.product.title} {what}. The end of its log:\n{tail}")


class PostgreSQL(Server):
    """Fast shutdown (SIGINT) ends clients' sessions instead of waiting for them."""

    scheme = "postgresql+psycopg"
    stop_signal = signal.SIGINT

    def _initialise(self) -> None:
        password = self._write("password", self.password)
        self._run([
            self.programs["initdb"], "--no-sync", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8",
            f"--username={USER}", f"--pwfile={password}", f"--pgdata={self.data}",
        ])  # fmt: skip
        password.unlink()
        # A line for each statement.
        statements = f"""CREATE DATABASE "{USER}"\nALTER ROLE "{USER}" PASSWORD '{_verifier(self.password)}'\n"""
        self._run([self.programs["postgres"], "--single", "-D", self.data, "postgres"], statements)

    def _command(self) -> list[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "32MB",
            "max_connections": _CONNECTIONS,
            "max_prepared_transactions": 5,
            "fsync": "on",
            "synchronous_commit": "on",
            "timezone": _ZONE,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self.programs["postgres"], "-D", self.data, "-p", str(self.port), *options]

    def _answers(self) -> bool:
        # A start-up packet of protocol 3.0: "R" asks for the password, "E" says that the server is not ready yet.
        # Through the folder's own socket, as another server might have come to the port first.
        start = struct.pack("!i", 3 << 16) + f"user\0{USER}\0database\0{USER}\0\0".encode()
        with _connected(self.folder / f".s.PGSQL.{self.port}") as peer:
            peer.sendall(struct.pack("!i", len(start) + 4) + start)
            return peer.recv(1) == b"R"

    def _path(self) -> str:
        return f"/{USER}"


class MariaDB(Server):
    """Reads no configuration of the machine's own server."""

    scheme = "mysql+pymysql"

    def _initialise(self) -> None:
        self._run([
            self.programs["mariadb-install-db"], "--no-defaults", "--skip-test-db", f"--datadir={self.data}",
            "--auth-root-authentication-method=socket", "--skip-name-resolve", f"--tmpdir={self.folder}",
        ])  # fmt: skip
        self._write(
            "users.sql",
            f"CREATE DATABASE IF NOT EXISTS `{USER}`;\n"
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n",
        )

    def _command(self) -> list[str | Path]:
        return [
            self.programs["mariadbd"],
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self.folder}",  # of its own: a server that starts removes all temporary tables from there
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'users.sql'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--max-connections={_CONNECTIONS}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",  # as Debian and Ubuntu set it; built in is latin1
            f"--default-time-zone={_ZONE_OFFSET}",
            "--innodb-buffer-pool-size=128M",
            # With a file for each table, the server takes a tenth longer: each test makes and drops some thirty tables.
            "--innodb-file-per-table=OFF",
            "--innodb-flush-log-at-trx-commit=1",
        ]

    def _answers(self) -> bool:
        # The server speaks first: a packet's length and number, then its protocol version; 0xff would be an error.
        with _connected(self.folder / "socket") as peer:
            return peer.recv(5)[4:] == b"\x0a"

    def _path(self) -> str:
        # The server has no certificate; PyMySQL would still read those of the machine, for 45 ms each time it connects.
        return f"/{USER}?ssl_disabled=true"


class Mosquitto(Server):
    """Keeps retained messages and sessions over an orderly restart; a kill loses what it had not saved."""

    scheme = "mqtt"

    def _initialise(self) -> None:
        self.data.mkdir(mode=0o700)
        self._give(self.data)
        passwords = self._write("passwords", f"{USER}:{self.password}\n")
        self._run([self.programs["mosquitto_passwd"], "-U", passwords])
        self._write(
            "mosquitto.conf",
            f"listener {self.port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\n"
            f"persistence true\npersistence_location {self.data}/\nlog_dest stderr\n",
        )

    def _command(self) -> list[str | Path]:
        return [self.programs["mosquitto"], "-c", self.folder / "mosquitto.conf"]

    def _answers(self) -> bool:
        # CONNECT of MQTT 3.1.1, clean session, with user and password; CONNACK with code 0 is ours alone to get.
        parts = (b"ready", USER.encode(), self.password.encode())
        body = b"\0\4MQTT\4\xc2\0\5" + b"".join(struct.pack("!H", len(part)) + part for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as peer:
            peer.sendall(bytes([0x10, len(body)]) + body)
            return peer.recv(4) == b"\x20\2\0\0"

    def _path(self) -> str:
        return ""


SERVERS: dict[str, type[Server]] = {"postgresql": PostgreSQL, "mariadb": MariaDB, "mosquitto": Mosquitto}


def _free_port() -> int:
    # Below the range that the kernel hands to clients: a client that tries again and again while its server is down
    # would otherwise be given the server's own port one day, and keep it.
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError(f"no port between {_PORTS.start} and {_PORTS.stop} is free on 127.0.0.1")


def _verifier(password: str) -> str:
    """Give what PostgreSQL keeps of a password by RFC 5802, hashed once instead of 4,096 times.

    Nobody guesses 128 random bits, and every connection of every test would take 3 ms of its client's processor.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt_text, stored_text, server_text = (b64encode(part).decode() for part in (salt, stored, server))
    return f"SCRAM-SHA-256$1:{salt_text}${stored_text}:{server_text}"


def _connected(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(1)
        peer.connect(str(path))
    except OSError:
        peer.close()
        raise
    return peer
