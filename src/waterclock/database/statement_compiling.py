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
    constants: Any  # values in the driver's form: a list in the order of the text, or a dict by name
    computed: Sequence[tuple[Callable[[], Any], Sequence[Any]]]  # functions of values, with the places of each
    given: Sequence[tuple[str, Callable[[Any], Any] | None, Sequence[Any]]]  # names of parameters, converters, places
    columns: Sequence[sa.ColumnElement[Any]]
    in_text: tuple[str, ...] = ()
    reading: Callable[[Sequence[Any]], Any] | None = field(default=None)  # known once the driver has described its rows

    def values(self, parameters: Mapping[str, Any]) -> Any:
        """Convert values to the driver's form."""
        values = self.constants.copy()
        for compute, places in self.computed:
            value = compute()
            for place in places:
                values[place] = value
        for name, process, places in self.given:
            value = parameters[name] if process is None else process(parameters[name])
            for place in places:
                values[place] = value
        return values

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
    # Expanding parameters, or parameters of a part of the statement, have values that its own parameters do not show.
    known = compiled.construct_params(_check=False)
    in_order: list[str] | None = compiled.positiontup
    constants = {name: value for name, value in known.items() if name not in compiled.binds}
    computed: list[tuple[Callable[[], Any], Sequence[Any]]] = []
    given: list[tuple[str, Callable[[Any], Any] | None, Sequence[Any]]] = []
    for name in dict.fromkeys(compiled.bind_names.values()):
        bind = compiled.binds[name]
        process = bind.type.dialect_impl(dialect).bind_processor(dialect)
        places = [name] if in_order is None else [place for place, one in enumerate(in_order) if one == name]
        if bind.callable is not None:
            computed.append((bind.callable, places))
        elif bind.unique and type(bind.value) is int and _place(name) in text:
            text = text.replace(_place(name), f"({bind.value})" if bind.value < 0 else str(bind.value))
        elif not bind.required or known.get(name) is not bind.value:
            constants[name] = known.get(name) if process is None else process(known.get(name))
        else:
            given.append((name, process, places))
    in_text = tuple(name for name, _, _ in given if isinstance(compiled.binds[name].type, IntegerInText))
    columns = list(statement.exported_columns) if isinstance(statement, sa.sql.expression.ReturnsRows) else []
    laid_out = constants if in_order is None else [constants.get(name) for name in in_order]
    return CompiledStatement(text, laid_out, computed, given, columns, in_text)


def _place(name: str) -> str:
    """Return the placeholder for a value in a driver with named parameters; constants are cheaper as literals."""
    return f"%({name})s"
