"""PostgreSQL behind a pooler that gives each transaction another session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from waterclock.connection import Database
from waterclock.errors import UnavailableError

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def use_prepared(connection: Any) -> None:
    """Let the driver prepare a statement, which then is not there, as in another session."""
    for _ in range(10):
        connection.exec_driver_sql("SELECT 1")
    connection.exec_driver_sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    connection.exec_driver_sql("SELECT 1")


@pytest.mark.parametrize("indexed", [True, False])
def test_a_statement_of_another_session_is_refused_with_the_remedy(
    connect: Callable[..., Database], indexed: bool
) -> None:
    with pytest.raises(UnavailableError, match=r"prepare_threshold=none"):
        connect().backend.transact(use_prepared, indexed=indexed)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_url_may_say_that_nothing_is_prepared(
    connect: Callable[..., Database], database_url: str, indexed: bool
) -> None:
    connect(f"{database_url}?prepare_threshold=none").backend.transact(use_prepared, indexed=indexed)
