"""A broker and the settings of its connections, parsed from a URL and options."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from waterclock._support.quoting import quoted
from waterclock._support.urls import shown
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.time import Duration, to_duration

Version = Literal["5", "3.1.1"]

USERNAME_VARIABLE = "WATERCLOCK_MQTT_USERNAME"
PASSWORD_VARIABLE = "WATERCLOCK_MQTT_PASSWORD"  # noqa: S105  # a name

_PORTS = {"mqtt": 1883, "mqtts": 8883}
_SECOND = 1_000_000_000
_LARGEST_SECONDS = 0xFFFFFFFF
_LONGEST_KEEPALIVE = 0xFFFF  # s, in 16 bits
_MOST_RECEIVED = 20_000
"""Less than a third of all packet ids: ids of remembered messages must not be reused."""
_LONGEST_NAME = 200
"""Maximum characters of a client id: with the broker's address it is a name in the catalogue."""


@dataclass(frozen=True)
class Broker:
    """A broker and how to connect to it."""

    # Its address, and whether it speaks TLS.
    host: str
    port: int
    is_encrypted: bool = False
    client_id: str | None = None  # client id under which the broker keeps the session; None: derived from the topic
    version: Version = "5"  # version of MQTT
    # Credentials; the file is read at each connect. Default: those of the environment.
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    # PEM files: trusted authorities, and this client's certificate and key; read at each connect.
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    keepalive: int = 30  # seconds after which a silent connection is checked
    session_expiry: int = 7 * 86_400  # seconds for which the broker keeps the session without a connection (v5)
    receive_maximum: int = 1_000  # messages that may be in flight (v5)
    connections: int = 1  # how many connections share the filters, which must then be shared filters

    @classmethod
    def checked(
        cls,
        url: str,
        *,
        client_id: str | None = None,
        version: str = "5",
        username: str | None = None,
        password: str | None = None,
        password_file: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        keepalive: Duration = "30s",
        session_expiry: Duration = "7d",
        receive_maximum: int = 1_000,
        connections: int = 1,
    ) -> Broker:
        """Check a URL and options.

        Raises
        ------
        InvalidArgumentError
            Naming the option and the value; never a password.
        """
        host, port, is_encrypted, user, word = _parsed(url)
        if version not in ("5", "3.1.1"):
            raise InvalidArgumentError(f"version must be 5 or 3.1.1, got {quoted(version)}")
        if client_id is not None and not 1 <= len(client_id) <= _LONGEST_NAME:
            raise InvalidArgumentError(f"client_id must have 1 to {_LONGEST_NAME} characters, got {quoted(client_id)}")
        if (certificate is None) != (key is None):
            raise InvalidArgumentError("certificate and key must both be given or both be omitted")
        if not is_encrypted and (ca or certificate):
            raise InvalidArgumentError("ca and certificate need TLS. Write the URL as mqtts://")
        if password is not None and password_file is not None:
            raise InvalidArgumentError("password and password_file must not both be given")
        for name, number, most in (
            ("receive_maximum", receive_maximum, _MOST_RECEIVED),
            ("connections", connections, 64),
        ):
            if not 1 <= number <= most:
                raise InvalidArgumentError(f"{name} must be between 1 and {most}, got {number}")
        return cls(
            host,
            port,
            is_encrypted,
            client_id,
            version,
            username or user or os.environ.get(USERNAME_VARIABLE),
            password or word,
            password_file,
            ca,
            certificate,
            key,
            to_duration(keepalive, "keepalive", minimum=_SECOND, maximum=_LONGEST_KEEPALIVE * _SECOND) // _SECOND,
            min(to_duration(session_expiry, "session_expiry") // _SECOND, _LARGEST_SECONDS),
            receive_maximum,
            connections,
        )

    @property
    def place(self) -> str:
        """Its address, for people and names: HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def current_password(self) -> str | None:
        """Return the password, read from its file or the environment if it is there.

        Raises `UnavailableError` if the file cannot be read.
        """
        if self.password_file is None:
            return self.password or os.environ.get(PASSWORD_VARIABLE)
        try:
            return Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"cannot read password_file {quoted(self.password_file)}: {error}") from None

    def tls_context(self) -> ssl.SSLContext | None:
        """Read the certificates; None without TLS.

        Raises `UnavailableError` if a file cannot be read, or is not a certificate.
        """
        if not self.is_encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(quoted(each) for each in (self.ca, self.certificate, self.key) if each)
            raise UnavailableError(f"cannot read the certificates {files}: {error}") from None
        return context


def _parsed(url: str) -> tuple[str, int, bool, str | None, str | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if (
        parts is None
        or parts.scheme not in _PORTS
        or not parts.hostname
        or port == 0
        or parts.path.strip("/")
        or parts.query
        or parts.fragment
    ):
        raise InvalidArgumentError(
            f"url must be mqtt://HOST or mqtts://HOST, which may end in :PORT, got {shown(url)!r}"
        )
    user = unquote(parts.username) if parts.username else None
    word = unquote(parts.password) if parts.password else None
    return parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "mqtts", user, word
