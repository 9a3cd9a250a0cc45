"""Ids, groups and names are equal where their bytes are, on every database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

Make = Callable[..., MessageTable]

ALIKE = ["a", "a ", "a  ", " a", "A", "á", "a\u0301", "\uff41", "ß", "ss", "a\t", "a\u00a0", "a\u200b", " ", "  "]
"""Texts of which some database's everyday comparison takes one for another."""


def test_ids_that_differ_in_a_byte_are_different_messages(make_table: Make) -> None:
    table = make_table(id_type="text", batch_size=100)
    for message_id in ALIKE:
        assert table.put(message_id, id=message_id) == message_id
    assert table.put_many([{"id": one, "payload": "again"} for one in ALIKE]).existing == ALIKE
    assert {delivery.id: delivery.payload for delivery in table.receive()} == {one: one for one in ALIKE}
    assert table.ack(["a ", "A", "never put"]) == 2
    assert [table.explain(one).state for one in ("a", "a ")] == ["leased", "acked"]


@pytest.mark.parametrize("mode", ["sequenced", "exclusive"])
def test_groups_that_differ_in_a_byte_do_not_wait_for_each_other(make_table: Make, mode: str) -> None:
    table = make_table(groups=mode, batch_size=1000)
    table.put_many([{"payload": one, "group": one} for one in ALIKE for _ in range(2)])
    assert {delivery.group for delivery in table.receive()} == set(ALIKE)
    assert sorted(info.group for info in table.groups.list()) == sorted(ALIKE)
    table.groups.pause("a ")
    assert [info.group for info in table.groups.list() if info.paused_until] == ["a "]
    assert table.groups.purge("A", force=True).done == 2
    assert [info.group for info in table.groups.list() if not info.in_flight] == ["A"] * (mode == "exclusive")


def test_tables_and_topics_and_what_reads_them_are_distinguished_by_their_bytes(database: Database) -> None:
    names = [name for name in ALIKE if name == name.strip()]  # others are refused
    for name in names:
        topic = database.create_topic(name)
        topic.append([wc.Message("s", "v", 1, b"")], producer=name, sequence=1)
        topic.subscribe(name)
    assert sorted(database.topics()) == sorted(names)
    topic = database.topic("a")
    for number, name in enumerate(names):
        assert not topic.append([wc.Message("s", "v", 2, b"")], producer=name, sequence=10 + number).duplicate


def test_consumers_whose_names_end_with_a_blank_are_consumers_of_their_own(make_table: Make) -> None:
    table = make_table(groups="exclusive")
    table.put_many([{"payload": str(number), "group": str(number)} for number in range(6)])
    with table.subscribe(consumer="c", limit=3) as one, table.subscribe(consumer="c ", limit=3) as another:
        groups = [{next(each).group for _ in range(3)} for each in (one, another)]
    assert groups[0].isdisjoint(groups[1])


def test_conditions_on_texts_see_every_byte(make_table: Make) -> None:
    table = make_table(columns={"region": "text"}, batch_size=100)
    table.put_many([{"payload": one, "region": one} for one in ALIKE])
    with table.subscribe(where="region = 'a '") as deliveries:
        assert next(deliveries).payload == "a "


names = st.text(st.sampled_from("aAä \t\u0301%_\\'\""), min_size=1, max_size=4)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(names, min_size=1, max_size=12))
def test_each_of_any_ids_that_are_put_is_there_once(database: Database, ids: list[str]) -> None:
    with_text = database.create_table("ids", id_type="text", payload="text", batch_size=100, exist_ok=True)
    known = {delivery.id for delivery in with_text.receive()}
    assert known == set()
    put = with_text.put_many([{"id": one, "payload": ""} for one in ids])
    assert len(put.existing) == len(ids) - len(set(ids))
    assert {delivery.id for delivery in with_text.receive()} == set(ids)
    with_text.drop()
