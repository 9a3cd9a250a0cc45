"""Conditions written as text, so that tests can parse what they made as a tree."""

from __future__ import annotations

from waterclock.tables.model import condition as tree


def written(condition: tree.Condition) -> str:
    """Write a condition so that parsing it gives the same tree."""
    match condition:
        case tree.Compare(left, comparator, right):
            text = f"{_operand(left)} {comparator} {_operand(right)}"
        case tree.In(subject, members, negated):
            text = f"{_operand(subject)} {_not(negated)}IN ({', '.join(map(_operand, members))})"
        case tree.Between(subject, low, high, negated):
            text = f"{_operand(subject)} {_not(negated)}BETWEEN {_operand(low)} AND {_operand(high)}"
        case tree.Like(subject, pattern, negated):
            text = f"{_operand(subject)} {_not(negated)}LIKE {_operand(pattern)}"
        case tree.IsNull(subject, negated):
            text = f"{_operand(subject)} IS {_not(negated)}NULL"
        case tree.Not(inner):
            text = f"NOT ({written(inner)})"
        case tree.All(parts):
            text = " AND ".join(f"({written(part)})" for part in parts)
        case tree.Any(parts):
            text = " OR ".join(f"({written(part)})" for part in parts)
    return text


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _operand(operand: tree.Operand) -> str:
    match operand:
        case tree.Column(name):
            return '"' + name.replace('"', '""') + '"'
        case tree.Parameter(name):
            return f":{name}"
        case tree.Constant(bool() as truth):
            return "TRUE" if truth else "FALSE"
        case tree.Constant(str() as text):
            return "'" + text.replace("'", "''") + "'"
        case tree.Constant(number):
            return repr(number)
