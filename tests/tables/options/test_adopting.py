from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run
from tests.tables.received import payloads

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

# That of *Vitess Messaging* ("Creating a message table"), without what MariaDB does not know, with a user's columns.
DOCUMENTS = """
    CREATE TABLE orders(
        time_scheduled bigint,
        id bigint,
        time_next bigint,
        epoch bigint,
        time_created bigint,
        time_acked bigint,
        message varchar(128),
        region varchar(20) DEFAULT 'eu',
        PRIMARY KEY (time_scheduled, id)
    )"""
INDEXES = ("CREATE UNIQUE INDEX id_idx ON orders(id)", "CREATE INDEX next_idx ON orders(time_next, epoch)")


def make_documents(database: Database, ddl: str = DOCUMENTS, indexes: tuple[str, ...] = INDEXES) -> None:
    for statement in (ddl, *indexes):
        run(database, statement)


def insert(database: Database, message_id: Any, text: str, **values: Any) -> None:
    row = {"time_scheduled": 1, "time_next": 1, "epoch": 0, "time_created": 1, "time_acked": None, **values}
    run(
        database,
        "INSERT INTO orders(id, message, time_scheduled, time_next, epoch, time_created, time_acked)"
        " VALUES (:id, :message, :time_scheduled, :time_next, :epoch, :time_created, :time_acked)",
        id=message_id,
        message=text,
        **row,
    )


def test_a_table_made_by_the_documents_ddl_becomes_a_message_table(database: Database, clock: MovableClock) -> None:
    make_documents(database)
    insert(database, 3, "due")
    insert(database, 5, "sent before", time_scheduled=2, epoch=4)
    insert(database, 7, "acked", time_next=None, time_acked=9)
    insert(database, 9, "later", time_next=clock.now + 10**12)
    table = database.create_table("orders", payload="text", jitter=0, adopt=True)
    deliveries = table.receive()
    assert [(one.id, one.payload, one.epoch, one.columns) for one in deliveries] == [
        (3, "due", 1, {"region": "eu"}),
        (5, "sent before", 5, {"region": "eu"}),
    ]
    table.ack(deliveries)
    stats = table.stats()
    assert (stats.scheduled, stats.acked) == (1, 3)
    clock.move("1h")
    assert payloads(table) == ["later"]


def test_rows_that_plain_sql_left_open_are_delivered(database: Database) -> None:
    make_documents(database)
    insert(database, 1, "no time_next", time_next=None, epoch=None, time_created=None)
    table = database.create_table("orders", payload="text", adopt=True)
    [delivery] = table.receive()
    assert (delivery.payload, delivery.epoch, delivery.time_created) == ("no time_next", 1, 1)


def test_an_adopted_table_works_like_a_created_one(database: Database, clock: MovableClock) -> None:
    make_documents(database)
    insert(database, 41, "old")
    table = database.create_table("orders", payload="text", jitter=0, adopt=True, groups="sequenced", batch_size=100)
    assert table.put("new") == 42
    assert table.put("again", id=41) == 41
    run(database, "INSERT INTO orders(id, message) VALUES (50, 'plain')")
    run(database, "INSERT INTO orders(id, message, group_id) VALUES (51, 'in a group', 'g'), (52, 'behind it', 'g')")
    catch_up(clock)
    assert sorted(payloads(table)) == ["behind it", "in a group", "new", "old", "plain"]
    ack = "UPDATE orders SET time_acked = :now, time_next = NULL WHERE id IN (41, 42) AND time_acked IS NULL"
    assert run(database, ack, now=clock.now) == 2
    assert table.stats().acked == 2
    assert not database.table("orders").put_many([{"payload": "a"}, {"payload": "b"}]).existing


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)  # the only one whose statements name the index
@pytest.mark.parametrize(
    ("theirs", "renamed", "expected"),
    [(None, None, "seq"), ("seq", None, "seq_2"), (None, "an index", "an index")],
    ids=["default", "name-taken", "renamed"],
)
def test_messages_of_an_adopted_table_are_locked_by_the_index_of_seq(
    connect: Callable[..., Database], theirs: str | None, renamed: str | None, expected: str
) -> None:
    database = connect()
    make_documents(database)
    if theirs is not None:
        run(database, f"CREATE INDEX {theirs} ON orders(time_created)")
    table = database.create_table("orders", payload="text", adopt=True, groups="sequenced")
    if renamed is not None:
        run(database, f"ALTER TABLE orders RENAME INDEX seq TO `{renamed}`")
        database = connect()
        table = database.table("orders")
    table.put("a", group="g")
    with statements_of(database.backend, "orders") as seen:
        assert payloads(table) == ["a"]
    locking = {text: values for text, values in seen if "AS unlocked" in text and "SKIP LOCKED" in text}
    assert locking
    with database.backend.engine.connect() as connection:
        for text, values in locking.items():
            plan = connection.exec_driver_sql("EXPLAIN " + text, values).mappings().all()
            assert [(row["key"], row["type"]) for row in plan if row["table"] == "orders"] == [(expected, "eq_ref")]


def test_a_plain_insert_without_an_id_gets_one_that_is_free(database: Database, clock: MovableClock) -> None:
    make_documents(database)
    insert(database, 41, "old")
    table = database.create_table("orders", payload="text", adopt=True)
    run(database, "INSERT INTO orders(message) VALUES ('new')")
    catch_up(clock)
    ids = {delivery.id for delivery in table.receive()}
    assert len(ids) == 2
    assert 41 in ids


def test_a_column_that_must_not_be_null_gets_its_default(
    database: Database, connect: Callable[..., Database], clock: MovableClock
) -> None:
    make_documents(database, DOCUMENTS.replace("DEFAULT 'eu'", "NOT NULL DEFAULT 'eu'"))
    table = database.create_table("orders", payload="text", adopt=True)
    table.put("adopting process")
    connect(clock=clock).table("orders").put_many([{"payload": "another"}, {"payload": "given", "region": "us"}])
    regions = {one.payload: one.columns["region"] for one in table.receive(10)}
    assert regions == {"adopting process": "eu", "another": "eu", "given": "us"}


def test_a_column_that_may_be_null_gets_its_default_only_if_no_value_is_given(
    database: Database, connect: Callable[..., Database], clock: MovableClock
) -> None:
    make_documents(database)
    table = database.create_table("orders", payload="text", adopt=True)
    for process in (table, connect(clock=clock).table("orders")):
        process.put("one")
        process.put("null", region=None)
        process.put_many([{"payload": "many"}, {"payload": "given", "region": "us"}, {"payload": "many"}])
        process.put("no value", unique="key")
    process.put("replaced", unique="key", on_conflict="replace")
    found = sorted({(one.payload, one.columns["region"]) for one in table.receive(20)})
    assert found == [("given", "us"), ("many", "eu"), ("null", None), ("one", "eu"), ("replaced", "eu")]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_column_gets_the_default_of_its_domain(database: Database) -> None:
    run(database, "CREATE DOMAIN area AS varchar(20) DEFAULT 'eu'")
    make_documents(database, DOCUMENTS.replace("varchar(20) DEFAULT 'eu'", "area"))
    table = database.create_table("orders", payload="text", adopt=True)
    table.put("one")
    assert [one.columns for one in table.receive()] == [{"region": "eu"}]


def test_columns_that_the_database_generates_are_left_to_it(
    database: Database, connect: Callable[..., Database], clock: MovableClock
) -> None:
    kind = database.backend.engine.dialect.name
    database.create_table("orders", payload="text", dead_letter="dead")
    run(database, "ALTER TABLE dead ADD COLUMN twice bigint")
    where = "VIRTUAL" if kind == "sqlite" else "STORED"
    run(database, f"ALTER TABLE orders ADD COLUMN twice bigint GENERATED ALWAYS AS (id * 2) {where}")
    if kind == "postgresql":
        run(database, "ALTER TABLE orders ADD COLUMN line bigint GENERATED ALWAYS AS IDENTITY")
        run(database, "ALTER TABLE dead ADD COLUMN line bigint")
    table = connect(clock=clock).table("orders")
    table.put("one", id=3, unique="key")
    table.put("replaced", unique="key", on_conflict="replace")
    table.put_many([{"payload": "two", "id": 5}, {"payload": "three", "id": 7}])
    table.dead_letter(5, "broken")
    assert table.redrive() == 1
    assert {one.payload: one.columns["twice"] for one in table.receive(10)} == {"replaced": 6, "two": 10, "three": 14}


def test_values_reach_columns_with_odd_names(database: Database) -> None:
    odd = {"time next": 1, "a:b": 2, "a_b": 3, "c%d (e)": 4, "f.g[h]": 5, "g`h``": 6, 'i"j': 7}
    quote = database.backend.engine.dialect.identifier_preparer.quote_identifier
    more = ", ".join(f"{quote(name)} bigint" for name in odd).replace("%%", "%").replace(":", r"\:")
    make_documents(database, DOCUMENTS.replace("region varchar(20) DEFAULT 'eu'", more))
    table = database.create_table("orders", payload="text", adopt=True)
    table.put("one", **odd)
    table.put_many([{"payload": "two", **odd}, {"payload": "three", **odd}])
    table.put_many([{"payload": "four", "id": 99, **odd}])
    table.put("five", unique="key")
    table.put("five", unique="key", on_conflict="replace", **odd)
    assert [one.columns for one in table.receive(10)] == [odd] * 5


@pytest.mark.parametrize("column", ["at", "group", "unique", "self", "acked_day", "Priority", "waterclock_now"])
def test_a_column_whose_name_waterclock_uses_is_refused_with_the_remedy(database: Database, column: str) -> None:
    quoted = database.backend.engine.dialect.identifier_preparer.quote_identifier(column)
    make_documents(database, DOCUMENTS.replace("region", quoted))
    if (column, database.backend.engine.dialect.name) == ("Priority", "postgresql"):  # where it is another name
        database.create_table("orders", payload="text", adopt=True)
        return
    with pytest.raises(wc.SchemaError, match=f"cannot adopt 'orders': .* itself. Rename your column '{column}'"):
        database.create_table("orders", payload="text", adopt=True)
    assert database.tables() == []


def test_an_argument_of_put_never_sets_a_column_that_plain_sql_added(
    database: Database, connect: Callable[..., Database], clock: MovableClock
) -> None:
    database.create_table("orders", payload="text", groups="sequenced")
    quote = database.backend.engine.dialect.identifier_preparer.quote_identifier
    for column in ("at", "group"):
        run(database, f"ALTER TABLE orders ADD COLUMN {quote(column)} bigint DEFAULT 5")
    table = connect(clock=clock).table("orders")
    table.put("later", at=clock.now + 10**12)
    table.put("one", group="g", at=clock.now - 1, unique="key")
    table.put("replaced", group="g", unique="key", on_conflict="replace")
    table.put_many([{"payload": "two", "group": "g"}, {"payload": "three"}])
    found = {one.payload: (one.group, one.columns) for one in table.receive(10)}
    its = {"at": 5, "group": 5}
    assert found == {"replaced": ("g", its), "two": ("g", its)}
    clock.move("1h")
    assert {one.payload for one in table.receive(10)} >= {"later", "three"}


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_columns_may_have_the_names_of_attributes_of_rows(
    make_table: Callable[..., MessageTable], database: Database, groups: Any
) -> None:
    values = {"t": 1, "tuple": 2, "count": 3, "index": 4}
    table = make_table(columns=dict.fromkeys(values, "bigint"), groups=groups)
    table.put_many([{"payload": "x", **values}] * 2)
    assert [one.columns for one in table.peek()] == [values] * 2
    found = table.receive(2, consumer="x")
    assert [one.columns for one in found] == [values] * 2
    table.ack(found)
    topic = database.create_topic("archive")
    assert database.archive(table.name, "archive") == 2
    assert [json.loads(one.headers["waterclock.columns"]) for one in topic.read()] == [values] * 2


@pytest.mark.parametrize("groups", [None, "exclusive"])
def test_columns_may_have_the_names_of_parameters_of_our_statements(
    make_table: Callable[..., MessageTable], clock: MovableClock, groups: Any
) -> None:
    names = [
        "by",
        "who",
        "seqs",
        "ids",
        "of",
        "why",
        "until",
        "duration",
        "progress",
        "ends",
        "tried",
        "place",
        "behind",
        "uncounted",
    ]
    values = {name: number for number, name in enumerate(names)}
    table = make_table(columns=dict.fromkeys(names, "bigint"), groups=groups, dead_letter="dead")
    where = {"group": "g"} if groups else {}
    table.put_many([{"payload": "x", "id": number, **where, **values} for number in (1, 2, 3)])
    table.put("old", unique="k", **where, **values)
    table.put("new", unique="k", on_conflict="replace", **where, **values)
    [first] = table.receive(1, consumer="x")
    first.extend("1m")
    first.save({"page": 1})
    first.nack("0s")
    table.ack(table.receive(1, consumer="x"))
    assert (table.cancel(2, "why"), table.reschedule([3], clock.now + 1)) == (1, 1)
    assert (table.dead_letter(3, "why"), table.redrive()) == (1, 1)
    if groups:
        assert table.groups.reroute("g", "h").done == 2
    clock.move("1h")
    assert {one.payload: one.columns for one in table.receive(10, consumer="x")} == {"x": values, "new": values}


@pytest.mark.parametrize("options", [{}, {"fair_by": "group"}])
def test_columns_may_have_the_names_of_what_a_claim_adds_to_rows(
    make_table: Callable[..., MessageTable], options: dict[str, Any]
) -> None:
    values = {"now": 1, "first_at": 2, "due_at": 3, "nth": 4}
    table = make_table(columns=dict.fromkeys(values, "bigint"), **options)
    table.put_many([{"payload": "x", "group": group, **values} for group in "abab"])
    assert [one.columns for _ in range(2) for one in table.receive(2)] == [values] * 4


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_a_callers_own_connection_takes_columns_with_the_names_of_parameters(
    make_table: Callable[..., MessageTable], groups: Any
) -> None:
    values = {name: number for number, name in enumerate(("by", "seqs", "ids", "why", "of", "new_at", "now"))}
    table = make_table(columns=dict.fromkeys(values, "bigint"), groups=groups)
    row: dict[str, Any] = {"group": "g", **values} if groups else values
    engine = sa.create_engine(table.context.backend.url)
    with engine.begin() as own:
        table.put("old", unique="k", connection=own, **row)
        table.put("new", unique="k", on_conflict="replace", connection=own, **row)
        cancelled = table.put("cancelled", connection=own, **row)
    [one] = table.receive(1)
    assert (one.payload, one.columns) == ("new", values)
    with engine.begin() as own:
        one.ack(connection=own)
        assert table.cancel(cancelled, "why", connection=own) == 1
    engine.dispose()
    assert (table.stats().acked, table.stats().cancelled) == (1, 1)


def test_payloads_may_be_bytes(database: Database) -> None:
    dialect = database.backend.dialect.name
    kinds = {
        "mysql": ("blob", "mediumblob", "longblob", "varbinary(99)"),
        "postgresql": ("bytea",),
        "sqlite": ("blob",),
    }
    for kind in kinds[dialect]:
        name = f"orders_{kind[:4]}"
        run(database, DOCUMENTS.replace("orders", name).replace("varchar(128)", kind))
        table = database.create_table(name, payload="bytes", adopt=True)
        table.put(b"\0\xff")
        assert payloads(table) == [b"\0\xff"]


@pytest.mark.parametrize("id_type", ["text", "uuid"])
def test_ids_may_be_texts_and_uuids(database: Database, id_type: Any) -> None:
    mariadb = database.backend.dialect.name == "mysql"
    kind = "varchar(64)" if id_type == "text" else "char(36)"
    if database.backend.dialect.name == "postgresql" and id_type == "uuid":
        kind = "uuid"
    kind += " COLLATE utf8mb4_nopad_bin" * mariadb
    make_documents(database, DOCUMENTS.replace("id bigint", f"id {kind}"))
    known = str(uuid.uuid4())
    insert(database, known, "old")
    table = database.create_table("orders", payload="text", id_type=id_type, adopt=True)
    assert str(table.put("again", id=known)) == known
    table.put("new", id=str(uuid.uuid4()))
    assert payloads(table) == ["old", "new"]


def test_ids_need_an_index_of_their_own_and_get_it(database: Database) -> None:
    make_documents(database, indexes=())
    insert(database, 1, "a")
    table = database.create_table("orders", payload="text", adopt=True)
    table.put("b", id=1)
    assert payloads(table) == ["a"]


def test_further_columns_can_be_added(database: Database) -> None:
    make_documents(database)
    insert(database, 1, "a")
    table = database.create_table("orders", payload="text", adopt=True, columns={"weight": "double", "paid": "boolean"})
    table.put("b", region="us", weight=1.5, paid=True)
    assert [delivery.columns for delivery in table.receive()] == [
        {"region": "eu", "weight": None, "paid": None},
        {"region": "us", "weight": 1.5, "paid": True},
    ]


@pytest.mark.parametrize(
    "column", ["time_scheduled", "id", "time_next", "epoch", "time_created", "time_acked", "message"]
)
def test_a_column_of_the_document_that_is_missing_is_named_with_the_remedy(database: Database, column: str) -> None:
    kind = "varchar(128)" if column == "message" else "bigint"
    ddl = DOCUMENTS.replace(f"{column} {kind}", f"other {kind}").replace("time_scheduled, id)", "other)", 1)
    if column not in ("time_scheduled", "id"):
        ddl = DOCUMENTS.replace(f"{column} {kind}", f"other {kind}")
    make_documents(database, ddl, ())
    with pytest.raises(wc.SchemaError, match=rf"has no column '{column}'. Run ALTER TABLE orders ADD COLUMN {column} "):
        database.create_table("orders", payload="text", adopt=True)
    assert database.tables() == []


@pytest.mark.parametrize(
    ("column", "has", "made"),
    [("time_next", "bigint", "varchar(20)"), ("id", "bigint", "varchar(20)"), ("message", "varchar(128)", "bigint")],
)
def test_a_column_of_another_type_is_named_with_both_types_and_the_remedy(
    database: Database, column: str, has: str, made: str
) -> None:
    make_documents(database, DOCUMENTS.replace(f"{column} {has}", f"{column} {made}"), ())
    with pytest.raises(wc.SchemaError) as raised:
        database.create_table("orders", payload="text", adopt=True)
    found = re.search(
        rf"column '{column}' must be [A-Z].*, got {made.partition('(')[0]}.*\."
        r" Run ((?:ALTER|CREATE) TABLE[^;]*)(;?)",
        str(raised.value),
        re.IGNORECASE,
    )
    assert found
    assert bool(found[2]) == (column != "time_next")
    if database.backend.dialect.name != "sqlite":
        run(database, found[1])
        database.create_table("orders", payload="text", adopt=True)


def test_a_table_that_numbers_its_ids_by_itself_continues_doing_so(database: Database, clock: MovableClock) -> None:
    numbered = {
        "sqlite": "id bigint",
        "postgresql": "id bigserial",
        "mysql": "id bigint AUTO_INCREMENT UNIQUE",
    }[database.backend.dialect.name]
    make_documents(database, DOCUMENTS.replace("id bigint", numbered), ())
    insert(database, 41, "old")
    table = database.create_table("orders", payload="text", adopt=True)
    run(database, "INSERT INTO orders(message) VALUES ('plain')")
    assert table.put("ours") not in (41, None)
    catch_up(clock)
    assert len({delivery.id for delivery in table.receive()}) == 3


TOO_ALIKE = {
    "mysql": [
        ("varchar(64) COLLATE utf8mb4_general_ci", "compares by utf8mb4_general_ci"),
        ("varchar(64) COLLATE utf8mb4_bin", "compares by utf8mb4_bin"),
        ("char(64) COLLATE utf8mb4_nopad_bin", "drops trailing spaces"),
    ],
    "postgresql": [
        ('varchar(64) COLLATE "no_case"', "compares by no_case"),
        ("char(64)", "drops trailing spaces"),
    ],
    "sqlite": [],  # gets a copy of the table, with columns of ours
}
NO_CASE = "CREATE COLLATION no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


@pytest.mark.parametrize("column", ["id", "group_id"])
def test_ids_and_groups_that_the_database_would_mix_up_are_refused_with_the_remedy(
    database: Database, column: str
) -> None:
    kind = database.backend.dialect.name
    if kind == "postgresql":
        run(database, NO_CASE)
    for number, (made, reason) in enumerate(TOO_ALIKE[kind]):
        name = f"orders{number}"
        ddl = DOCUMENTS.replace("orders", name).replace("id bigint", 'id varchar(64) COLLATE "C"', 1)
        if kind == "mysql":
            ddl = ddl.replace('"C"', "utf8mb4_nopad_bin")
        if column == "id":
            ddl = re.sub(r"id varchar\(64\) COLLATE \S+", f"id {made},", ddl, count=1)
        else:
            ddl = ddl.replace("region ", f"group_id {made}, region ")
        run(database, ddl)
        with pytest.raises(wc.SchemaError, match=rf"'{column}' {reason}.*Run ALTER TABLE") as raised:
            database.create_table(name, payload="text", id_type="text", adopt=True)
        run(database, str(raised.value).partition(". Run ")[2])
        table = database.create_table(name, payload="text", id_type="text", adopt=True, groups="sequenced")
        table.put_many([{"id": one, "payload": one, "group": one} for one in ("a", "A", "a ")])
        assert sorted(delivery.payload for delivery in table.receive()) == ["A", "a", "a "]


def test_a_table_that_sqlite_compares_without_case_gets_ids_that_are_distinguished(sqlite_url: str) -> None:
    with wc.connect(sqlite_url) as database:
        make_documents(database, DOCUMENTS.replace("id bigint", "id varchar(64) COLLATE NOCASE"), ())
        table = database.create_table("orders", payload="text", id_type="text", adopt=True)
        assert not table.put_many([{"id": one, "payload": one} for one in ("a", "A")]).existing


def test_a_table_that_cannot_be_adopted_is_refused_with_the_reason_and_unchanged(database: Database) -> None:
    with pytest.raises(wc.NotFoundError, match="no SQL table named 'orders' to adopt"):
        database.create_table("orders", payload="text", adopt=True)
    make_documents(database, indexes=("ALTER TABLE orders ADD COLUMN claim_id bigint",))
    with pytest.raises(wc.AlreadyExistsError, match="adopt=True"):
        database.create_table("orders", payload="text")
    with pytest.raises(wc.SchemaError, match=r"Waterclock adds a column 'claim_id'"):
        database.create_table("orders", payload="text", adopt=True)
    run(database, "ALTER TABLE orders DROP COLUMN claim_id")
    insert(database, 1, "a")
    insert(database, 1, "b", time_scheduled=2)
    with pytest.raises(wc.SchemaError, match="ids must be unique, but 2 rows have id 1"):
        database.create_table("orders", payload="text", adopt=True)
    run(database, "DELETE FROM orders WHERE message = 'b'")
    table = database.create_table("orders", payload="text", adopt=True)
    with pytest.raises(wc.AlreadyExistsError):
        database.create_table("orders", payload="text", adopt=True)
    database.create_table("orders", payload="text", adopt=True, exist_ok=True)
    assert payloads(table) == ["a"]


@pytest.mark.parametrize("moment", range(0, 14, 2))
def test_adopting_that_was_interrupted_can_be_done_again(
    database: Database, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    make_documents(database)
    insert(database, 3, "a")
    seen = 0

    def break_off(_c: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal seen
        if statement.lstrip().startswith(("ALTER", "CREATE", "UPDATE", "INSERT", "DROP")):
            seen += 1
            if seen == moment + 1:
                raise ZeroDivisionError

    engine = database.backend.engine
    sa.event.listen(engine, "before_cursor_execute", break_off)
    try:
        database.create_table("orders", payload="text", adopt=True)
    except ZeroDivisionError:
        assert database.tables() == []
    finally:
        sa.event.remove(engine, "before_cursor_execute", break_off)
    table = database.create_table("orders", payload="text", adopt=True, exist_ok=True)
    assert table.put("b") != 3
    assert payloads(table) == ["a", "b"]


def test_indexes_and_triggers_of_the_users_are_kept(database: Database) -> None:
    make_documents(database)
    if database.backend.dialect.name == "sqlite":
        run(database, "CREATE TABLE log(id bigint)")
        run(database, "CREATE TRIGGER noting AFTER INSERT ON orders BEGIN INSERT INTO log(id) VALUES (NEW.id); END")
    table = database.create_table("orders", payload="text", adopt=True)
    names = {index["name"] for index in sa.inspect(database.backend.engine).get_indexes("orders")}
    assert {"id_idx", "next_idx", "orders_next_idx"} <= names
    if database.backend.dialect.name == "sqlite":
        table.put("a", id=5)
        with database.backend.engine.connect() as connection:
            assert connection.execute(sa.text("SELECT id FROM log")).scalars().all() == [5]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "CREATE TABLE lines(id integer, ordered bigint REFERENCES orders(id))",
            "would lose the foreign keys of lines to it",
        ),
        (None, "would lose its CHECK constraints"),
    ],
)
def test_sqlite_does_not_copy_what_a_copy_would_lose(sqlite_url: str, more: str | None, reason: str) -> None:
    with wc.connect(sqlite_url) as database:
        make_documents(
            database,
            DOCUMENTS
            if more
            else DOCUMENTS.replace("message varchar(128)", "message varchar(128) CHECK (message <> '')"),
        )
        if more:
            run(database, more)
        with pytest.raises(wc.SchemaError, match=reason):
            database.create_table("orders", payload="text", adopt=True)


def test_an_adopted_table_with_an_integer_epoch_counts_up_to_its_maximum(
    database: Database, clock: MovableClock
) -> None:
    narrow = DOCUMENTS.replace("epoch bigint", "epoch integer")
    make_documents(database, narrow)
    insert(database, 1, "tea", epoch=2**31 - 1)
    table = database.create_table("orders", payload="text", adopt=True)
    assert [one.payload for one in table.receive()] == ["tea"]
    clock.move("400d")
    assert [one.epoch for one in table.receive()] == [2**31 - 1]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_table_whose_epoch_is_a_smallint_is_not_adopted(database: Database) -> None:
    make_documents(database, DOCUMENTS.replace("epoch bigint", "epoch smallint"))
    with pytest.raises(wc.SchemaError, match=r"column 'epoch' must be BIGINT, got SMALLINT"):
        database.create_table("orders", payload="text", adopt=True)


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite bounds no text
def test_a_reason_is_cut_to_what_an_adopted_column_holds(database: Database, clock: MovableClock) -> None:
    make_documents(database, DOCUMENTS.replace("region varchar", "last_error varchar(20),\n        region varchar"))
    insert(database, 1, "tea")
    table = database.create_table("orders", payload="text", jitter=0, adopt=True)
    [delivery] = table.receive()
    delivery.nack(error="x" * 500)
    assert reasons(database) == ["x" * 20]
    clock.move("1d")
    assert table.cancel([1], "y" * 500) == 1
    assert reasons(database) == ["y" * 20]


def reasons(database: Database) -> list[str]:
    with database.backend.engine.connect() as connection:
        return list(connection.scalars(sa.text("SELECT last_error FROM orders")))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_columns_may_hold_arrays(database: Database) -> None:
    run(database, "CREATE DOMAIN labels AS text[]")
    kinds = "tags text[], grid bigint[], raw bytea[], facts jsonb[], marked labels"
    make_documents(database, DOCUMENTS.replace("region varchar(20) DEFAULT 'eu'", kinds))
    table = database.create_table("orders", payload="text", adopt=True)
    rows: list[dict[str, Any]] = [
        {"tags": ['a "b"', "c\\,{d}", None, "NULL", ""], "grid": [[1, 2], [3, 4]], "raw": [b"\x00\xff"]},
        {"tags": None, "grid": None, "raw": None},
        {"tags": [], "grid": [-1], "raw": []},
    ]
    rows[0] |= {"facts": [{"a": ['"']}, [1], "3", True], "marked": ["NULL", None]}
    rows[1:] = [row | {"facts": None, "marked": []} for row in rows[1:]]
    table.put("one", **rows[0])
    table.put_many([{"payload": "many", **row} for row in rows])
    table.put_many([{"payload": "given", "id": 70 + nth, **row} for nth, row in enumerate(rows)])
    assert [one.columns for one in table.receive(10)] == [rows[0], *rows, *rows]
    with pytest.raises(wc.InvalidArgumentError, match="bigint"):
        table.put_many([{"payload": "wrong", "grid": ["x"], "raw": [b"1"]}] * 2)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_columns_may_hold_arrays_of_a_domain(
    database: Database, connect: Callable[..., Database], clock: MovableClock, groups: Any
) -> None:
    for domain in ("count AS int CHECK (VALUE > 0)", "few AS count CHECK (VALUE < 9)", "word AS text", "day AS date"):
        run(database, f"CREATE DOMAIN {domain}")
    kinds = "counts count[], grid few[][], words word[], days day[], one count"
    make_documents(database, DOCUMENTS.replace("region varchar(20) DEFAULT 'eu'", kinds))
    database.create_table("orders", payload="text", adopt=True, groups=groups, dead_letter="dead")
    table = connect(clock=clock).table("orders")
    full = {"counts": [1, 12], "grid": [[1], [2]], "words": ['a "b"', None], "days": [date(2024, 2, 29)], "one": 3}
    empty = dict.fromkeys(full)
    table.put("one", **full)
    table.put_many([{"payload": "many", **full}, {"payload": "many", **empty}, {"payload": "named", "id": 9, **full}])
    table.dead_letter(9, "broken")
    assert table.redrive() == 1
    assert [one.columns for one in table.receive(10)] == [full, full, empty, full]
    with pytest.raises(wc.RefusedError, match="count"):
        table.put_many([{"payload": "wrong", "counts": [-1]}] * 2)


UNKNOWN = {
    "postgresql": (["point", "xml", "point[]", "pair"], ["(1,2)", "<a/>", None, "(3,x)"]),
    "mysql": (["inet6", "point"], ["::1", None]),
    "sqlite": ([""], ["any"]),
}
"""Types that SQLAlchemy does not know, each with a value, by database."""


def test_columns_may_have_types_that_sqlalchemy_does_not_know(
    database: Database, connect: Callable[..., Database], clock: MovableClock
) -> None:
    kinds, values = UNKNOWN[database.backend.engine.dialect.name.replace("mariadb", "mysql")]
    if "pair" in kinds:
        run(database, "CREATE TYPE pair AS (number int, name text)")
    columns = ", ".join(f"c{nth} {kind}" for nth, kind in enumerate(kinds))
    make_documents(database, DOCUMENTS.replace("region varchar(20) DEFAULT 'eu'", columns))
    database.create_table("orders", payload="text", adopt=True, dead_letter="dead")
    table = connect(clock=clock).table("orders")
    full = {f"c{nth}": value for nth, value in enumerate(values)}
    table.put("none")
    table.put("one", **full)
    table.put_many([{"payload": "many"}, {"payload": "many", **full}, {"payload": "named", "id": 9, **full}])
    table.dead_letter(9, "broken")
    assert table.redrive() == 1
    found = [one.columns for one in table.receive(10)]
    assert found == [dict.fromkeys(full), full, dict.fromkeys(full), full, full]
