"""Uses several databases as one keyspace: the messages of a table are spread over them by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from waterclock._support.closing import Closing
from waterclock._support.pickling import refuse_pickling
from waterclock._support.quoting import quoted
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.tables.model.keyspace import KeyRange, check_cover
from waterclock.tables.sharding.shard import Opened, Shard
from waterclock.tables.sharding.sharded_table import ShardedTable, refuse_limits


class ShardedDatabase(Closing):
    """A keyspace over several databases, each with its key range. Thread-safe; usable in ``with``.

    Topics are not sharded: connect to one database for them.

    Parameters
    ----------
    urls
        Key ranges, as Vitess writes them, and their databases; each keyspace id must be in exactly one.
    open_database
        Opens the database at a URL.

    Raises
    ------
    InvalidArgumentError
        If the key ranges have a hole or an overlap, which the error names.
    UnavailableError
        If no database can be opened. As long as one can, the others are opened once they are available.
    """

    def __init__(self, urls: Mapping[str, str], open_database: Callable[[str], Opened]) -> None:
        ranges = check_cover(urls)
        by_range = {KeyRange.parse(text, "shards"): url for text, url in urls.items()}
        if len(set(urls.values())) < len(urls):
            raise InvalidArgumentError("shards must have different URLs; every shard is a database of its own")
        self._shards = [Shard(one, by_range[one], open_database) for one in ranges]
        self._open()

    @property
    def shards(self) -> list[str]:
        """Names of the shards, which are their key ranges, in order."""
        return [shard.name for shard in self._shards]

    def shard(self, name: str) -> Shard:
        """Return one shard, with its ``backend`` for transactions of your own; NotFoundError if missing."""
        wanted = KeyRange.parse(name, "name")
        for shard in self._shards:
            if shard.key_range == wanted:
                return shard
        raise NotFoundError(f"no shard named {quoted(name)}; the shards are {', '.join(self.shards)}")

    def create_table(self, name: str, *, exist_ok: bool = False, **options: Any) -> ShardedTable:
        """Create a message table on every shard; `Database.create_table` explains the options.

        If a shard was unavailable, run it again to create the table there.

        Raises
        ------
        AlreadyExistsError
            If every shard has it and ``exist_ok`` is False.
        InvalidArgumentError
            For an invalid option, and for ``groups``.
        UnavailableError
            If a shard is unavailable.
        """
        if options.get("groups") is not None:
            raise InvalidArgumentError(
                "groups must be omitted in a sharded table, which spreads messages by their ids, got"
                f" {options['groups']!r}. Use a table that is not sharded"
            )
        refuse_limits(options)
        missing = [shard for shard in self._shards if not _has(shard, name)]
        if not missing and not exist_ok:
            raise AlreadyExistsError(
                f"message table {quoted(name)} already exists on every shard. Open the table, or pass exist_ok=True"
            )
        for shard in missing or self._shards[:1]:  # an existing one compares its options with these
            shard.database.create_table(name, key_range=shard.name, exist_ok=True, **options)
        return self.table(name)

    def table(self, name: str) -> ShardedTable:
        """Open a message table; NotFoundError if a shard has none of this name."""
        return ShardedTable.open(name, self._shards)

    def tables(self) -> list[str]:
        """Return the names of all message tables of any shard, in alphabetical order."""
        return sorted({name for shard in self._shards for name in shard.database.tables()})

    def create_topic(self, name: str, **options: Any) -> NoReturn:  # noqa: ARG002  # as the databases' own
        """Raise InvalidArgumentError: a topic is in one database."""
        raise _no_topics(name)

    def topic(self, name: str) -> NoReturn:
        """Raise InvalidArgumentError: a topic is in one database."""
        raise _no_topics(name)

    def topics(self) -> list[str]:
        """Return no topics."""
        return []

    def close(self) -> None:
        """Close all connections."""
        for shard in self._shards:
            shard.close()

    def _open(self) -> None:
        errors: list[UnavailableError] = []
        for shard in self._shards:
            try:
                _ = shard.database
            except UnavailableError as error:
                shard.note_away(error)
                errors.append(error)
        if len(errors) == len(self._shards):
            raise UnavailableError(f"all shards are unavailable: {'; '.join(map(str, errors))}") from errors[0]

    def __repr__(self) -> str:
        return f"<ShardedDatabase {', '.join(self.shards)}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Connect in the other process")


def _has(shard: Shard, name: str) -> bool:
    return shard.backend.has_catalogue() and name in shard.database.tables()


def _no_topics(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"cannot open topic {quoted(name)} in a sharded database: a topic is in one database. Connect to that database"
        " alone: connect(url)"
    )
