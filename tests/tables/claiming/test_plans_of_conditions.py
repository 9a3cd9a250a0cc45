"""Claims with a condition or an order of their own: what they read, and which index spares them the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.statements import statements_of
from tests.tables.plans import MESSAGES, OTHERS, can_be_explained, complaints, crowd

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

# As the page on message tables gives it. MariaDB indexes no expressions.
FOR_AN_ORDER = (
    "CREATE INDEX orders_dearest ON orders((amount IS NULL), amount DESC, time_next, seq) WHERE time_acked IS NULL"
)


def problems(table: MessageTable, database: Database, *, sorts: bool, **which: Any) -> list[str]:
    """Say what claims with a condition or an order read or sort in whole; ``sorts``: sorting is no problem."""
    with statements_of(database.backend) as seen:
        table.receive(10, **which)
    ours = [(text, values) for text, values in seen if "orders" in text and can_be_explained(text)]
    assert ours
    found = [problem for text, values in ours for problem in complaints(database, text, values)]
    # In the order of the claim it is read only until there is enough.
    found = [one for one in found if "USING INDEX orders_dearest" not in one]
    if sorts:
        found = [one for one in found if "Sort" not in one and "TEMP B-TREE" not in one and "'range'" not in one]
    return found


@pytest.mark.parametrize("state", OTHERS)
def test_a_claim_with_a_condition_goes_down_an_index_and_one_with_an_order_where_it_has_one(
    make_table: Callable[..., MessageTable], database: Database, state: str
) -> None:
    table = make_table(columns={"region": "bigint", "amount": "bigint"})
    for start in range(0, MESSAGES, 1000):
        table.put_many(
            [{"payload": "x", "region": number % 7, "amount": number} for number in range(start, start + 1000)]
        )
    crowd(database, state)

    assert not problems(table, database, sorts=False, where="region = 3 AND amount > 100")
    if state == "acked":
        # Of what is acked nothing is read, in any order.
        assert not problems(table, database, sorts=True, order="amount DESC")
        assert not problems(table, database, sorts=True, order="amount DESC", where="region = 3")
    if database.backend.dialect.name != "mysql":
        with database.backend.engine.begin() as connection:
            connection.exec_driver_sql(FOR_AN_ORDER)
            connection.exec_driver_sql("ANALYZE")
        assert not problems(table, database, sorts=False, order="amount DESC")
