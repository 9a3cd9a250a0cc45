from __future__ import annotations

import random
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.killed import Killed
from tests.topics.conftest import MakeTopic
from tests.topics.flows import CountedStatements, append_ledgers, first_at_or_after

from waterclock.database.schema.topic_catalogue import BOUNDED, ledgers, topics
from waterclock.message import Message, Position
from waterclock.topics.catalogue import running_max
from waterclock.topics.topic import Topic

WILD = 10**18
Placed = list[tuple[int, Position]]


def peaks_of(topic: Topic) -> list[tuple[int, ...]]:
    """Read the running maxima that the catalogue has, of each ledger and of the topic."""
    with topic.storage.backend.snapshot() as connection:
        columns = [ledgers.c[f"peak_{time}"] for time in BOUNDED]
        rows = connection.execute(sa.select(*columns).order_by(ledgers.c.ledger)).all()
        total = connection.execute(sa.select(*(topics.c[f"peak_{time}"] for time in BOUNDED))).one()
    return [tuple(row) for row in (*rows, total)]


def right_peaks_of(topic: Topic) -> list[tuple[int, ...]]:
    """Work them out from what the ledgers say themselves."""
    with topic.storage.backend.snapshot() as connection:
        columns = [ledgers.c[f"end_{time}"] for time in BOUNDED]
        ends = connection.execute(sa.select(*columns).order_by(ledgers.c.ledger)).all()
    right = [tuple(max(end[i] for end in ends[: n + 1]) for i in range(len(BOUNDED))) for n in range(len(ends))]
    return [*right, right[-1]]


def stale(topic: Topic) -> int | None:
    with topic.storage.backend.snapshot() as connection:
        return topic.storage.row(connection)["stale_peaks"]


def with_a_wild_ledger(topic: Topic, *, wild: int = 1, count: int = 12) -> Placed:
    placed = append_ledgers(topic, [[[WILD if i == wild else 10 * i, 10 * i + 1]] for i in range(count)])
    topic.roll()
    return placed


def left(topic: Topic, placed: Placed) -> Placed:
    first = topic.ledgers(limit=1)[0].ledger
    return [(time, position) for time, position in placed if position.ledger >= first]


def test_trimming_a_ledger_of_a_wild_clock_leaves_the_running_maxima_of_the_rest(topic: Topic) -> None:
    placed = with_a_wild_ledger(topic)
    topic.seal()
    assert {peak[1] for peak in peaks_of(topic)[1:]} == {WILD}
    assert topic.truncate(Position(3, 0, 0)) == 3
    assert peaks_of(topic) == right_peaks_of(topic)
    assert stale(topic) is None
    for time in range(-1, 125):
        expected = first_at_or_after(left(topic, placed), time)
        assert topic.find(time).position == (expected or topic.head)
    topic.append([Message("a", "b", 1, publish_time=200)])
    topic.roll()
    assert peaks_of(topic) == right_peaks_of(topic)


def test_finding_after_a_wild_ledger_was_trimmed_is_one_query_again(topic: Topic) -> None:
    with_a_wild_ledger(topic)
    topic.truncate(Position(3, 0, 0))
    with CountedStatements(topic.storage.backend._reader) as counted:
        assert topic.find(95).position == Position(10, 0, 0)
        assert not topic.find(1000).found
    assert len(counted.selects) == 2


def test_trimming_in_the_order_of_time_rewrites_no_ledger(topic: Topic) -> None:
    append_ledgers(topic, [[[10 * i, 10 * i + 1]] for i in range(12)])
    statements: list[str] = []
    sa.event.listen(topic.storage.backend._writer, "before_cursor_execute", lambda *facts: statements.append(facts[2]))
    assert topic.truncate(Position(3, 0, 0)) == 3
    assert not [text for text in statements if text.startswith("UPDATE waterclock_ledgers")]
    assert stale(topic) is None


def test_lowering_ends_where_a_ledger_that_is_left_reaches_as_far(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_sqlite_topic()
    monkeypatch.setattr(running_max, "_LEDGERS_AT_ONCE", 2)
    append_ledgers(topic, [[[time]] for time in (50, 10, 20, WILD, 30, 40, 41, 42, 43, 44)])
    topic.roll()
    written: list[int] = []

    def note(*facts: Any) -> None:
        if facts[2].startswith("UPDATE waterclock_ledgers"):
            written.append(facts[0])

    sa.event.listen(topic.storage.backend._writer, "before_cursor_execute", note)
    topic.truncate(Position(1, 0, 0))
    assert len(written) == 1  # ledgers 1 and 2; the wild one of number 3 is its own running maximum
    assert peaks_of(topic) == right_peaks_of(topic)


@pytest.mark.parametrize("deaths", range(1, 7))
@pytest.mark.parametrize("trimmed_again", [False, True])
def test_lowering_that_is_killed_continues_where_it_was(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, deaths: int, *, trimmed_again: bool
) -> None:
    topic = make_sqlite_topic()
    monkeypatch.setattr(running_max, "_LEDGERS_AT_ONCE", 2)
    # Two wild ledgers, so that what a second trimming leaves agrees before the place of the first death.
    wild = {0: WILD, 2: 500}
    placed = append_ledgers(topic, [[[wild.get(i, 10 * i)]] for i in range(14)])
    topic.roll()
    lower = running_max._lower_some
    done = 0

    def die(*arguments: Any) -> int | None:
        nonlocal done
        done += 1
        if done == deaths:
            raise Killed
        return lower(*arguments)

    monkeypatch.setattr(running_max, "_lower_some", die)
    with pytest.raises(Killed):
        topic.truncate(Position(1, 0, 0))
    for time in range(0, 150, 5):
        assert topic.find(time).position == (first_at_or_after(left(topic, placed), time) or topic.head)
    monkeypatch.setattr(running_max, "_lower_some", lower)
    if trimmed_again:
        topic.truncate(Position(3, 0, 0))
    else:
        topic.sweep()
    assert peaks_of(topic) == right_peaks_of(topic)
    assert stale(topic) is None


def test_an_unmeasured_ledger_keeps_its_place_and_is_measured_later(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = with_a_wild_ledger(topic, wild=0)
    topic.seal()
    columns = [column for column in ledgers.c if column.name.startswith(("begin_", "end_", "peak_"))]
    unknown = {column.name: None for column in columns}
    chosen = ledgers.c.ledger.in_([1, 6])
    topic.storage.backend.transact(
        lambda connection: connection.execute(sa.update(ledgers).where(chosen).values(unknown))
    )
    topic.truncate(Position(1, 0, 0))
    for time in range(130):
        assert topic.find(time).position == (first_at_or_after(left(topic, placed), time) or topic.head)
    assert peaks_of(topic) == right_peaks_of(topic)


def test_running_maxima_are_right_after_any_trimming(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_max, "_LEDGERS_AT_ONCE", 3)
    dice = random.Random(7)  # noqa: S311  # not a secret
    for case in range(12):
        topic = make_sqlite_topic(f"topic {case}")
        count = dice.randint(2, 12)
        times = [dice.choice([10 * i, 10 * i, dice.randint(0, 200)]) for i in range(count)]
        placed = append_ledgers(topic, [[[time]] for time in times])
        topic.roll()
        for _ in range(2):
            topic.truncate(Position(dice.randint(1, count - 1), 0, 0))
        for time in range(0, 201, 7):
            assert topic.find(time).position == (first_at_or_after(left(topic, placed), time) or topic.head)
        topic.remove()


def test_a_topic_without_remaining_messages_starts_again(topic: Topic) -> None:
    with_a_wild_ledger(topic)
    topic.truncate(topic.head)
    assert peaks_of(topic) == [(None,) * 4]
    topic.append([Message("a", "b", 1, publish_time=7, receive_time=7)])
    topic.roll()
    assert {peak[1] for peak in peaks_of(topic)} == {7}
