"""Parses conditions by recursive descent. The keywords follow SQL (ISO/IEC 9075-2, 8 "Predicates").

condition: term (OR term)*
term:      factor (AND factor)*
factor:    NOT factor | "(" condition ")" | predicate
predicate: operand ( = | <> | != | < | <= | > | >= operand | IS [NOT] NULL
                   | [NOT] IN "(" operand ("," operand)* ")" | [NOT] BETWEEN operand AND operand | [NOT] LIKE operand )
operand:   column | "column" | 'text' | number | TRUE | FALSE | :parameter
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar, cast

from waterclock._support.quoting import quoted
from waterclock.database.schema.types import BIGINTS
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.condition import (
    All,
    Any,
    Between,
    Column,
    Comparator,
    Compare,
    Condition,
    Constant,
    In,
    IsNull,
    Like,
    Not,
    Operand,
    Parameter,
    SortKey,
)

_T = TypeVar("_T")

LONGEST = 10_000  # maximum length of a text, in characters
_SHOWN = 200  # characters that an error shows on either side of the position
DEEPEST = 50  # maximum nesting of conditions, and so the depth of the parser's recursion

MOST = 200
"""Maximum number of predicates of a condition. Databases have limits of their own, with less helpful errors."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>[^\W\d]\w*) | "(?P<quoted>(?:[^"]|"")+)" | '(?P<text>(?:[^']|'')*)'
        | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) | :(?P<parameter>[^\W\d]\w*)
        | (?P<sign><>|!=|<=|>=|[=<>(),]) | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE", "ASC", "DESC"))
_COMPARATORS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_COLUMN, _VALUE = "a column", "a column, a value or a :parameter"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def keyword(self) -> str:
        return self.text.upper() if self.kind == "word" and self.text.upper() in _KEYWORDS else ""

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def parse_condition(text: object) -> Condition:
    """Parse a condition; InvalidArgumentError shows the position of an error."""
    return _Parser("where", text).all(_Parser.condition)


def parse_order(text: object) -> tuple[SortKey, ...]:
    """Parse the text after ORDER BY: columns, each with ASC or DESC, separated by commas."""
    return _Parser("order", text).all(_Parser.order)


def refuse(name: str, text: str, at: int, problem: str) -> NoReturn:
    """Raise an InvalidArgumentError that shows a position in a text."""
    line_start = max(text.rfind("\n", 0, at) + 1, at - _SHOWN)
    line = text[line_start : at + _SHOWN].split("\n", 1)[0]
    raise InvalidArgumentError(f"{name}: {problem}\n  {line}\n  {' ' * (at - line_start)}^")


class _Parser:
    def __init__(self, name: str, text: object) -> None:
        if not isinstance(text, str) or len(text) > LONGEST:
            what = f"{len(text)} characters" if isinstance(text, str) else quoted(text)
            raise InvalidArgumentError(f"{name} must be a string of at most {LONGEST} characters, got {what}")
        self._name, self._text = name, text
        self._depth = self._predicates = 0
        self._at = 0
        self._next = self._read()

    def all(self, rule: Callable[[_Parser], _T]) -> _T:
        found = rule(self)
        if self._next.kind != "end":
            self._expected("the end, AND or OR" if self._name == "where" else "a comma or the end")
        return found

    def condition(self) -> Condition:
        parts = self._chain("OR", self._term)
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def order(self) -> tuple[SortKey, ...]:
        keys = [self._sort_key()]
        while self._takes(","):
            keys.append(self._sort_key())
        return tuple(keys)

    def _term(self) -> Condition:
        parts = self._chain("AND", self._factor)
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _chain(self, keyword: str, rule: Callable[[], Condition]) -> list[Condition]:
        parts = [rule()]
        while self._takes(keyword):
            parts.append(rule())
        return parts

    def _factor(self) -> Condition:
        token = self._next
        if token.keyword != "NOT" and token.text != "(":
            return self._predicate()
        self._depth += 1
        if self._depth > DEEPEST:
            refuse(self._name, self._text, token.at, f"the condition is nested more than {DEEPEST} levels deep")
        self._advance()
        if token.keyword == "NOT":
            found: Condition = Not(self._factor())
        else:
            found = self.condition()
            self._needs(")")
        self._depth -= 1
        return found

    def _predicate(self) -> Condition:
        self._predicates += 1
        if self._predicates > MOST:
            refuse(self._name, self._text, self._next.at, f"the condition has more than {MOST} comparisons; use IN")
        subject = self._operand()
        sign = _COMPARATORS.get(self._next.text) if self._next.kind == "sign" else None
        if sign is not None:
            self._advance()
            return Compare(subject, cast("Comparator", sign), self._operand())
        if self._takes("IS"):
            negated = self._takes("NOT")
            self._needs("NULL")
            return IsNull(subject, negated)
        negated = self._takes("NOT")
        if self._takes("IN"):
            return In(subject, self._members(), negated)
        if self._takes("BETWEEN"):
            low = self._operand()
            self._needs("AND")
            return Between(subject, low, self._operand(), negated)
        if self._takes("LIKE"):
            return Like(subject, self._operand(), negated)
        return self._expected("IN, BETWEEN or LIKE" if negated else "a comparison")

    def _members(self) -> tuple[Operand, ...]:
        self._needs("(")
        members = [self._operand()]
        while self._takes(","):
            members.append(self._operand())
        self._needs(")")
        return tuple(members)

    def _sort_key(self) -> SortKey:
        column = self._column() or self._expected(_COLUMN)
        descending = self._takes("DESC")
        if not descending:
            self._takes("ASC")
        return SortKey(column, descending)

    def _operand(self) -> Operand:
        found = self._column() or self._value()
        return found if found is not None else self._expected(_VALUE)

    def _column(self) -> Column | None:
        token = self._next
        if token.kind == "quoted" or (token.kind == "word" and not token.keyword):
            self._advance()
            return Column(token.text, token.at)
        return None

    def _value(self) -> Operand | None:
        token = self._next
        if token.keyword == "NULL":
            refuse(self._name, self._text, token.at, "nothing equals NULL; write IS NULL or IS NOT NULL")
        if token.keyword in ("TRUE", "FALSE"):
            found: Operand = Constant(token.keyword == "TRUE", token.at)
        elif token.kind == "text":
            found = Constant(token.text, token.at)
        elif token.kind == "number":
            found = Constant(self._number(token), token.at)
        elif token.kind == "parameter":
            found = Parameter(token.text, token.at)
        else:
            return None
        self._advance()
        return found

    def _number(self, token: _Token) -> int | float:
        if re.fullmatch(r"[+-]?\d{1,20}", token.text) and int(token.text) in BIGINTS:
            return int(token.text)
        number = float(token.text)
        if not math.isfinite(number) or re.fullmatch(r"[+-]?\d+", token.text):
            refuse(self._name, self._text, token.at, f"the number {token.text} is too large for any column")
        return number

    def _takes(self, word: str) -> bool:
        token = self._next
        if token.keyword == word or (token.kind == "sign" and token.text == word):
            self._advance()
            return True
        return False

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            self._expected(word)

    def _expected(self, what: str) -> NoReturn:
        refuse(self._name, self._text, self._next.at, f"expected {what}, got {self._next}")

    def _advance(self) -> None:
        self._next = self._read()

    def _read(self) -> _Token:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            at = self._at + len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
            if self._text[at] in "'\"":
                refuse(self._name, self._text, at, f"this {self._text[at]} is not closed, or encloses nothing")
            refuse(self._name, self._text, at, f"unexpected character {self._text[at]!r}")
        kind = match.lastgroup
        self._at = match.end()
        text = match[kind]
        if kind == "quoted":
            text = text.replace('""', '"')
        elif kind == "text":
            text = text.replace("''", "'")
        self._check(text, match.start(kind))
        return _Token(kind, text, match.start(kind) - (kind in ("quoted", "text", "parameter")))

    def _check(self, text: str, at: int) -> None:
        if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
            refuse(self._name, self._text, at, "this text holds a character that databases cannot store")
