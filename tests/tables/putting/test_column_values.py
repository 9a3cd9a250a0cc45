"""Values of a table's further columns are refused alike by every database, and kept alike."""

from __future__ import annotations

import enum
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.both_servers


class Line(enum.IntEnum):
    FIRST = 1


WRONG: dict[str, list[Any]] = {
    "bigint": ["17", "x", True, 1.5, 2**63, -(2**63) - 1, b"1", [1], {}, object(), math.nan, Decimal(1), np.bool_(1)],
    "double": ["1.5", True, b"1", math.nan, math.inf, 10**400, [1.5], object(), 1j],
    "boolean": ["yes", 2, 1.5, b"1", [True], object()],
    "text": [17, 1.5, True, b"x", ["x"], object(), "a\0b", "\ud800"],
    "bytes": ["x", 17, True, 1.5, [1], object()],
    "json": [object(), {1, 2}, math.nan, b"x"],
}
RIGHT: dict[str, list[tuple[Any, Any]]] = {
    "bigint": [(-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1), (np.int32(7), 7), (Line.FIRST, 1), (None, None)],
    "double": [(1.5, 1.5), (3, 3.0), (np.float32(0.5), 0.5), (Decimal("2.5"), 2.5), (None, None)],
    "boolean": [(True, True), (False, False), (None, None)],
    "text": [("17", "17"), ("", ""), ("é😀", "é😀"), (None, None)],
    "bytes": [(b"\0\xff", b"\0\xff"), (bytearray(b"a"), b"a"), (memoryview(b"a"), b"a"), (b"", b""), (None, None)],
    "json": [({"a": [1, None]}, {"a": [1, None]}), ("text", "text"), (7, 7)],
}


@pytest.fixture
def table(database: Database) -> MessageTable:
    return database.create_table("orders", payload="text", columns={f"the_{kind}": kind for kind in WRONG})


def test_a_value_of_another_type_is_refused_with_the_column_and_the_value(table: MessageTable) -> None:
    for kind, values in WRONG.items():
        for value in values:
            with pytest.raises(InvalidArgumentError, match=f"^the_{kind}(: | must )"):
                table.put("tea", **{f"the_{kind}": value})
    assert table.stats().ready == 0


def test_a_value_of_the_columns_type_is_kept_and_comes_back_as_that_type(table: MessageTable) -> None:
    for kind, values in RIGHT.items():
        for value, kept in values:
            table.put("tea", **{f"the_{kind}": value})
            [delivery] = table.receive()
            assert delivery.columns[f"the_{kind}"] == kept
            assert type(delivery.columns[f"the_{kind}"]) is type(kept)
            delivery.ack()


def test_columns_of_sqlalchemys_types_are_checked_by_their_type(database: Database) -> None:
    columns = {"small": sa.SmallInteger, "name": sa.String(20), "weight": sa.Float, "price": sa.Numeric(10, 2)}
    table = database.create_table("orders", payload="text", columns=columns)
    wrong: dict[str, Any] = {"small": "17", "name": 17, "weight": "1.5"}
    for name, value in wrong.items():
        with pytest.raises(InvalidArgumentError, match=f"^{name} must "):
            table.put("tea", **{name: value})
    table.put("tea", small=7, name="x", weight=1, price=Decimal("1.50"))
    [delivery] = table.receive()
    assert delivery.columns == {"small": 7, "name": "x", "weight": 1.0, "price": Decimal("1.50")}


@pytest.mark.parametrize("adopt", [False, True])
def test_a_column_whose_type_the_database_lacks_is_refused(database: Database, *, adopt: bool) -> None:
    is_mariadb = database.backend.engine.dialect.name in ("mysql", "mariadb")
    kind = sa.String() if is_mariadb else mysql.SET("a")  # MariaDB needs a length
    with pytest.raises(InvalidArgumentError, match=r"columns: the type of 'mine' must be complete and known to"):
        database.create_table("orders", columns={"mine": kind}, adopt=adopt)
    assert database.tables() == []
