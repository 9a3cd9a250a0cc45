"""Values that not every database stores: they are refused for all databases, before a statement is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.values.json_values import check_json
from waterclock.tables.model.values.texts import check_text, storable

pytestmark = pytest.mark.both_servers

NUL, HALF = "a\0b", "a\ud800b"


@pytest.mark.one_database
@pytest.mark.parametrize("text", [NUL, HALF])
def test_texts_that_no_database_or_not_every_one_keeps_are_refused_by_their_arguments_names(
    database: Database, text: str
) -> None:
    table = database.create_table("orders", payload="text", id_type="text", columns={"region": "text"})
    message: dict[str, Any] = {"payload": "tea", "id": "1"}
    for name in ("payload", "id", "group", "region"):
        with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
            table.put_many([message | {name: text}])
    assert table.stats().ready == 0
    table.put_many([message])


def test_headers_may_have_a_nul_which_json_spells_and_no_half_of_a_pair(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table()
    table.put("tea", headers={"a": NUL})
    with pytest.raises(InvalidArgumentError, match=r"^headers: "):
        table.put("tea", headers={"a": HALF})
    assert [one.headers for one in table.receive()] == [{"a": NUL}]


@pytest.mark.one_database
@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": -math.inf}, NUL, [{"a": HALF}], {NUL: 1}, {1, 2}])
def test_json_that_a_database_would_change_is_refused(database: Database, value: Any) -> None:
    table = database.create_table("orders", payload="json", columns={"extra": "json"})
    with pytest.raises(InvalidArgumentError, match=r"^payload(:| must be JSON, got) "):
        table.put(value)
    with pytest.raises(InvalidArgumentError, match=r"^extra(:| must be JSON, got) "):
        table.put(1, extra=value if isinstance(value, list | dict | set) else [value])


def test_json_that_only_looks_refusable_is_stored(database: Database) -> None:
    table = database.create_table("orders", payload="json", columns={"extra": "json"})
    likely = {"a": "\\u0000 and \\ud800 as a caller may write them", "b": "😀", "c": [None, True, 1.5]}
    table.put(likely, extra=likely)
    [delivery] = table.receive()
    assert (delivery.payload, delivery.columns["extra"]) == (likely, likely)


@pytest.mark.parametrize("reason", [NUL, HALF, "tea 😀"])
def test_why_a_handler_failed_is_kept_for_any_text_of_its_error(
    make_table: Callable[..., MessageTable], reason: str
) -> None:
    table = make_table(max_attempts=2, dead_letter="orders_dead")
    table.put_many([{"payload": "a"}, {"payload": "b"}])
    first, second = table.receive()
    with pytest.raises(RuntimeError) as raised, first:
        raise RuntimeError(reason)
    assert not getattr(raised.value, "__notes__", [])
    second.dead_letter(reason)
    [dead] = table.dead_letters()
    assert dead["dead_reason"] == storable(reason)


def test_ids_that_cannot_be_kept_are_errors_of_ours_wherever_they_are_asked_for(database: Database) -> None:
    table = database.create_table("orders", payload="text", id_type="text")
    for text in (NUL, HALF):
        for ask in (table.ack, table.explain, table.retry, lambda one: table.reschedule(one, 0)):
            try:
                ask(text)
            except Exception as error:  # noqa: BLE001  # which one is what is looked at
                assert type(error).__module__ == "waterclock.errors"  # noqa: PT017


@given(st.text(st.characters(exclude_categories=())))
def test_storable_text_is_unchanged_and_other_text_becomes_storable(text: str) -> None:
    kept = storable(text)
    assert check_text("text", kept) == kept
    assert storable(kept) == kept
    assert len(kept) == len(text)
    try:
        check_text("text", text)
    except InvalidArgumentError:
        assert kept != text
    else:
        assert kept == text


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_is_refused_where_a_text_or_a_number_in_it_is(value: Any) -> None:
    def fits(one: Any) -> bool:
        if isinstance(one, str):
            return storable(one) == one
        if isinstance(one, float):
            return math.isfinite(one)
        if isinstance(one, dict):
            return all(fits(key) and fits(inner) for key, inner in one.items())
        return all(map(fits, one or ()))

    try:
        check_json("value", value)
    except InvalidArgumentError:
        assert not fits(value)
    else:
        assert fits(value)


@pytest.mark.one_database
@pytest.mark.parametrize("group", [NUL, HALF, 7])
def test_invalid_groups_are_refused_wherever_they_are_named(
    make_table: Callable[..., MessageTable], group: Any
) -> None:
    groups = make_table(groups="sequenced").groups
    for command in (groups.info, groups.purge, groups.pause, groups.resume, groups.close, groups.release):
        with pytest.raises(InvalidArgumentError, match=r"^group(: | must be a string)"):
            command(group)
