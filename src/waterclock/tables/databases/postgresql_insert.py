"""PostgreSQL's insert of many messages: one array for each column, one round trip, ids that are known left out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from waterclock.tables.schema import PARTITIONED

_SENT_IN_BINARY = (sa.Integer, sa.LargeBinary)  # twice as fast as text


@lru_cache(maxsize=256)
def insert_text(
    rows: sa.Table, names: tuple[str, ...], now: sa.ColumnElement[int], dialect: sa.Dialect
) -> tuple[str, dict[str, Any]]:
    """Build the insert of these columns (``at`` is when they are to be sent); it returns the ids that were new.

    Returns
    -------
    tuple
        The statement as the driver takes it, and the values of the constants in it.
    """
    types = {name: sa.BigInteger() if name == "at" else rows.c[name].type for name in names}
    arrays = [sa.bindparam(name, type_=postgresql.ARRAY(types[name])) for name in names]
    new = sa.func.unnest(*arrays).table_valued(*(sa.column(name, types[name]) for name in names)).render_derived("new")
    at = sa.func.coalesce(new.c.at, now)
    values = {name: new.c[name] for name in names if name != "at"}
    values |= {"time_created": now, "time_scheduled": at, "time_next": at}
    insert = postgresql.insert(rows).from_select(list(values), sa.select(*values.values()))
    # Ids are unique in each partition, which makes no key of the table that could be named.
    key = None if rows.info.get(PARTITIONED) else [rows.c.id]
    insert = insert.on_conflict_do_nothing(index_elements=key).returning(rows.c.id)
    compiled = insert.compile(dialect=dialect)
    text = str(compiled)
    for name, column_type in types.items():
        if isinstance(column_type, _SENT_IN_BINARY):
            text = text.replace(f"%({name})s", f"%({name})b")
    return text, dict(compiled.params)
