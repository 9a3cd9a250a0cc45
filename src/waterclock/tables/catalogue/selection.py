"""Selects the messages that a consumer gets, and their order, by a condition and an order in SQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping
from typing import Any, cast

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.condition_sql import Binder, check_parameters
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.model.condition import Condition
from waterclock.tables.model.condition_parser import parse_condition, parse_order
from waterclock.tables.model.schema import user_column_names

OWN_WORDS = ("id", "time_scheduled", "time_created", "epoch", "priority", "group_id")
"""Columns of every message table that conditions may use, in addition to the user's columns."""

KIND = "kind"  # the header by which ``kinds`` selects

Bound = tuple[sa.ColumnElement[bool] | None, tuple[sa.ColumnElement[Any], ...]]
_EVERYTHING: Bound = (None, ())


class Selection:
    """A condition and an order, parsed once, and bound again when the table changes."""

    def __init__(
        self,
        where: str | None,  # the text after WHERE; None: every message
        order: str | None,  # the text after ORDER BY; None: by priority, then by due time
        parameters: Mapping[str, object] | None,  # values for the ``:names`` in ``where``
        kinds: Collection[str] | None = None,  # allowed values of the header ``kind``; None: any
    ) -> None:
        if not isinstance(parameters, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]  # users need not check types
            raise InvalidArgumentError(f"parameters must be a dict of values by name, got {quoted(parameters)}")
        self._where, self._order = where, order
        self._condition = None if where is None else parse_condition(where)
        self._keys = () if order is None else parse_order(order)
        self._parameters = dict(parameters or {})
        self._kinds = None if kinds is None else sorted(_checked_kinds(kinds))
        self._bound: tuple[sa.Table, Bound] | None = None

    @property
    def what(self) -> Hashable:
        """Return the key that equal selections of a table share."""
        kinds = None if self._kinds is None else tuple(self._kinds)
        return self._where, repr(sorted(self._parameters.items())), kinds

    def on(self, context: TableContext) -> Bound:
        """Bind to a table.

        Raises `InvalidArgumentError` if a column is missing, types do not agree, or the table has groups or, for an
        order, keys in turns.
        """
        known = self._bound
        if known is None or known[0] is not context.rows:
            known = self._bound = (context.rows, self._bind(context))
        return known[1]

    def _bind(self, context: TableContext) -> Bound:
        if context.options.groups:
            raise InvalidArgumentError(
                f"cannot use where or order with table {context.name!r}: that would break the order of its groups. Put"
                " messages that consumers select or sort into a table without groups"
            )
        if self._keys and context.options.turns_by is not None:
            raise InvalidArgumentError(
                f"cannot use order with table {context.name!r}: limit, rate or fair_by already sets the order. Use"
                " priorities, or a table without these options"
            )
        rows = context.rows
        condition: sa.ColumnElement[bool] | None = None
        if self._condition is not None:
            condition = bind_condition(context, self._where or "", self._condition, self._parameters)
        else:
            check_parameters(self._parameters, set())
        if self._kinds is not None:
            of_kinds = has_header(context, KIND, self._kinds)
            condition = of_kinds if condition is None else sa.and_(condition, of_kinds)
        order = Binder("order", self._order or "", _columns(context), {}, context.sql.like)
        keys = order.order(self._keys)
        # Ties are ordered by due time.
        return condition, (*keys, rows.c.time_next, rows.c.seq) if keys else ()


def select_on(context: TableContext, selection: Selection | None) -> Bound:
    """Bind a selection to a table; None selects every message in the table's order."""
    return _EVERYTHING if selection is None else selection.on(context)


def _checked_kinds(kinds: object) -> Collection[str]:
    if isinstance(kinds, Collection) and not isinstance(kinds, str | bytes | bytearray):
        known = cast("Collection[object]", kinds)
        if known and all(isinstance(kind, str) for kind in known):
            return cast("Collection[str]", known)
    raise InvalidArgumentError(f"kinds must be a collection of strings such as ('paid', 'sent'), got {quoted(kinds)}")


def has_header(context: TableContext, name: str, values: Collection[str]) -> sa.ColumnElement[bool]:
    """Match a header's value in the JSON text of the headers, in which quotes are escaped.

    So no header's value can look like another header. Characters that may or may not be escaped are matched in both
    forms.
    """
    parts = {
        f"{written}:{space}{value}"
        for written in _written(name)
        for each in values
        for value in _written(each)
        for space in (" ", "")
    }
    return sa.or_(*(context.sql.has_in_it(context.rows.c.headers, part) for part in sorted(parts)))


def _written(text: str) -> set[str]:
    """Return the possible spellings of a text in JSON."""
    plain = {json.dumps(text, ensure_ascii=is_ascii) for is_ascii in (True, False)}
    return plain | {each.replace("/", "\\/") for each in plain}


def bind_condition(
    context: TableContext, where: str, condition: Condition, parameters: Mapping[str, object]
) -> sa.ColumnElement[bool]:
    """Bind a condition to the columns that conditions may use. ``where`` is its text, for errors."""
    binder = Binder("where", where, _columns(context), parameters, context.sql.like)
    bound = binder.condition(condition)
    check_parameters(parameters, binder.used)
    return bound


def _columns(context: TableContext) -> dict[str, sa.ColumnElement[Any]]:
    rows = context.rows
    return {name: rows.c[name] for name in (*user_column_names(rows), *OWN_WORDS)}


def make_selection(
    context: TableContext,
    where: str | None,
    order: str | None,
    parameters: Mapping[str, object] | None,
    kinds: Collection[str] | None = None,
) -> Selection | None:
    """Parse a consumer's selection; None if it has none."""
    if where is None and order is None and not parameters and kinds is None:
        return None
    selection = Selection(where, order, parameters, kinds)
    selection.on(context)
    return selection
