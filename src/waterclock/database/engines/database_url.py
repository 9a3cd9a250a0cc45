"""Parses the URLs of databases, and finds the dialect for each URL scheme."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock._support.urls import shown
from waterclock.database.engines.engine_dialect import EngineDialect
from waterclock.database.engines.mariadb import MariadbDialect
from waterclock.database.engines.postgresql import PostgresqlDialect
from waterclock.database.engines.sqlite import SqliteDialect
from waterclock.errors import InvalidArgumentError

DIALECTS: dict[str, type[EngineDialect]] = {
    "sqlite": SqliteDialect,
    "postgresql": PostgresqlDialect,
    "mysql": MariadbDialect,
    "mariadb": MariadbDialect,
}
"""The supported databases, by the scheme of their URLs."""

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
"""The drivers of the extras, for URLs that name none."""

_ASYNCHRONOUS = (
    "mysql+aiomysql",
    "mysql+asyncmy",
    "mariadb+aiomysql",
    "mariadb+asyncmy",
    "postgresql+asyncpg",
    "postgresql+psycopg_async",
    "sqlite+aiosqlite",
)
"""Drivers of SQLAlchemy's asynchronous engines."""

_LAST_PORT = 65_535  # with a larger one, PyMySQL reports, after a wait, that the server refused the connection


def parse_url(url: str) -> sa.URL:
    """Parse a database's URL, in any supported spelling; InvalidArgumentError if invalid."""
    try:
        str(url).encode()  # fails for a lone surrogate
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (exc.ArgumentError, AttributeError, TypeError, ValueError):
        # From None, because SQLAlchemy's own error quotes the whole URL.
        raise InvalidArgumentError(
            "url must be a database URL such as sqlite:///factory.db or postgresql://user:password@host:5432/factory,"
            f" got {shown(url)!r}"
        ) from None
    if backend == "postgres":  # as Heroku and Django write it
        parsed = parsed.set(drivername="postgresql" + parsed.drivername.removeprefix("postgres"))
        backend = "postgresql"
    if backend not in DIALECTS:
        raise InvalidArgumentError(f"url must begin with one of {', '.join(DIALECTS)}, got {shown(url)!r}")
    if parsed.drivername in _ASYNCHRONOUS:
        raise InvalidArgumentError(
            f"url must name a synchronous driver, such as {backend}://, got {shown(url)!r}. Pass your own"
            " asynchronous connections as connection="
        )
    if backend != "sqlite" and _has_another_at(url, parsed):
        raise InvalidArgumentError(
            f"url must have one @, got {shown(url)!r}. Write an @ that belongs to the password as %40"
        )
    if not all(map(_is_port, _ports(parsed))):
        raise InvalidArgumentError(f"url must have a port from 1 to {_LAST_PORT} or no port, got {shown(url)!r}")
    if parsed.drivername in _DRIVERS:
        parsed = parsed.set(drivername=_DRIVERS[parsed.drivername])
    return parsed


def _ports(parsed: sa.URL) -> Iterator[str]:
    """Return the ports of a URL: after its host, and in its query, where PostgreSQL has several of each."""
    if parsed.port is not None:
        yield str(parsed.port)
    for value in parsed.normalized_query.get("port", ()):
        yield from filter(None, value.split(","))  # an omitted one is the default
    for value in parsed.normalized_query.get("host", ()):
        for host in value.split(","):
            name, colon, port = host.rpartition(":")
            if colon and port and not host.startswith("/") and (":" not in name or name.endswith("]")):
                yield port


def _is_port(text: str) -> bool:
    text = text.strip()
    return text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _LAST_PORT


def _has_another_at(url: str, parsed: sa.URL) -> bool:
    # A part of the password would be taken for a host or a database, which errors show.
    return "@" in (parsed.host or "") or ("@" in (parsed.database or "") and "%40" not in str(url))
