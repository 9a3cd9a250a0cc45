"""Passes a list to a statement, as one array parameter or in a setting of the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from waterclock.tables.databases.table_dialect import KEPT

KEPT_SETTING = "waterclock.kept"  # a setting: any role may set one with a prefix, and it ends with the transaction


class Bigints(sa.types.UserDefinedType[Any]):
    """A list of integers in PostgreSQL's array syntax: the driver's own conversion takes five times as long."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_options: Any) -> str:
        return "BIGINT[]"

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        """Format them in one go; asyncpg, which a caller's connection may use, takes only lists."""
        return list if dialect.driver == "asyncpg" else _written


def _written(values: Sequence[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def kept(of: TypeEngine[Any]) -> Any:
    """Return the values in the setting, one a row."""
    return sa.func.unnest(sa.cast(sa.func.current_setting(KEPT_SETTING), sa.ARRAY(sa.Text)), type_=of)


def unnested(name: str, of: TypeEngine[Any]) -> Any:
    """Return the values in the array bound as ``name``, one a row."""
    return kept(of) if name == KEPT else sa.func.unnest(sa.bindparam(name, type_=sa.ARRAY(of)), type_=of)


def listed(column: sa.Column[Any], name: str) -> sa.TableValuedAlias:
    """Return the values in the array bound as ``name`` as rows."""
    values = unnested(name, column.type)
    return values.table_valued(sa.column("value", column.type)).render_derived("wanted")
