"""Looks up rows by their keys, and finds the newest version of each row first.

While a transaction holds an old snapshot, an index keeps an entry for each earlier version of a row. A search that
meets the newest version first does not read the entries of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import LateralFromClause

from waterclock.database.schema.table_catalogue import groups, message_keys
from waterclock.tables.databases.postgresql.arrays import listed
from waterclock.tables.databases.table_dialect import Key, LongKey

_ONE = sa.literal_column("1")


def look_up(
    found: sa.Select[*tuple[Any, ...]],
    value: int,
    columns: tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]],
    name: Any,
) -> sa.Select[*tuple[Any, ...]]:
    its = of_table(columns[0], value), columns[1].between(name, name)
    return found.where(*its).order_by(columns[1].desc()).limit(_ONE)


def of_table(column: sa.ColumnElement[int], value: Any) -> sa.ColumnElement[bool]:
    table = getattr(column, "table", None)
    is_not_unique = (table.element if isinstance(table, sa.Alias) else table) in (groups, message_keys)
    return (column + sa.literal_column("0") if is_not_unique else column) == value


def has_key(table: sa.Table, value: int, columns: Key, wanted: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return the condition that a row's key is ``value`` and an element of the column ``value`` of ``wanted``."""
    keyed = table.alias("keyed")
    place = sa.select(sa.literal_column("keyed.ctid").label("place")).select_from(keyed)
    one = look_up(place, value, (keyed.c[columns[0].name], keyed.c[columns[1].name]), wanted.c.value).lateral("one")
    places = sa.select(one.c.place).select_from(sa.join(wanted, one, sa.true()))
    at = sa.literal_column(f"{table.name}.ctid")
    return at == sa.any_(sa.func.array(places.scalar_subquery()))


def names_downward(value: int, columns: Key, *, begins: bool) -> sa.Select[*tuple[Any, ...]]:
    """Return the names of ``count`` rows below the one bound as ``after``, from the greatest name down.

    Each step begins below a name, so it finds the newest version of the next row. A scan would read all versions.
    """

    def next_one(nth: sa.ColumnElement[int], *which: Callable[[Any], sa.ColumnElement[bool]]) -> sa.Select[Any, int]:
        one = columns[0].table.alias("one")
        name = one.c[columns[1].name]
        its = of_table(one.c[columns[0].name], value), *(each(name) for each in which)
        found = sa.select(name.label("name"), nth.label("nth"))
        return found.where(*its).order_by(name.desc()).limit(_ONE).correlate_except(one)

    after = sa.bindparam("after", type_=columns[1].type)
    greatest = next_one(_ONE) if begins else next_one(_ONE, lambda name: name < after)
    walk = sa.select(greatest.subquery("greatest")).cte("walk", recursive=True)
    lower = next_one(walk.c.nth + _ONE, lambda name: name < walk.c.name).lateral("lower")
    following = sa.select(lower).select_from(sa.join(walk, lower, sa.true()))
    walk = walk.union_all(following.where(walk.c.nth < sa.bindparam("count", type_=sa.Integer)))
    return sa.select(walk.c.name)


def place_in(table: sa.FromClause) -> sa.ColumnElement[Any]:
    """Return the place of a version of a row."""
    assert isinstance(table, sa.Table)  # noqa: S101  # of the catalogue
    return sa.literal_column(f"{table.name}.ctid")


def newest_of_each(value: int, columns: LongKey, name: str, *more: str) -> sa.CTE:
    """Return the newest versions of all rows whose second column is in the array bound as ``name``.

    They are rows of ``key``, ``level``, ``place`` and the columns ``more``.
    """

    def newest(second: sa.ColumnElement[Any], *which: Callable[[Any], sa.ColumnElement[bool]]) -> LateralFromClause:
        one = columns[0].table.alias("one")
        key, level = one.c[columns[1].name], one.c[columns[2].name]
        chosen = [one.c[name] for name in more]
        found = sa.select(level.label("level"), sa.literal_column("one.ctid").label("place"), *chosen)
        its = of_table(one.c[columns[0].name], value), key == second, *(each(level) for each in which)
        return found.where(*its).order_by(key.desc(), level.desc()).limit(_ONE).lateral("newest")

    wanted = listed(columns[1], name)
    greatest = newest(wanted.c.value)
    start = sa.select(wanted.c.value.label("key"), *greatest.c)
    walk = start.select_from(sa.join(wanted, greatest, sa.true())).cte("walk", recursive=True)
    lower = newest(walk.c.key, lambda level: level < walk.c.level)
    following = sa.select(walk.c.key, *lower.c).select_from(sa.join(walk, lower, sa.true()))
    return walk.union_all(following)


def has_neighbour(
    table: sa.Table, value: int, columns: LongKey, which: Callable[[Any], sa.ColumnElement[bool]], *more: str
) -> sa.ColumnElement[bool]:
    """Return whether a row for which ``which`` is true has the same key except for its third column.

    ``which`` gets the key's columns and the columns ``more`` of that row.
    """
    second, third = columns[1], columns[2]

    def newest(*below: sa.ColumnElement[int]) -> sa.Select[*tuple[Any, ...]]:
        one = table.alias("one")
        key, level = one.c[second.name], one.c[third.name]
        found = sa.select(level, *(one.c[name] for name in more))
        its = of_table(one.c[columns[0].name], value), key == second, *(level < last for last in below)
        return found.where(*its).order_by(key.desc(), level.desc()).limit(_ONE).correlate_except(one)

    walk = newest().subquery("greatest").select().correlate(table).cte("walk", recursive=True, nesting=True)
    lower = newest(walk.c[third.name]).lateral("lower")
    walk = walk.union_all(sa.select(*lower.c).select_from(sa.join(walk, lower, sa.true())))
    found = sa.select(_ONE).select_from(walk).where(walk.c[third.name] != third, which(walk.c))
    return found.correlate(table).exists()
