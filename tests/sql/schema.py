"""The tables of the catalogue and of messages, each column with its meaning, as a page shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import griffe
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeEngine

from waterclock.database.schema import (
    ingest_catalogue,
    process_catalogue,
    server_catalogue,
    table_catalogue,
    topic_catalogue,
    upkeep_catalogue,
)
from waterclock.database.schema.catalogue import metadata
from waterclock.tables.model.schema import message_rows

_MODULES = (topic_catalogue, table_catalogue, upkeep_catalogue, ingest_catalogue, process_catalogue, server_catalogue)
_DIALECTS = {"SQLite": sqlite.dialect(), "PostgreSQL": postgresql.dialect(), "MariaDB": mysql.dialect()}
_SPELLING = re.compile(r" (CHARACTER SET|COLLATE) \w+")


def catalogue_tables() -> list[sa.Table]:
    """Give the tables of the catalogue, those of topics first."""
    places = {id(value): place for module in _MODULES for place, value in enumerate(vars(module).values())}
    modules = {id(value): number for number, module in enumerate(_MODULES) for value in vars(module).values()}
    return sorted(metadata.tables.values(), key=lambda table: (modules[id(table)], places[id(table)]))


def message_table() -> sa.Table:
    """Give a table of messages as it is unless options say something else."""
    return message_rows("orders", "bigint", "bytes", [])


def meaning(table: sa.Table) -> str:
    """Give the first sentence of what stands below a table of the catalogue in the code."""
    [(module, name)] = [(module, name) for module in _MODULES for name, value in vars(module).items() if value is table]
    docstring = _read(module)[name].docstring
    assert docstring is not None, f"{name} in {module.__name__} has no docstring"
    return " ".join(docstring.value.split("\n\n")[0].split()).replace("``", "`")


@cache
def _read(module: ModuleType) -> griffe.Module:
    path = Path(module.__file__ or "")
    return griffe.visit(module.__name__, path, path.read_text())


def column_lines(table: sa.Table) -> Iterator[str]:
    """Write a table's columns as a table of Markdown."""
    yield "| column | type | may be NULL | meaning |"
    yield "| --- | --- | --- | --- |"
    for column in table.columns:
        assert column.doc, f"{table.name}.{column.name} has no meaning; give its sa.Column a doc="
        yield f"| `{column.name}` | {_types(column.type)} | {_null(column)} | {column.doc.replace('|', '&#124;')} |"


def _types(column_type: TypeEngine[object]) -> str:
    types = {name: _SPELLING.sub("", column_type.compile(dialect)) for name, dialect in _DIALECTS.items()}
    usual = types["PostgreSQL"]
    others = [f"{name}: {kind}" for name, kind in types.items() if kind != usual]
    return "; ".join([usual, *others])


def _null(column: sa.Column[object]) -> str:
    if column.primary_key:
        return "no, key"
    if column.nullable:
        return "yes"
    default = column.server_default
    if not isinstance(default, sa.DefaultClause):
        return "no"
    return f"no, {default.arg} unless given" if default.arg else "no, empty unless given"
