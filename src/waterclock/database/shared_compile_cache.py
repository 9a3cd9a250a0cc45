"""A cache of compiled statements, shared by similar databases. Compiling a statement takes longer than running it.

Each engine has its own dialect, and SQLAlchemy does not use its compiled statements for another dialect, even if the
two are identical. This module uses the first of several equal dialects for all of them.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from waterclock.database.per_database_cache import PerDatabaseCache

_FACTS = (bool, int, str, tuple, NoneType, type)  # its other attributes consist of these
_GIVEN = ("_json_serializer", "_json_deserializer")  # functions that its creator may have given
_OF_ITS_OWN = "default_schema_name"  # on MariaDB the database's name, which our statements do not use
_COMPILED = 1000  # twice SQLAlchemy's limit for one engine

_first: dict[tuple[type[sa.Dialect], frozenset[tuple[str, str]]], sa.Dialect] = {}


def _first_like(dialect: sa.Dialect) -> sa.Dialect:
    facts = {
        name: repr(value)
        for name, value in vars(dialect).items()
        if name != _OF_ITS_OWN and (isinstance(value, _FACTS) or name in _GIVEN)
    }
    return _first.setdefault((type(dialect), frozenset(facts.items())), dialect)


_alike = PerDatabaseCache[sa.Dialect](_first_like)


def alike(dialect: sa.Dialect) -> sa.Dialect:
    """Return the first dialect of this process that compiles statements and converts values like this one.

    Dialects are alike if they have the same class, driver, and server version, modes and limits, which are known after
    the first connection.
    """
    return _alike.known.get(dialect) or _alike.of(dialect)


class CompiledStatements:
    """SQLAlchemy's cache of compiled statements, for all engines whose dialects are alike.

    Compiled statements contain no values: SQLAlchemy takes them from the statement that runs.
    """

    def __init__(self) -> None:
        self._kept = LRUCache[Any, Any](_COMPILED)

    def get(self, key: tuple[Any, ...]) -> Any:
        """Return the compiled statement for one of SQLAlchemy's keys, None if missing."""
        return self._kept.get(_shared(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._kept[_shared(key)] = compiled


def _shared(key: tuple[Any, ...]) -> tuple[Any, ...]:
    # A caller of our engine with a schema translation may mean the default schema.
    dialect, statement, columns, translates, many = key
    return (dialect if translates else alike(dialect), statement, columns, translates, many)


COMPILED = CompiledStatements()  # the caches of this process
