"""Conditions as a tree: `condition_parser` reads it, `write` writes it, and `condition_sql` binds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Value = bool | int | float | str
Comparator = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``at`` is where it stands in the text."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written in the text."""

    value: Value
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that comes with the text under a name."""

    name: str
    at: int = field(default=0, compare=False)


Operand = Column | Constant | Parameter


@dataclass(frozen=True, slots=True)
class Compare:
    """``left = right`` and its like."""

    left: Operand
    comparator: Comparator
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    """``subject [NOT] IN (members)``."""

    subject: Operand
    members: tuple[Operand, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Between:
    """``subject [NOT] BETWEEN low AND high``."""

    subject: Operand
    low: Operand
    high: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """``subject [NOT] LIKE pattern``."""

    subject: Operand
    pattern: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """``subject IS [NOT] NULL``."""

    subject: Operand
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT (condition)``."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class All:
    """Two conditions or more, with AND between them."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Two conditions or more, with OR between them."""

    conditions: tuple[Condition, ...]


Condition = Compare | In | Between | Like | IsNull | Not | All | Any


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: Column
    descending: bool = False


def write(condition: Condition) -> str:
    """Write a condition so that parsing it gives the same tree."""
    match condition:
        case Compare(left, comparator, right):
            text = f"{_operand(left)} {comparator} {_operand(right)}"
        case In(subject, members, negated):
            text = f"{_operand(subject)} {_not(negated)}IN ({', '.join(map(_operand, members))})"
        case Between(subject, low, high, negated):
            text = f"{_operand(subject)} {_not(negated)}BETWEEN {_operand(low)} AND {_operand(high)}"
        case Like(subject, pattern, negated):
            text = f"{_operand(subject)} {_not(negated)}LIKE {_operand(pattern)}"
        case IsNull(subject, negated):
            text = f"{_operand(subject)} IS {_not(negated)}NULL"
        case Not(inner):
            text = f"NOT ({write(inner)})"
        case All(parts):
            text = " AND ".join(f"({write(part)})" for part in parts)
        case Any(parts):
            text = " OR ".join(f"({write(part)})" for part in parts)
    return text


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _operand(operand: Operand) -> str:
    match operand:
        case Column(name):
            return '"' + name.replace('"', '""') + '"'
        case Parameter(name):
            return f":{name}"
        case Constant(bool() as truth):
            return "TRUE" if truth else "FALSE"
        case Constant(str() as text):
            return "'" + text.replace("'", "''") + "'"
        case Constant(number):
            return repr(number)
