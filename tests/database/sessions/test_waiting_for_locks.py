"""On PostgreSQL a transaction of ours waits for a lock for so long; a caller's waits as the server says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.database.engines.engine_dialect import LONGEST_LOCK_WAIT

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
_ALLOWED = sa.select(sa.func.current_setting("lock_timeout"))
WAYS = {
    "a transaction": lambda backend, work: backend.transact(work),
    "a frequent transaction": lambda backend, work: backend.transact(work, indexed=True),
    "statements alone": lambda backend, work: backend.alone(work),
}


def _allowed(database: Database, way: str) -> str:
    return WAYS[way](database.backend, lambda own: own.execute(_ALLOWED).scalar_one())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("query", ["", "?prepare_threshold=none"])
@pytest.mark.parametrize(
    ("servers", "ours"),
    [("0", f"{LONGEST_LOCK_WAIT}s"), ("1500ms", "1500ms"), ("30s", "30s"), ("1h", "30s"), ("2d", "30s")],
)
def test_a_lower_limit_of_the_servers_stays(
    connect: Callable[..., Database], database_url: str, way: str, query: str, servers: str, ours: str
) -> None:
    with connect().backend.engine.begin() as operator:
        name = operator.execute(sa.text("SELECT current_database()")).scalar_one()
        operator.execute(sa.text(f"ALTER DATABASE \"{name}\" SET lock_timeout = '{servers}'"))
    assert _allowed(connect(database_url + query), way) == ours


def test_statements_of_a_caller_on_our_engine_keep_the_servers_timeouts(connect: Callable[..., Database]) -> None:
    backend = connect().backend
    backend.transact(lambda own: own.execute(sa.text("SELECT 1")).all())
    with backend.engine.begin() as callers:
        assert callers.execute(_ALLOWED).scalar_one() == "0"


def test_others_wait_for_a_migration_for_a_minute(connect: Callable[..., Database]) -> None:
    backend = connect().backend
    with backend.engine.begin() as connection:
        backend.dialect.lock_migrations(connection)
        assert connection.execute(_ALLOWED).scalar_one() == "1min"
