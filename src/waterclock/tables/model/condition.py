"""Conditions as a tree, which `condition_parser` builds and `condition_sql` translates to SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Value = bool | int | float | str
Comparator = Literal["=", "<>", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``at`` is its position in the text."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal in the text."""

    value: Value
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named parameter."""

    name: str
    at: int = field(default=0, compare=False)


Operand = Column | Constant | Parameter


@dataclass(frozen=True, slots=True)
class Compare:
    """``left = right`` and the other comparisons."""

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
    """Two or more conditions joined by AND."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any:
    """Two or more conditions joined by OR."""

    conditions: tuple[Condition, ...]


Condition = Compare | In | Between | Like | IsNull | Not | All | Any


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: Column
    descending: bool = False
