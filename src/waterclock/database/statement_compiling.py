"""Compiles statements for `driver_fast_path`. Each text is compiled once, with the converters of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once


class IntegerInText(sa.Integer):
    """An integer that each run writes into the text of the statement, so that the server's planner knows it."""


@dataclass(slots=True)
class CompiledStatement:
    text: str
    constants: dict[str, Any]
    computed: tuple[tuple[str, Callable[[], Any]], ...]
    processors: dict[str, Callable[[Any], Any]]
    places: tuple[str, ...] | None  # names in the order of the text, for drivers with positional parameters
    columns: Sequence[sa.ColumnElement[Any]]
    in_text: tuple[str, ...] = ()
    reading: Callable[[Sequence[Any]], Any] | None = field(default=None)  # known once the driver has described its rows

    def text_with(self, parameters: Mapping[str, Any]) -> str:
        """Return the text with the values of each `IntegerInText`."""
        text = self.text
        for name in self.in_text:
            text = text.replace(_place(name), f"{parameters[name]:d}")
        return text


@built_once(maxsize=1024)
def compile_once(
    statement: sa.Executable, dialect: sa.Dialect, keys: tuple[str, ...] | None = None
) -> CompiledStatement:
    # An INSERT of many rows gets its columns from them.
    names: dict[str, Any] = {} if keys is None else {"column_keys": keys}
    clause = cast("sa.ClauseElement", statement)
    compiled: Any = clause.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}, **names)
    text = str(compiled)
    processors: dict[str, Callable[[Any], Any]] = {}
    constants: dict[str, Any] = {}
    computed: list[tuple[str, Callable[[], Any]]] = []
    in_text = tuple(name for name, bind in compiled.binds.items() if isinstance(bind.type, IntegerInText))
    # Expanding parameters, or parameters of a part of the statement, have values that its own parameters do not show.
    known = compiled.construct_params(_check=False)
    for name, bind in compiled.binds.items():
        process = bind.type.dialect_impl(dialect).bind_processor(dialect)
        if process is not None:
            processors[name] = process
        if bind.callable is not None:
            computed.append((name, bind.callable))
        elif bind.unique and type(bind.value) is int and _place(name) in text:
            text = text.replace(_place(name), f"({bind.value})" if bind.value < 0 else str(bind.value))
        elif not bind.required or known.get(name) is not bind.value:
            constants[name] = known.get(name) if process is None else process(known.get(name))
    constants |= {name: value for name, value in known.items() if name not in compiled.binds}
    places = tuple(compiled.positiontup) if compiled.positional else None
    columns = list(statement.exported_columns) if isinstance(statement, sa.sql.expression.ReturnsRows) else []
    return CompiledStatement(text, constants, tuple(computed), processors, places, columns, in_text)


def _place(name: str) -> str:
    """Return the placeholder for a value in a driver with named parameters; constants are cheaper as literals."""
    return f"%({name})s"
