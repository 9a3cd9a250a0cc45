"""Messages that kill the process which handles them: they become dead letters, and take no other message along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.forked import Forked
from tests.work.faults.crashing import DEADLY, is_open

from waterclock.tables.message_table import MessageTable

MOST_RUNS = 12


@pytest.fixture
def run(database_url: str) -> Callable[..., list[str]]:
    """Run a process, and start it again for as long as it is killed; give what its handlers began."""

    def run(mode: str, slots: int) -> list[str]:
        began: list[str] = []
        for _ in range(MOST_RUNS):
            with Forked("tests.work.faults.crashing", database_url, mode, slots) as process:
                began += process.stdout.read().splitlines()
            if process.returncode == 0:
                return began
        raise AssertionError(f"killed {MOST_RUNS} times: {began}")

    return run


@pytest.mark.both_servers
@pytest.mark.parametrize(
    ("mode", "slots", "groups"),
    [
        ("threads", 4, None),
        ("async", 4, None),
        ("subscribe", 1, None),
        ("threads", 4, "sequenced"),
        ("threads", 4, "exclusive"),
    ],
)
def test_a_message_that_kills_its_process_is_the_only_dead_letter(
    make_table: Callable[..., MessageTable],
    run: Callable[..., list[str]],
    mode: str,
    slots: int,
    groups: str | None,
) -> None:
    in_groups = {"groups": groups, "on_exhausted": "dead_letter"} if groups else {}
    orders = make_table(max_attempts=2, ack_wait="500ms", min_backoff="500ms", dead_letter="dead", **in_groups)
    payloads = ["before", DEADLY, *(f"after {number}" for number in range(6))]
    orders.put_many([{"payload": payload, "group": "g" if groups else None} for payload in payloads])

    began = run(mode, slots)

    assert [each["payload"] for each in orders.dead_letters()] == [DEADLY]
    assert Counter(began)[f"{DEADLY} 1"] == Counter(began)[f"{DEADLY} 2"] == 1
    assert {line.rsplit(" ", 1)[0] for line in began} == set(payloads)
    assert not is_open(orders.stats())
