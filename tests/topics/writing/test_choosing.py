"""Reading chosen sources and streams returns the same as reading everything and filtering, from any store."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from waterclock import InvalidArgumentError, Message, Position
from waterclock.topics.reading import sealed_ledger
from waterclock.topics.topic import Topic

MESSAGES = [Message(f"s{n // 8}", f"t{n % 3}", n, b"%d" % n) for n in range(48)]
CHOICES: list[dict[str, Any]] = [
    {"source": "s1"},
    {"source": ["s1", "s4", "other"]},
    {"stream": "t2"},
    {"source": {"s0", "s5"}, "stream": ["t0", "t1"]},
    {"source": "other"},
    {"source": []},
]


def _fill(topic: Topic) -> None:
    for first in range(0, 48, 8):
        topic.append(MESSAGES[first : first + 8])
        if first in (8, 24):
            topic.roll()
            topic.seal()


def _holds(choice: dict[str, Any], message: Message) -> bool:
    return all(
        getattr(message, name) in ([names] if isinstance(names, str) else names) for name, names in choice.items()
    )


@pytest.mark.one_database
@pytest.mark.parametrize("choice", CHOICES)
def test_a_selection_reads_the_rows_that_a_filter_would_keep(topic: Topic, choice: dict[str, Any]) -> None:
    _fill(topic)
    wanted = [message.event_time for message in topic.read() if _holds(choice, message)]
    assert [message.event_time for message in topic.read(**choice)] == wanted
    assert [message.event_time for message in topic.read(**choice, limit=5)] == wanted[:5]
    found = topic.read_arrow(Position(0, 1, 0), columns=["event_time"], **choice)
    assert [time for batch in found for time in batch.column(0).to_pylist()] == [at for at in wanted if at >= 8]


def test_row_groups_without_a_chosen_source_are_not_read(sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(sqlite_topic)
    read: list[int] = []
    whole = sealed_ledger.SealedLedger.read

    def note(self: sealed_ledger.SealedLedger, group: int, columns: Any) -> Any:
        read.append(self.number)
        return whole(self, group, columns)

    monkeypatch.setattr(sealed_ledger.SealedLedger, "read", note)
    assert [message.source for message in sqlite_topic.read(source="s2")] == ["s2"] * 8
    assert read == [1]


def test_data_frames_hold_what_read_arrow_yields(sqlite_topic: Topic) -> None:
    _fill(sqlite_topic)
    pandas = sqlite_topic.read_pandas(source="s1", columns=["source", "payload", "event_time"])
    assert list(pandas["payload"]) == [b"%d" % n for n in range(8, 16)]
    assert str(pandas["event_time"].dtype) == "datetime64[ns, UTC]"
    polars = sqlite_topic.read_polars(Position(1, 0, 0), limit=3)
    assert polars["source"].to_list() == ["s2"] * 3
    assert sqlite_topic.read_pandas(source="other").empty


@pytest.mark.parametrize("by", ["event_time", "publish_time", "receive_time", "effective_time"])
def test_data_frames_hold_a_range_of_any_time(sqlite_topic: Topic, by: str) -> None:
    sqlite_topic.append([each.replace(publish_time=each.event_time, receive_time=each.event_time) for each in MESSAGES])
    chosen: dict[str, Any] = {"since": 10, "until": 30, "by": by, "source": ["s1", "s2"]}
    wanted = [message.event_time for message in sqlite_topic.read(**chosen)]
    assert wanted == [*range(10, 24)]
    assert sqlite_topic.read_pandas(**chosen)["event_time"].astype("int64").to_list() == wanted
    assert sqlite_topic.read_polars(**chosen)["event_time"].cast(pl.Int64).to_list() == wanted


@pytest.mark.parametrize("wrong", [7, ["a", 7], b"a"])
@pytest.mark.parametrize("name", ["source", "stream"])
def test_a_value_without_a_source_is_refused(sqlite_topic: Topic, name: str, wrong: object) -> None:
    given: Any = {name: wrong}
    with pytest.raises(InvalidArgumentError, match=f"^{name} must be a name or a list of names, got "):
        next(sqlite_topic.read(**given))


def test_a_column_that_is_chosen_twice_is_refused(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="columns must not repeat a name, got "):
        sqlite_topic.read_polars(columns=["source", "source"])


def test_a_limit_of_chosen_messages_ends_the_reading(sqlite_topic: Topic) -> None:
    _fill(sqlite_topic)
    assert len(list(islice(sqlite_topic.read(stream="t0", limit=1), 3))) == 1


def test_files_name_each_message_once_after_a_compaction(sqlite_topic: Topic, tmp_path: Path) -> None:
    _fill(sqlite_topic)
    sqlite_topic.compact()
    every = [str(path) for path in tmp_path.rglob("*.parquet")]
    assert sum(pq.read_metadata(path).num_rows for path in sqlite_topic.files()) == 32
    assert sum(pq.read_metadata(path).num_rows for path in every) > 32
