"""Translates SQL conditions to SQLAlchemy expressions with bound values. Rejects unknown columns and wrong types."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model import condition as tree
from waterclock.tables.model.condition_parser import refuse

Like = Callable[[sa.ColumnElement[Any], str], sa.ColumnElement[bool]]
"""Builds a case-sensitive LIKE in which only % and _ have a meaning."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_INTEGERS = range(-(2**63), 2**63)


class Binder:
    """Translates a condition tree into an expression.

    ``name`` and ``text`` are the argument's name and its text, for errors. ``columns`` are those that may be used.
    ``parameters`` are values by name. ``like`` is the database's form of LIKE.
    """

    def __init__(
        self,
        name: str,
        text: str,
        columns: Mapping[str, sa.ColumnElement[Any]],
        parameters: Mapping[str, object],
        like: Like,
    ) -> None:
        self._name, self._text = name, text
        self._columns, self._parameters, self._like = columns, parameters, like
        self.used: set[str] = set()

    def condition(self, condition: tree.Condition) -> sa.ColumnElement[bool]:
        """Bind a condition; InvalidArgumentError shows the position of an error."""
        match condition:
            case tree.Compare(left, comparator, right):
                found = self._compare(left, comparator, right)
            case tree.In(subject, members, negated):
                column = self._subject(subject)
                found = _negate(column.in_([self._against(subject, column, one, "=") for one in members]), negated)
            case tree.Between(subject, low, high, negated):
                column = self._subject(subject)
                least, greatest = (self._against(subject, column, end, "<") for end in (low, high))
                found = _negate(column.between(least, greatest), negated)
            case tree.Like(subject, pattern, negated):
                found = _negate(self._likeness(subject, pattern), negated)
            case tree.IsNull(subject, negated):
                column = self._subject(subject)
                found = column.is_not(None) if negated else column.is_(None)
            case tree.Not(inner):
                found = sa.not_(self.condition(inner))
            case tree.All(parts):
                found = sa.and_(*map(self.condition, parts))
            case tree.Any(parts):
                found = sa.or_(*map(self.condition, parts))
        return found

    def order(self, keys: Sequence[tree.SortKey]) -> list[sa.ColumnElement[Any]]:
        """Bind sort keys. Databases disagree on where NULL goes; here it is always last."""
        made: list[sa.ColumnElement[Any]] = []
        for key in keys:
            column = self._column(key.column)
            if _family(column) is None:
                self._refuse(key.column, f"{quoted(key.column.name)} holds {_holds(column)}, which cannot be ordered")
            made += [column.is_(None), column.desc() if key.descending else column.asc()]
        return made

    def _compare(self, left: tree.Operand, comparator: str, right: tree.Operand) -> sa.ColumnElement[bool]:
        if isinstance(left, tree.Column):
            column = self._column(left)
            return _COMPARE[comparator](column, self._against(left, column, right, comparator))
        column = self._subject(right)
        return _COMPARE[comparator](self._against(right, column, left, comparator), column)

    def _likeness(self, subject: tree.Operand, pattern: tree.Operand) -> sa.ColumnElement[bool]:
        column = self._subject(subject)
        if _family(column) != "text":
            self._refuse(subject, f"LIKE needs a text column, but {_name(subject)} holds {_holds(column)}")
        if isinstance(pattern, tree.Column):
            self._refuse(pattern, "the pattern of LIKE must be a string or a :parameter")
        value = self._value(pattern)
        if not isinstance(value, str):
            self._refuse(pattern, f"the pattern of LIKE must be a string, got {quoted(value)}")
        return self._like(column, value)

    def _subject(self, operand: tree.Operand) -> sa.ColumnElement[Any]:
        if not isinstance(operand, tree.Column):
            self._refuse(operand, "expected a column: an expression without a column selects nothing")
        return self._column(operand)

    def _column(self, column: tree.Column) -> sa.ColumnElement[Any]:
        if column.name not in self._columns:
            self._refuse(column, f"no column named {quoted(column.name)}; the columns are {', '.join(self._columns)}")
        return self._columns[column.name]

    def _against(
        self, subject: tree.Operand, column: sa.ColumnElement[Any], other: tree.Operand, comparator: str
    ) -> sa.ColumnElement[Any]:
        """Return the operand that a column is compared with, if their types agree."""
        family = _family(column)
        if family is None or (family == "truth" and comparator not in ("=", "<>")):
            self._refuse(subject, f"{_name(subject)} holds {_holds(column)}, which does not support this comparison")
        if isinstance(other, tree.Column):
            found = self._column(other)
            if _family(found) != family:
                self._disagree(other, subject, column, f"{quoted(other.name)}, which holds {_holds(found)}")
            return found
        value = self._value(other)
        bound = _bind(family, column, value)
        if bound is None:
            self._disagree(other, subject, column, f"the {type(value).__name__} {quoted(value)}")
        return bound

    def _value(self, operand: tree.Operand) -> object:
        if isinstance(operand, tree.Constant):
            return operand.value
        if operand.name not in self._parameters:
            known = ", ".join(map(str, self._parameters)) or "none"
            self._refuse(operand, f"no parameter named {quoted(operand.name)}; parameters= has {known}")
        self.used.add(operand.name)
        return self._parameters[operand.name]

    def _disagree(
        self, other: tree.Operand, subject: tree.Operand, column: sa.ColumnElement[Any], what: str
    ) -> NoReturn:
        self._refuse(other, f"{_name(subject)} holds {_holds(column)} and cannot be compared with {what}")

    def _refuse(self, operand: tree.Operand, problem: str) -> NoReturn:
        refuse(self._name, self._text, operand.at, problem)


def check_parameters(parameters: object, used: set[str]) -> None:
    """Raise an error for parameters that no text uses: a name is misspelt in one of them."""
    for name in parameters if isinstance(parameters, Mapping) else ():
        if name not in used:
            raise InvalidArgumentError(
                f"parameters must be used in where, got the unused {name}. Remove {name}, or write :{name} in where"
            )


def _negate(condition: sa.ColumnElement[bool], negated: bool) -> sa.ColumnElement[bool]:
    return sa.not_(condition) if negated else condition


def _name(operand: tree.Operand) -> str:
    return repr(operand.name) if isinstance(operand, tree.Column | tree.Parameter) else repr(operand.value)


def _family(column: sa.ColumnElement[Any]) -> str | None:
    """Return the types that a column can be compared with; None: no comparison."""
    try:
        python_type = column.type.python_type
    except NotImplementedError:
        return None
    if issubclass(python_type, bool):
        return "truth"
    if issubclass(python_type, int | float | Decimal):
        return "number"
    if issubclass(python_type, uuid.UUID):
        return "uuid"
    return "text" if issubclass(python_type, str) else None


def _holds(column: sa.ColumnElement[Any]) -> str:
    words = {"truth": "booleans", "number": "numbers", "uuid": "UUIDs", "text": "text"}
    return words.get(_family(column) or "", str(column.type).lower())


def _bind(family: str | None, column: sa.ColumnElement[Any], value: object) -> sa.ColumnElement[Any] | None:
    """Bind a value in a type that compares with the column unchanged; None if they do not agree."""
    if family == "truth" and isinstance(value, bool):
        return sa.literal(value, sa.Boolean())
    if family == "text" and isinstance(value, str) and _is_plain(value):
        return sa.literal(value, sa.String())
    if family == "uuid" and isinstance(value, str | uuid.UUID):
        try:
            return sa.literal(uuid.UUID(str(value)), column.type)
        except ValueError:
            return None
    if family == "number" and not isinstance(value, bool):
        return _bind_number(value)
    return None


def _bind_number(value: object) -> sa.ColumnElement[Any] | None:
    if isinstance(value, int):
        return sa.literal(value, sa.BigInteger()) if value in _INTEGERS else None
    number = float(value) if isinstance(value, float | Decimal) else None
    return None if number is None or number - number != 0 else sa.literal(number, sa.Double())


def _is_plain(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= sign <= "\udfff" for sign in text)
