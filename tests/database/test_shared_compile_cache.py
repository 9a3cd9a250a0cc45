from __future__ import annotations

import pytest
import sqlalchemy as sa

from waterclock.database.shared_compile_cache import CompiledStatements, alike

NUMBERS = sa.Table("numbers", sa.MetaData(), sa.Column("number", sa.Integer))


def a_dialect(**facts: object) -> sa.Dialect:
    dialect = sa.create_engine("sqlite://").dialect
    for name, value in facts.items():
        setattr(dialect, name, value)
    return dialect


def test_dialects_are_alike_where_their_drivers_and_servers_say_the_same() -> None:
    one, other = a_dialect(server_version_info=(3, 1)), a_dialect(server_version_info=(3, 1))
    assert alike(one) is alike(other) is one
    assert alike(a_dialect(server_version_info=(3, 1), default_schema_name="elsewhere")) is one


@pytest.mark.parametrize(
    "facts",
    [
        {"server_version_info": (3, 2)},
        {"paramstyle": "named"},
        {"label_length": 20},
        {"_json_serializer": repr},
    ],
)
def test_dialects_that_differ_in_one_thing_are_not_alike(facts: dict[str, object]) -> None:
    ours = alike(a_dialect(server_version_info=(3, 1)))
    assert alike(a_dialect(**{"server_version_info": (3, 1), **facts})) is not ours


def test_engines_that_are_alike_compile_once_and_each_statement_has_its_own_values() -> None:
    kept = CompiledStatements()
    found: list[int] = []
    for number in (1, 2):
        engine = sa.create_engine("sqlite://", execution_options={"compiled_cache": kept})
        with engine.connect() as connection:
            clock = sa.bindparam("now", callable_=lambda at=number: at * 10, type_=sa.Integer)
            found += connection.execute(sa.select(clock + sa.literal(number))).scalars()
    assert found == [11, 22]
    assert len(kept._kept) == 1


def test_a_caller_who_translates_schemas_gets_what_was_compiled_for_the_engine_alone() -> None:
    kept = CompiledStatements()
    for schema in ("main", "temp"):
        engine = sa.create_engine("sqlite://", execution_options={"compiled_cache": kept})
        with engine.connect().execution_options(schema_translate_map={None: schema}) as connection:
            connection.exec_driver_sql(f"CREATE TEMP TABLE numbers AS SELECT {len(schema)} AS number")
            connection.exec_driver_sql("CREATE TABLE main.numbers AS SELECT 1 AS number")
            assert connection.execute(sa.select(NUMBERS)).scalars().all() == [1 if schema == "main" else 4]
    assert len(kept._kept) == 2
