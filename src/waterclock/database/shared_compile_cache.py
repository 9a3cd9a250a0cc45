"""What databases of one kind share in a process: a statement takes longer to compile than most take to run.

Each engine has a dialect of its own, and what was compiled for one is of no use to another, though it is the same
letter for letter. Here the first dialect of a kind stands for all that are like it.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

from waterclock.database.per_database_cache import PerDatabaseCache

_FACTS = (bool, int, str, tuple, NoneType, type)  # its other attributes are made of these
_GIVEN = ("_json_serializer", "_json_deserializer")  # but for functions that its maker may have given
_OF_ITS_OWN = "default_schema_name"  # on MariaDB the database's name, which no statement of ours names
_COMPILED = 1000  # twice what SQLAlchemy keeps for one engine

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
    """Give the first dialect of this process that compiles statements, and converts values, as this one does.

    Alike are those of one class of which the driver and the server say the same: its version, its modes, its limits.
    These are known once there was a connection.
    """
    return _alike.known.get(dialect) or _alike.of(dialect)


class CompiledStatements:
    """SQLAlchemy's cache of compiled statements, for all engines whose dialects are alike.

    The values of a statement, and what computes them, are in none: SQLAlchemy takes them from the statement that runs.
    """

    def __init__(self) -> None:
        self._kept = LRUCache[Any, Any](_COMPILED)

    def get(self, key: tuple[Any, ...]) -> Any:
        """Give what was compiled for a key of SQLAlchemy's, None where nothing was."""
        return self._kept.get(_shared(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._kept[_shared(key)] = compiled


def _shared(key: tuple[Any, ...]) -> tuple[Any, ...]:
    # A caller of our engine who translates schemas may mean the default one.
    dialect, statement, columns, translates, many = key
    return (dialect if translates else alike(dialect), statement, columns, translates, many)


COMPILED = CompiledStatements()
"""Those of this process."""
