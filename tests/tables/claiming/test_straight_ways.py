"""The way of a message is straight: how many functions, in how many files of ours, it passes when nothing is unusual.

That a statement is found that was compiled for a table like this one counts, too: the hash of a table is a function of
ours.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.ways import WARM, Way, fewest, is_within, way_of

from waterclock import MessageTable
from waterclock.tables.consumers.delivery import Delivery

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def ways(table: MessageTable, **group: str) -> dict[str, Way]:
    """Follow messages one by one: each is put, received and acked."""
    seen: dict[str, list[Way]] = {"put": [], "receive": [], "ack": []}
    for _ in range(2 * WARM):
        _, put = way_of(lambda: table.put(b"x", **group))
        deliveries, receive = way_of(lambda: table.receive(1))
        delivery: Delivery
        [delivery] = deliveries
        _, ack = way_of(delivery.ack)
        for name, way in (("put", put), ("receive", receive), ("ack", ack)):
            seen[name].append(way)
    return {name: fewest(of_name[WARM:]) for name, of_name in seen.items()}


def test_a_message_without_a_group_passes_few_functions_and_files(make_table: Callable[..., MessageTable]) -> None:
    seen = ways(make_table(payload="bytes"))
    assert is_within(seen["put"], calls=51, files=10), seen
    assert is_within(seen["receive"], calls=50, files=12), seen
    assert is_within(seen["ack"], calls=32, files=7), seen


@pytest.mark.parametrize(
    ("groups", "calls", "files"),
    [
        ("sequenced", 105, 19),
        ("exclusive", 140, 20),  # which also looks after living consumers, and notes the first message of an owner
    ],
)
def test_a_message_of_a_group_passes_not_many_more(
    make_table: Callable[..., MessageTable], groups: str, calls: int, files: int
) -> None:
    seen = ways(make_table(groups=groups, payload="bytes"), group="g")
    assert is_within(seen["receive"], calls, files), seen
