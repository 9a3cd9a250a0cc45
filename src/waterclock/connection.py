"""The way in: ``connect`` opens a database, and the database hands out topics and message tables."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable, message_table_names
from waterclock.time import Clock, Duration
from waterclock.topics.topic import Topic, topic_names


class Database:
    """A database with its topics and message tables. Safe to share between threads; usable in ``with``.

    Attributes
    ----------
    backend
        Engine, transactions and clock, for callers who run SQL of their own.
    ledgers
        Folder or filesystem URL under which sealed ledgers lie.
    """

    def __init__(self, backend: Backend, ledgers: str) -> None:
        self.backend = backend
        self.ledgers = ledgers

    def create_topic(
        self,
        name: str,
        *,
        roll_after: Duration | None = "1h",
        roll_size: int = 64 << 20,
        retention: Duration | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Make a topic, a log of messages.

        Parameters
        ----------
        name
            1 to 255 characters.
        roll_after
            How long a ledger stays open at the most; None: no limit.
        roll_size
            Bytes of entries at which the open ledger is closed and the next one opened.
        retention
            How long messages are kept; None: for ever.
        exist_ok
            Return the topic that is there already, as it is, instead of raising.

        Raises
        ------
        AlreadyExistsError
            Where the topic exists and ``exist_ok`` is False.
        """
        return Topic.create(
            self.backend,
            self.ledgers,
            name,
            roll_after=roll_after,
            roll_size=roll_size,
            retention=retention,
            exist_ok=exist_ok,
        )

    def topic(self, name: str) -> Topic:
        """Open a topic; NotFoundError where there is none of this name."""
        return Topic.open(self.backend, self.ledgers, name)

    def topics(self) -> list[str]:
        """Name every topic, in alphabetical order."""
        return topic_names(self.backend)

    def create_table(self, name: str, **options: Any) -> MessageTable:
        """Make a message table; `MessageTable.create` lists the options.

        Raises
        ------
        AlreadyExistsError
            Where the table exists and ``exist_ok`` is False.
        """
        return MessageTable.create(self.backend, name, **options)

    def table(self, name: str) -> MessageTable:
        """Open a message table; NotFoundError where there is none of this name."""
        return MessageTable.open(self.backend, name)

    def tables(self) -> list[str]:
        """Name every message table, in alphabetical order."""
        return message_table_names(self.backend)

    def close(self) -> None:
        """Give the connections back."""
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.backend.url.render_as_string()}>"


def connect(url: str, ledgers: str | Path | None = None, *, clock: Clock | None = None) -> Database:
    """Open a database, and bring its catalogue to this library's version.

    Parameters
    ----------
    url
        ``sqlite:///factory.db``, ``postgresql+psycopg://…`` or ``mysql+pymysql://…``.
    ledgers
        Folder or filesystem URL (``s3://bucket/folder``) for sealed ledgers. Default for SQLite: ``FILE-ledgers/``
        beside the file.
    clock
        Stands in for the database's clock, for tests and simulations: returns ns since the epoch.

    Raises
    ------
    InvalidArgumentError
        For a URL of another kind, or where a server's database comes without ``ledgers``.
    UnavailableError
        Where the database cannot be opened.
    """
    backend = Backend(url, clock=clock)
    if ledgers is None:
        if backend.dialect.name != "sqlite":
            raise InvalidArgumentError(
                f"ledgers: a database on a server needs to be told where sealed ledgers lie; give a folder or a URL"
                f" that every user of {backend.url.render_as_string()} can reach"
            )
        ledgers = f"{Path(str(backend.url.database)).absolute()}-ledgers"
    return Database(backend, str(ledgers))
