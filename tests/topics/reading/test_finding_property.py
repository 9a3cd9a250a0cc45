from __future__ import annotations

import secrets
from collections.abc import Generator

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from tests.topics.flows import append_ledgers, first_at_or_after

from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.topics.finding.finding import Found
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.store import sealed_file
from waterclock.topics.topic import Topic

TIMES = st.integers(0, 12)
LEDGERS = st.lists(st.lists(st.lists(TIMES, min_size=1, max_size=5), min_size=1, max_size=3), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def shared_backend(tmp_path_factory: pytest.TempPathFactory) -> Generator[Backend]:
    backend = Backend(f"sqlite:///{tmp_path_factory.mktemp('find')}/x.db")
    yield backend
    backend.close()


@settings(max_examples=settings.default.max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flow=LEDGERS,
    sealed=st.integers(0, 5),
    roll_last=st.booleans(),
    trimmed=st.integers(0, 3),
    forgotten=st.sets(st.integers(0, 4), max_size=2),
    row_group=st.integers(1, 6),
)
def test_find_equals_the_first_message_that_reaches_the_time(
    shared_backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    flow: list[list[list[int]]],
    sealed: int,
    roll_last: bool,
    trimmed: int,
    forgotten: set[int],
    row_group: int,
) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", row_group)
    folder = f"{shared_backend.url.database}-ledgers"
    topic = Topic.create(
        shared_backend,
        folder,
        secrets.token_hex(8),
        TopicOptions.check(roll_after=None, roll_size=1 << 30, retention=None),
    )
    placed = append_ledgers(topic, flow[:sealed])
    topic.roll()
    topic.seal()
    placed += append_ledgers(topic, flow[sealed:])
    if roll_last:
        topic.roll()
    _trim_and_forget(topic, trimmed, forgotten)
    left = topic.ledgers()[0].ledger
    placed = [(time, position) for time, position in placed if position.ledger >= left]
    for time in range(-1, 14):
        expected = first_at_or_after(placed, time)
        assert topic.find(time) == Found(expected or topic.head, found=expected is not None)


def _trim_and_forget(topic: Topic, trimmed: int, forgotten: set[int]) -> None:
    mine = ledgers.c.topic_id == topic.storage.topic_id
    columns = [column.name for column in ledgers.c if column.name.startswith(("begin_", "end_", "peak_"))]

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(ledgers).where(mine, ledgers.c.ledger < trimmed))
        known = sa.update(ledgers).where(mine, ledgers.c.ledger.in_(forgotten))
        connection.execute(known.values(dict.fromkeys(columns)))

    topic.storage.backend.transact(work)
