"""Laying a statement out for readers: a clause a line, and what is too long for a line in steps below it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent

WIDTH = 100
"""Characters of a line that the page shows without scrolling."""

_STEP = "    "
_SHORT = 5  # words and commas: a column with its other name
_TOKEN = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`      # texts and quoted names
    | %\(\w+\)[a-z] | [:@]+\w+                     # parameters, casts, variables
    | [\w$.]+ (?:\.[`"][^`"]*[`"])?                # words, with their tables
    | [<>=!|+-]{2} | \S
    """,
    re.VERBOSE,
)
_CLAUSES = [
    tuple(words.split())
    for words in (
        "WITH RECURSIVE",
        "WITH",
        "SELECT",
        "INSERT INTO",
        "INSERT IGNORE INTO",
        "DELETE FROM",
        "UPDATE",
        "SET",
        "FROM",
        "LEFT OUTER JOIN",
        "INNER JOIN",
        "JOIN",
        "WHERE",
        "GROUP BY",
        "ORDER BY",
        "LIMIT",
        "FOR UPDATE",
        "UNION ALL",
        "VALUES",
        "ON CONFLICT",
        "ON DUPLICATE KEY UPDATE",
        "RETURNING",
    )
]
_BREAKS_BEFORE = ("AND", "OR", "WHEN", "ELSE", "ON")


@dataclass(frozen=True)
class _Token:
    text: str
    is_apart: bool  # whether there is a space before it
    inner: tuple[_Token, ...] | None = None  # what stands between its brackets

    def __str__(self) -> str:
        return (" " if self.is_apart else "") + self.flat

    @property
    def flat(self) -> str:
        return self.text if self.inner is None else f"({_flat(self.inner)})"


_PROGRAM = re.compile(r"\s*CREATE (OR REPLACE )?(FUNCTION|TRIGGER) ")
_DEFINITION = re.compile(r"\s*(CREATE|ALTER|DROP|LOCK) ")


def laid_out(statement: str) -> str:
    """Give the statement with other white space between its words, and nothing else changed.

    A function or a trigger stays as it is written.
    """
    if _PROGRAM.match(statement):
        first, _, rest = statement.strip().partition("\n")
        return "\n".join([first, *dedent(rest).splitlines()])
    if _DEFINITION.match(statement):
        return "\n".join(_broken(_parsed(statement), ""))
    return "\n".join(_query(_parsed(statement), ""))


def _parsed(statement: str) -> tuple[_Token, ...]:
    open_ones: list[tuple[bool, list[_Token]]] = [(False, [])]
    end = 0
    for match in _TOKEN.finditer(statement):
        is_apart, end = match.start() > end, match.end()
        text = match.group()
        if text == "(":
            open_ones.append((is_apart, []))
        elif text == ")" and len(open_ones) > 1:
            was_apart, inner = open_ones.pop()
            open_ones[-1][1].append(_Token("()", was_apart, tuple(inner)))
        else:
            open_ones[-1][1].append(_Token(text, is_apart))
    [(_, tokens)] = open_ones
    return tuple(tokens)


def _flat(tokens: tuple[_Token, ...] | list[_Token]) -> str:
    return "".join(map(str, tokens)).strip()


def _clauses(tokens: tuple[_Token, ...]) -> list[tuple[_Token, ...]]:
    """Cut a query into its clauses."""
    words = [token.text for token in tokens]
    starts: list[int] = []
    place = 0
    while place < len(tokens):
        found = next((clause for clause in _CLAUSES if tuple(words[place : place + len(clause)]) == clause), None)
        if found is not None:
            starts.append(place)
        place += len(found or "1")
    if not starts or starts[0] != 0:
        starts.insert(0, 0)
    return [tokens[start:end] for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]


def _is_query(tokens: tuple[_Token, ...]) -> bool:
    return bool(tokens) and tokens[0].text in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")


def _query(tokens: tuple[_Token, ...], indent: str) -> list[str]:
    lines: list[str] = []
    for clause in _clauses(tokens):
        is_join = clause[0].text in ("LEFT", "INNER", "JOIN")
        lines += _broken(clause, indent + _STEP if is_join else indent)
    return lines


def _broken(tokens: tuple[_Token, ...], indent: str) -> list[str]:
    """Lay out a part on one line, or on several where it is too long for one: each item of it on its own."""
    if len(indent) + len(_flat(tokens)) <= WIDTH:
        return [indent + _flat(tokens)]
    items = _items(tokens)
    if tokens[0].text in ("SELECT", "RETURNING"):
        items = _filled(items, indent)
    below = indent if tokens[0].text == "WITH" else indent + _STEP
    lines = _opened(items[0], indent)
    if len(items) > 1 and len(lines) > 1 and tokens[0].text in ("SELECT", "SET"):
        lines = [indent + tokens[0].text, *_broken(items[0][1:], below)]
    return [*lines, *(line for item in items[1:] for line in _item(item, below))]


def _item(tokens: tuple[_Token, ...], indent: str) -> list[str]:
    is_case = tokens[0].text in ("WHEN", "ELSE")
    return _broken(tokens, indent + _STEP if is_case else indent)


def _items(tokens: tuple[_Token, ...]) -> list[tuple[_Token, ...]]:
    items: list[list[_Token]] = [[]]
    for place, token in enumerate(tokens):
        breaks = token.text in _BREAKS_BEFORE and [each.text for each in tokens[place : place + 2]] != ["ON", "true"]
        if place and (breaks or tokens[place - 1].text == ","):
            items.append([token])
        else:
            items[-1].append(token)
    return [tuple(item) for item in items]


def _opened(tokens: tuple[_Token, ...], indent: str) -> list[str]:
    """Lay out an item that may be too long, with the inside of its brackets below it."""
    lines = [indent]
    for place, token in enumerate(tokens):
        before = " " if token.is_apart and lines[-1].strip() else ""
        # What follows a query, or a condition, stays in its line.
        has_rest = _is_query(token.inner or ()) or tokens[0].text == "WHEN"
        width = len(lines[-1] + before + (_flat(tokens[place:]) if has_rest else token.flat))
        if not token.inner or width <= WIDTH:
            lines[-1] += before + token.flat
            continue
        lines[-1] += before + "("
        inside = _query if _is_query(token.inner) else _listed
        lines += [*inside(token.inner, indent + _STEP), indent + ")"]
    return lines


def _listed(tokens: tuple[_Token, ...], indent: str) -> list[str]:
    return [line for item in _filled(_items(tokens), indent) for line in _item(item, indent)]


def _filled(items: list[tuple[_Token, ...]], indent: str) -> list[tuple[_Token, ...]]:
    """Put short items that follow each other in a list on the same line, as many as it takes."""
    lines = [items[0]]
    for before, item in pairwise(items):
        if _is_short(before) and _is_short(item) and len(indent) + len(_flat(lines[-1] + item)) <= WIDTH:
            lines[-1] += item
        else:
            lines.append(item)
    return lines


def _is_short(item: tuple[_Token, ...]) -> bool:
    return len(item) <= _SHORT and all(token.inner is None and token.text not in _BREAKS_BEFORE for token in item)
