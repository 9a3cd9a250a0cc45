"""The source without Spark around it: what filters leave unread, and where micro-batches begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

import waterclock as wc
from waterclock.columnar.packing import unpack
from waterclock.errors import InvalidArgumentError
from waterclock.spark.reading.columns import check_columns
from waterclock.spark.reading.pushdown import exact_test
from waterclock.spark.reading.source import TopicReader
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.reading.topic_stream import TopicStreamReader
from waterclock.spark.registering import WaterclockSource
from waterclock.topics.reading.slicing import Slice

SECOND = 1_000_000_000
SOURCES = ("a", "b", "c", "d")
OPERATORS: dict[type[Filter], Any] = {
    EqualTo: lambda x, y: x == y,
    GreaterThan: lambda x, y: x > y,
    GreaterThanOrEqual: lambda x, y: x >= y,
    LessThan: lambda x, y: x < y,
    LessThanOrEqual: lambda x, y: x <= y,
    In: lambda x, y: x in y,
}


def message(number: int) -> wc.Message:
    """Ten messages a second; ledger after ledger has its own source."""
    return wc.Message(
        SOURCES[number // 20], f"s{number % 3}", number * SECOND, publish_time=number * SECOND + 5, receive_time=number
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wc.Database]:
    """Three sealed ledgers of 20 messages and an open one of 20, each in two entries."""
    with wc.connect(f"sqlite:///{tmp_path_factory.mktemp('source')}/f.db") as database:
        topic = database.create_topic("t")
        for first in range(0, 80, 10):
            if first and first % 20 == 0:
                topic.roll()
                topic.seal()
            topic.append([message(number) for number in range(first, first + 10)])
        yield database


def options(database: wc.Database, **given: str) -> TopicReadOptions:
    return TopicReadOptions.checked({"url": str(database.backend.url), "topic": "t", **given})


def slices(reader: TopicReader) -> list[Slice]:
    return [part for partition in reader.partitions() for part in cast("tuple[Slice, ...]", partition.value)]


def rows(reader: TopicReader | TopicStreamReader, *offsets: dict[str, Any]) -> list[dict[str, Any]]:
    parts = reader.partitions(*offsets)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def at(number: int) -> datetime:
    return datetime.fromtimestamp(number, UTC)


YEAR_1 = datetime(1, 1, 1, tzinfo=UTC)
YEAR_9999 = datetime(9999, 12, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "ledgers"),
    [
        ([GreaterThan(("event_time",), 45 * SECOND)], [2, 3]),
        ([GreaterThanOrEqual(("event_time",), 20 * SECOND), LessThan(("event_time",), 40 * SECOND)], [1]),
        ([LessThanOrEqual(("publish_time",), 19 * SECOND + 5)], [0]),
        ([EqualTo(("receive_time",), 33)], [1]),
        ([In(("event_time",), (3 * SECOND, 5 * SECOND))], [0]),
        ([GreaterThan(("event_timestamp",), at(45))], [2, 3]),
        ([EqualTo(("event_timestamp",), at(45))], [2]),
        ([GreaterThan(("event_timestamp",), YEAR_1), LessThan(("event_timestamp",), YEAR_9999)], [0, 1, 2, 3]),
        ([GreaterThanOrEqual(("event_timestamp",), at(45)), LessThanOrEqual(("event_timestamp",), YEAR_9999)], [2, 3]),
        ([EqualTo(("event_timestamp",), YEAR_9999)], []),
        ([LessThan(("event_timestamp",), YEAR_1)], []),
        ([In(("event_timestamp",), (at(45), None))], [2]),
        ([In(("source",), ("a", None))], [0, 3]),
        ([In(("source",), (None,))], [3]),
        ([EqualTo(("source",), "b")], [1, 3]),
        ([In(("source",), ("a", "c"))], [0, 2, 3]),
        ([GreaterThan(("ledger",), 1)], [2, 3]),
        ([EqualTo(("ledger",), 1), LessThan(("entry",), 1)], [1]),
        ([EqualTo(("source",), "a"), EqualTo(("source",), "b"), LessThan(("ledger",), 3)], []),
        ([StringStartsWith(("source",), "b")], [0, 1, 2, 3]),
    ],
)
def test_ledgers_without_a_wanted_message_are_not_read(
    database: wc.Database, filters: list[Filter], ledgers: list[int]
) -> None:
    reader = TopicReader(options(database))
    list(reader.pushFilters(filters))
    planned = slices(reader)
    assert [part.start.ledger for part in planned] == ledgers
    assert [part.path is None for part in planned] == [ledger == 3 for ledger in ledgers]


def test_entries_and_row_groups_without_a_wanted_message_are_not_read(database: wc.Database) -> None:
    reader = TopicReader(options(database))
    list(reader.pushFilters([LessThan(("event_time",), 65 * SECOND), GreaterThan(("event_time",), 55 * SECOND)]))
    sealed, unsealed = slices(reader)
    assert (sealed.start, sealed.stop) == (wc.Position(2, 0, 0), wc.Position(3, 0, 0))
    assert (unsealed.start, unsealed.stop, unsealed.messages) == (wc.Position(3, 0, 0), wc.Position(3, 1, 0), 10)


def test_pieces_with_a_gap_between_them_are_slices_of_their_own(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        for number in (1, 50, 2):
            topic.append([message(number)])
        reader = TopicReader(options(database))
        list(reader.pushFilters([LessThan(("event_time",), 9 * SECOND)]))
        assert [part.start.entry for part in slices(reader)] == [0, 2]
        assert [row["event_time"] for row in rows(reader)] == [SECOND, 2 * SECOND]


NUMBERS = st.one_of(st.integers(-5, 85).map(lambda n: n * SECOND + n % 7), st.integers(-1, 85))
COMPARED = st.one_of(
    st.tuples(
        st.sampled_from([kind for kind in OPERATORS if kind is not In]),
        st.sampled_from(["event_time", "publish_time", "receive_time", "ledger", "entry", "index"]),
        NUMBERS,
    ),
    st.tuples(
        st.just(In),
        st.sampled_from(["event_time", "ledger", "index"]),
        st.tuples(NUMBERS, st.lists(st.none() | NUMBERS)).map(lambda some: (some[0], *some[1])),
    ),
    st.tuples(
        st.sampled_from([EqualTo, GreaterThan, LessThanOrEqual]),
        st.sampled_from(["source", "stream"]),
        st.sampled_from([*SOURCES, "s1", ""]),
    ),
)


@given(st.lists(COMPARED, max_size=4))
def test_a_filtered_read_returns_the_rows_that_match(
    database: wc.Database, compared: list[tuple[Any, str, Any]]
) -> None:
    reader = TopicReader(options(database))
    left = list(reader.pushFilters([kind((column,), value) for kind, column, value in compared]))
    assert left == []
    unfiltered = rows(TopicReader(options(database)))
    expected = [r for r in unfiltered if all(OPERATORS[kind](r[column], value) for kind, column, value in compared)]
    assert rows(reader) == expected


def test_filters_that_arrow_cannot_judge_are_left_to_spark() -> None:
    for given_up in (
        StringStartsWith(("source",), "b"),
        EqualTo(("event_time",), None),
        EqualTo(("headers", "a"), "b"),
        EqualTo(("event_timestamp",), at(4)),
        EqualTo(("source",), 4),
        In(("source",), ()),
    ):
        assert exact_test(given_up) is None


def test_a_stream_takes_whole_entries_up_to_its_limit_and_then_says_that_there_is_no_more(
    database: wc.Database,
) -> None:
    reader = TopicStreamReader(options(database, maxMessagesPerTrigger="25"))
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(25)
    offsets = [reader.initialOffset()]
    while (following := reader.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(following)
    assert [offset["ordinal"] for offset in offsets[1:]] == [20, 40, 60, 80]
    assert offsets[-1] == reader.reportLatestOffset()
    assert [offset.get("begin") for offset in offsets] == [None, 0, None, None, None]
    taken = [rows(reader, *pair) for pair in pairwise(offsets)]
    assert [len(some) for some in taken] == [20, 20, 20, 20]
    assert [row["receive_time"] for some in taken for row in some] == list(range(80))
    assert reader.latestOffset(offsets[0], ReadMaxRows(3))["ordinal"] == 10
    assert reader.latestOffset(offsets[0], ReadAllAvailable()) == offsets[-1] | {"begin": 0}
    reader.stop()


def test_available_now_stops_at_the_head_that_it_saw_first(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        topic.append([message(0)])
        reader = TopicStreamReader(options(database))
        reader.prepareForTriggerAvailableNow()
        topic.append([message(1)])
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert end == {"position": "0:1:0", "ordinal": 1, "topic": topic.storage.origin, "begin": 0}
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        assert reader.reportLatestOffset() == {"position": "0:2:0", "ordinal": 2, "topic": topic.storage.origin}


def test_the_start_of_a_stream_stays_the_same_while_the_topic_grows(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        topic.append([message(1)])
        at_three = TopicStreamReader(options(database, startingTimestamp=str(3 * SECOND)))
        start = at_three.initialOffset()
        assert at_three.latestOffset(start, ReadAllAvailable()) == start  # nothing to wait for has come yet
        topic.append([message(2)])
        topic.append([message(4), message(5)])
        end = at_three.latestOffset(start, ReadAllAvailable())
        topic.append([message(6)])
        again = TopicStreamReader(options(database, startingTimestamp=str(3 * SECOND)))
        assert again.initialOffset() == start
        assert [row["receive_time"] for row in rows(again, start, end)] == [4, 5]


@pytest.mark.parametrize(("start", "begins"), [({"startingPosition": "latest"}, 2), ({"startingTimestamp": "1h"}, 1)])
def test_a_start_that_depends_on_the_moment_is_looked_up_once(
    tmp_path: Path, start: dict[str, str], begins: int
) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        now = database.backend.now()
        topic.append([message(0).replace(publish_time=now - 2 * 3_600 * SECOND)])
        topic.append([message(1).replace(publish_time=now)])
        stream = TopicStreamReader(options(database, **start))
        first = stream.initialOffset()
        place = stream.latestOffset(first, ReadAllAvailable())
        assert place["ordinal"] == begins
        topic.append([message(2)])
        # Spark may run the first micro-batch again.
        again = TopicStreamReader(options(database, **start))
        assert again.initialOffset() == first
        assert rows(again, first, place) == []
        end = again.latestOffset(place, ReadAllAvailable())
        assert [row["receive_time"] for row in rows(again, place, end)] == list(range(begins, 3))
        if "startingTimestamp" in start:
            assert len(rows(TopicReader(options(database, startingTimestamp="1h")))) == 2


def test_a_stream_takes_no_more_messages_once_its_halt_file_is_there(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("t").append([message(0)])
        stream = TopicStreamReader(options(database, haltFile=str(tmp_path / "halt")))
        start = stream.initialOffset()
        assert stream.latestOffset(start, ReadAllAvailable()) != start
        (tmp_path / "halt").touch()
        assert stream.latestOffset(start, ReadAllAvailable()) == start


@pytest.mark.parametrize(
    ("by", "expected"),
    [("publish_time", []), ("effective_time", [4, 5]), ("receive_time", [4, 5]), ("event_time", [4, 5])],
)
def test_a_read_goes_by_the_time_that_is_named(tmp_path: Path, by: str, expected: list[int]) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        for number in range(1, 9):
            wild = 10**9 * SECOND if number == 2 else number * SECOND
            topic.append([wc.Message("a", "s", number * SECOND, publish_time=wild, receive_time=number * SECOND)])
        begin = {"startingTimestamp": str(4 * SECOND), "by": by}
        reader = TopicReader(options(database, **begin, endingTimestamp=str(6 * SECOND)))
        assert [row["event_time"] // SECOND for row in rows(reader)] == expected
        stream = TopicStreamReader(options(database, **begin))
        start = stream.initialOffset()
        assert start == {by: 4 * SECOND}
        end = stream.latestOffset(start, ReadAllAvailable())
        first = 2 if by == "publish_time" else 4
        assert [row["event_time"] // SECOND for row in rows(stream, start, end)] == list(range(first, 9))


def test_a_stream_with_an_end_is_refused_when_spark_first_asks(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("t")
        given = {"url": str(database.backend.url), "topic": "t", "endingTimestamp": "2h"}
        # What its making raised would be lost: Spark then stops a reader that it has not got.
        stream = WaterclockSource(given).streamReader(StructType())
        assert isinstance(stream, TopicStreamReader)
        with pytest.raises(InvalidArgumentError, match=r"'endingTimestamp' only works with spark\.read"):
            stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        stream.stop()


def expire_first_ledger(database: wc.Database) -> None:
    topic = database.topic("t")
    topic.truncate(wc.Position(1, 0, 0))


@pytest.fixture
def expiring(tmp_path: Path) -> Iterator[wc.Database]:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        topic.append([message(0), message(1)])
        topic.append([message(2)])
        topic.roll()
        topic.append([message(3)])
        yield database


def test_a_stream_that_was_overtaken_by_expiry_says_what_is_lost_and_how_to_continue(expiring: wc.Database) -> None:
    reader = TopicStreamReader(options(expiring))
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    end = reader.latestOffset(start, ReadAllAvailable())
    expire_first_ledger(expiring)
    for call in (
        lambda: reader.latestOffset(start, ReadAllAvailable()),
        lambda: reader.partitions(start, end),
    ):
        with pytest.raises(wc.NotFoundError, match=r"0:1:0 of topic 't' has expired: the 1 messages .*failOnDataLoss"):
            call()
    lenient = TopicStreamReader(options(expiring, failOnDataLoss="false"))
    assert [row["receive_time"] for row in rows(lenient, start, end)] == [3]


def test_a_stream_at_the_end_of_a_deleted_ledger_has_lost_nothing(expiring: wc.Database) -> None:
    reader = TopicStreamReader(options(expiring))
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))
    assert start["ordinal"] == 3
    expire_first_ledger(expiring)
    assert reader.latestOffset(start, ReadAllAvailable())["ordinal"] == 4


def test_a_start_that_has_expired_is_refused_and_the_first_that_is_left_is_named(expiring: wc.Database) -> None:
    expire_first_ledger(expiring)
    with pytest.raises(wc.NotFoundError, match=r"0:0:0 of topic 't' has expired\. Start at 1:0:0"):
        TopicReader(options(expiring, startingPosition="0:0:0")).partitions()
    stream = TopicStreamReader(options(expiring, startingPosition="0:0:0"))
    with pytest.raises(wc.NotFoundError, match="0:0:0 of topic 't' has expired"):
        stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert [row["receive_time"] for row in rows(TopicReader(options(expiring)))] == [3]


@pytest.mark.parametrize(
    "within",
    [{}, {"startingPosition": "0:0:1"}, {"endingTimestamp": f"{SECOND + 5}"}],
    ids=["whole", "end", "beginning"],
)
def test_a_task_whose_rows_were_deleted_under_its_eyes_fails(expiring: wc.Database, within: dict[str, str]) -> None:
    reader = TopicReader(options(expiring, **within))
    parts = reader.partitions()
    expire_first_ledger(expiring)
    with pytest.raises(wc.NotFoundError, match="was deleted while it was read"):
        list(reader.read(parts[0]))


@pytest.mark.parametrize("packed", ["true", "false"])
@pytest.mark.parametrize("start", [{}, {"startingTimestamp": "3"}, {"startingPosition": "0:0:0"}])
def test_a_stream_of_an_empty_topic_waits_and_then_reads_from_the_first_message_on(
    tmp_path: Path, packed: str, start: dict[str, str]
) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        given = {"packed": packed, **start}
        stream = TopicStreamReader(options(database, **given))
        stream.prepareForTriggerAvailableNow()
        first = stream.initialOffset()
        assert stream.latestOffset(first, ReadAllAvailable()) == first
        # Spark begins the first micro-batch nevertheless, and its checkpoint has this end.
        assert rows(stream, first, first) == []
        topic.append([message(4)])
        assert rows(stream, first, first) == []
        again = TopicStreamReader(options(database, **given))
        end = again.latestOffset(first, ReadAllAvailable())
        assert (end["position"], end["ordinal"]) == ("0:1:0", 1)
        assert len(rows(again, first, end)) == 1


def test_nothing_is_read_of_an_empty_topic(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("t")
        assert rows(TopicReader(options(database))) == []


def test_a_checkpoint_of_a_topic_that_was_removed_and_made_again_is_refused(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        database.create_topic("t").append([message(0), message(1)])
        before = TopicStreamReader(options(database))
        first = before.initialOffset()
        read = before.latestOffset(first, ReadAllAvailable())
        database.topic("t").remove()
        topic = database.create_topic("t")
        after = TopicStreamReader(options(database, failOnDataLoss="false"))
        of_an_older_backup = read | {"topic": topic.storage.origin}
        for offset, says in ((read, "belongs to a topic other than 't'"), (of_an_older_backup, "only 0")):
            with pytest.raises(wc.NotFoundError, match=f"{says}.*Start the query with a new checkpoint"):
                after.latestOffset(offset, ReadAllAvailable())
            with pytest.raises(wc.NotFoundError, match=says):
                after.partitions(first, offset)
        topic.append([message(number) for number in range(3)])
        topic.append([message(3)])
        with pytest.raises(wc.NotFoundError, match="a topic other than 't'"):
            after.latestOffset(read, ReadAllAvailable())
        end = after.latestOffset(first, ReadAllAvailable())
        assert end == {"position": "0:2:0", "ordinal": 4, "topic": topic.storage.origin, "begin": 0}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger must be an integer ≥ 1, got '0'"),
        ({"maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger must be an integer ≥ 1, got 'many'"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false, got 'perhaps'"),
        ({"columns": "source,source"}, "columns must not repeat a name"),
        ({"by": "offset_time"}, "'by' must be one of .* got 'offset_time'"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=says):
        TopicReadOptions.checked({"url": "sqlite:///f.db", "topic": "t", **given})


def test_all_columns_are_read_where_none_is_named() -> None:
    assert set(check_columns(None)) >= {"source", "payload", "event_timestamp", "ledger"}


@pytest.mark.parametrize("streaming", [False, True])
def test_packed_rows_hold_the_messages_of_sealed_and_open_ledgers_in_their_order(
    database: wc.Database, streaming: bool
) -> None:
    reader = (TopicStreamReader if streaming else TopicReader)(options(database, packed="true"))
    offsets = [{"position": "earliest"}, {"position": "9:0:0"}] if streaming else []
    parts = [rows for part in reader.partitions(*offsets) for rows in reader.read(part)]
    assert {tuple(rows.schema.names) for rows in parts} == {("source", "streams", "count", "messages", "clock")}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for rows in parts:
        numbers, columns = unpack(rows)
        named = {"source": rows["source"].take(pa.array(numbers)), **columns}
        for row in pa.table(named).to_pylist():
            found.setdefault(row["source"], []).append(tuple(row.values()))
    expected: dict[str, list[tuple[Any, ...]]] = {}
    for m in database.topic("t").read():
        row = (m.source, m.stream, m.event_time, m.receive_time, *(m.position or ()))
        expected.setdefault(m.source, []).append(row)
    assert found == expected


def test_a_filter_on_the_source_spares_packed_rows_and_their_ledgers(database: wc.Database) -> None:
    reader = TopicReader(options(database, packed="true"))
    assert list(reader.pushFilters([In(("source",), ("b", "d")), GreaterThan(("count",), 0)])) == [
        GreaterThan(("count",), 0)
    ]
    assert [part.start.ledger for part in slices(reader)] == [1, 3]
    assert [(row["source"], row["count"]) for row in rows(reader)] == [("b", 20), ("d", 20)]


def test_packed_and_columns_are_not_both_given(database: wc.Database) -> None:
    with pytest.raises(InvalidArgumentError, match="packed and columns must not both be given"):
        options(database, packed="true", columns="source")
