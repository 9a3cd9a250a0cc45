"""An ingest from a mock cluster: offsets, gaps, lost records, refusals, groups."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from time import time_ns
from typing import Any

import pytest
import streaming_data_types as ess
from confluent_kafka import KafkaError, TopicPartition
from tests.ingest.kafka.conftest import Place, payloads, running, until_stored
from tests.ingest.kafka.mock_cluster import FETCH, MockCluster
from tests.ingest.running import PATIENCE, until

from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.ingest.kafka import client as kafka_client
from waterclock.ingest.kafka import kafka_ingest
from waterclock.ingest.kafka.client import ClusterRefusedError, TopicLookup
from waterclock.ingest.kafka.open_partitions import OpenPartitions
from waterclock.ingest.kafka.record import KafkaRule
from waterclock.ingest.mapping.ess import RUN_STREAM
from waterclock.ingest.storing.partition_rows import PartitionRow, PartitionTakenError
from waterclock.topics.writing.appending import JointAppend

pytestmark = pytest.mark.one_database


def test_records_are_appended_and_continue_after_a_stop(database: Database, place: Place) -> None:
    place.send(b"1", b"2", timestamp=1_700_000_000_123, headers=[("unit", b"bar"), ("raw", b"\xff")])
    with running(database, place.plan()):
        until_stored(database, b"1", b"2")
    place.send(b"3")
    with running(database, place.plan()):
        until_stored(database, b"1", b"2", b"3")
    first = next(iter(database.topic("telemetry").read()))
    assert (first.source, first.stream, first.headers) == ("press", place.name, {"unit": "bar", "raw_hex": "ff"})
    assert first.publish_time == first.event_time == 1_700_000_000_123_000_000
    assert first.receive_time not in (None, first.publish_time)


def test_the_runs_of_ess_cut_batches(database: Database, place: Place) -> None:
    now = time_ns() // 1_000_000
    start = ess.serialise_pl72("job", "file.nxs", start_time=now + 20, run_name="42")
    stop = ess.serialise_6s4t("job", "42", stop_time=now + 40)
    values = [ess.serialise_f144("motor", float(n), (now + 10 * n) * 1_000_000) for n in range(6)]
    place.send(start, *values, stop)
    with running(database, place.plan(place.rule(format_name="ess"))):
        until_stored(database, start, *values, stop)
    batcher = EventTimeBatcher("10s", "1h", max_lead="1h", on_conflict="keep", boundaries={RUN_STREAM})
    batches = [batch for message in database.topic("telemetry").read() for batch in batcher.add(message)]
    batches += batcher.flush()
    assert not batcher.take_rejected()
    assert [{message.payload for message in batch.messages} for batch in batches] == [
        {*values[:2]},
        {start, *values[2:4]},
        {stop, *values[4:]},
    ]
    assert [batch.run for batch in batches] == [None, (now + 20) * 1_000_000, (now + 40) * 1_000_000]


def test_latest_on_an_empty_partition_reads_what_comes_while_it_is_stopped(database: Database, place: Place) -> None:
    with running(database, place.plan(start="latest")) as own:
        until(lambda: own.ingest._at_end)
    place.send(b"meanwhile")
    with running(database, place.plan(start="latest")):
        until_stored(database, b"meanwhile")


def test_markers_of_transactions_and_a_last_tombstone_are_passed(database: Database, place: Place) -> None:
    place.cluster.send_in_transactions(place.name, [b"1", b"2"], [b"3"])
    place.send(None)
    with running(database, place.plan()) as own:
        until_stored(database, b"1", b"2", b"3")
        until(lambda: own.counts.skipped == 1)
    place.send(b"4")
    with running(database, place.plan()) as own:
        until_stored(database, b"1", b"2", b"3", b"4")
        assert own.counts.received == 1


def test_a_poison_record_and_a_key_that_is_no_text_become_one_dead_letter_each(
    database: Database, place: Place
) -> None:
    plan = place.plan(place.rule(format_name="json"))
    place.send(b"1", b"no json", b"2")
    place.send(b"3", key=b"\xff\x01")
    with running(database, plan) as own:
        until(lambda: own.counts.dead == 2)
    with running(database, plan) as own:
        place.send(b"4")
        until_stored(database, b"1", b"2", b"4")
    assert payloads(database, "dead") == [b"no json", b"3"]
    [_, letter] = database.topic("dead").read()
    assert letter.headers is not None
    assert "key must be UTF-8" in letter.headers["reason"]


def test_records_that_cannot_be_taken_whole_become_one_dead_letter_each(database: Database, place: Place) -> None:
    place.send(*[None] * 50)  # Python has specialised its code by then
    place.cluster.send_with_raw_header(place.name, b"1", b"\xff\xfename")
    place.send(b"2", headers=[("large", b"x" * 1_000)])
    place.send(b"3")
    with running(database, replace(place.plan(), most_payload=1_000)):
        until_stored(database, b"3")
    assert payloads(database, "dead") == [b"1", b"2"]
    reasons = [(letter.headers or {})["reason"] for letter in database.topic("dead").read()]
    assert reasons[0].startswith("header names must be UTF-8")
    assert "value, key and headers must have at most" in reasons[1]


def test_records_that_the_broker_deleted_stop_their_partition_alone(database: Database, place: Place) -> None:
    other = Place(place.cluster)
    place.cluster.create(other.name)
    plan = place.plan(place.rule(), other.rule())
    with running(database, plan):
        place.send(b"1")
        until_stored(database, b"1")
    place.send(b"2", b"3", b"4")
    place.cluster.delete_records(place.name, 0, 3)
    with running(database, plan) as own:
        until(lambda: own.counts.stopped == 1)
        assert f"offsets 1 to 2 of partition 0 of {place.name} were deleted by the brokers" in own.text("records_lost")
        other.send(b"goes on")
        until_stored(database, b"1", b"goes on")
    with running(database, place.plan(lost="skip")):
        until_stored(database, b"1", b"goes on", b"4")
    place.cluster.delete_records(place.name, 0, 4)
    with running(database, place.plan()) as own:
        place.send(b"5")
        until_stored(database, b"1", b"goes on", b"4", b"5")


def test_an_ingest_whose_partitions_are_all_stopped_ends(database: Database, place: Place) -> None:
    with running(database, place.plan()):
        place.send(b"1")
        until_stored(database, b"1")
    place.send(b"2", b"3")
    place.cluster.delete_records(place.name, 0, 2)
    with running(database, place.plan()) as own, pytest.raises(ClusterRefusedError, match="all partitions are stopped"):
        own.end()


def test_a_topic_that_was_created_again_is_read_from_its_first_record(database: Database, place: Place) -> None:
    place.send(b"1", b"2")
    with running(database, place.plan(start="latest")) as own:
        until(lambda: own.ingest._at_end)
        place.send(b"3")
        until_stored(database, b"3")
        place.cluster.delete(place.name)
        until(lambda: "topic_dropped" in own.names())
        place.cluster.create(place.name)
        until(lambda: "topic_recreated" in own.names())
        place.send(b"new 1", b"new 2")
        until_stored(database, b"3", b"new 1", b"new 2")


def test_offsets_behind_the_end_of_a_topic_created_again_are_no_loss(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, may_ask = TopicLookup.ask, True
    monkeypatch.setattr(TopicLookup, "ask", lambda lookup: may_ask and ask(lookup))
    with running(database, place.plan()) as own:
        place.send(b"1", b"2", b"3")
        until_stored(database, b"1", b"2", b"3")
        may_ask = False  # the topic is created again between two looks
        place.cluster.delete(place.name)
        place.cluster.create(place.name)
        place.send(b"new")
        until(lambda: own.ingest._in_doubt)
        may_ask = True
        until_stored(database, b"1", b"2", b"3", b"new")
        assert "records_lost" not in own.names()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_reload_changes_mappings_and_topics(database: Database, place: Place, grouped: bool) -> None:
    gone, new = Place(place.cluster), Place(place.cluster)
    for each in (gone, new):
        place.cluster.create(each.name)
        each.send(b"0")
    options = {"group": place.name if grouped else None}
    with running(database, place.plan(place.rule(format_name="json"), gone.rule(), **options)) as own:
        place.send(b"no json")
        until(lambda: own.counts.dead == 1 and payloads(database) == [b"0"])
        own.ingest.reload(lambda: place.plan(place.rule(format_name="raw"), new.rule(), lost="skip", **options))
        until(lambda: "reloaded" in own.names() and len(payloads(database)) == 2)
        assert own.text("reloaded") == "reloaded; all but [[subscribe]] changes at the next start"
        gone.send(b"1")
        place.send(b"no json")
        until(lambda: len(payloads(database)) == 3)

        def fail() -> None:
            raise InvalidArgumentError("line 3: no key named topik")

        own.ingest.reload(fail)  # type: ignore[arg-type]
        until(lambda: "not_reloaded" in own.names())
        new.send(b"2")
        until(lambda: len(payloads(database)) == 4)
    assert payloads(database) == [b"0", b"0", b"no json", b"2"]


def test_records_of_another_topic_after_a_reload_begin_at_its_own_offset(database: Database, place: Place) -> None:
    database.create_topic("other")
    other = KafkaRule.checked(place.name, "other", "raw")
    with running(database, place.plan()) as own:
        place.send(b"1")
        until_stored(database, b"1")
        own.ingest.reload(lambda: place.plan(other, start="latest"))
        until(lambda: payloads(database, "other") == [b"1"])  # start is that of the first plan
        place.send(b"2")
        until(lambda: payloads(database, "other") == [b"1", b"2"])
    assert payloads(database) == [b"1"]


def test_a_second_ingest_without_a_group_fences_the_first(database: Database, place: Place) -> None:
    place.send(b"1")
    with running(database, place.plan()) as first:
        until_stored(database, b"1")
        with running(database, place.plan()) as second:
            until(lambda: second.ingest._at_end)
            place.send(b"2")
            with pytest.raises(PartitionTakenError, match="another process has taken partition 0"):
                first.end()
            until_stored(database, b"1", b"2")


def test_members_of_a_group_share_and_take_over_partitions(database: Database, place: Place) -> None:
    shared = Place(place.cluster)
    place.cluster.create(shared.name, 4)
    plan = shared.plan(group=shared.name)
    values = iter(count())

    def send() -> None:
        for partition in range(4):
            shared.send(*(b"%d" % next(values) for _ in range(5)), partition=partition)

    send()
    with running(database, plan) as first:
        until(lambda: len(payloads(database)) == 20)
        with running(database, plan) as second:
            until(lambda: second.ingest._at_end)
            send()
            until(lambda: len(payloads(database)) == 40)
        until(lambda: len(first.ingest._at_end & first.ingest._partitions.open.keys()) == 4)
        send()
        until(lambda: len(payloads(database)) == 60)
    assert sorted(map(int, payloads(database))) == list(range(60))


def test_a_member_takes_back_a_partition_that_the_group_still_assigns_to_it(database: Database, place: Place) -> None:
    with running(database, place.plan(group=place.name)) as own:
        place.send(b"1")
        until_stored(database, b"1")
        [partition] = own.ingest._partitions.open.values()
        PartitionRow.take(database.backend, partition.row.key, place.name, 0)  # as a member that was replaced meanwhile
        place.send(b"2")
        until_stored(database, b"1", b"2")
        assert "another process has taken partition 0" in own.text("revoked")


def test_an_unauthorised_topic_is_left_out_and_a_missing_one_ends_it(database: Database, place: Place) -> None:
    refused = Place(place.cluster)
    place.cluster.create(refused.name)
    place.cluster.refuse(refused.name, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    place.send(b"1")
    with running(database, place.plan(place.rule(), refused.rule())) as own:
        until_stored(database, b"1")
        assert "may not read it" in own.text("topic_dropped")
        place.cluster.refuse(refused.name, 0)
        refused.send(b"2")
        until_stored(database, b"1", b"2")
    with running(database, place.plan(place.rule("missing"))) as own, pytest.raises(NotFoundError, match="'missing'"):
        own.end()


def test_a_group_goes_on_without_a_topic_that_becomes_unauthorised(database: Database, place: Place) -> None:
    refused = Place(place.cluster)
    place.cluster.create(refused.name)
    with running(database, place.plan(place.rule(), refused.rule(), group=place.name)) as own:
        refused.send(b"1")
        until_stored(database, b"1")
        place.cluster.refuse(refused.name, KafkaError.TOPIC_AUTHORIZATION_FAILED)
        until(lambda: "topic_dropped" in own.names())
        place.send(b"2")
        until_stored(database, b"1", b"2")
        place.cluster.refuse(refused.name, 0)
        refused.send(b"3")
        until_stored(database, b"1", b"2", b"3")


def test_it_polls_while_the_database_is_away_and_appends_each_record_once(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, is_away = JointAppend.commit, True

    def fail_after_commit(*arguments: Any) -> object:
        answer = commit(*arguments)
        if is_away:  # the answer does not arrive
            raise UnavailableError("the connection to the database broke")
        return answer

    monkeypatch.setattr(JointAppend, "commit", fail_after_commit)
    monkeypatch.setattr("waterclock.ingest.appender._FIRST_PAUSE", 0.01)
    with running(database, place.plan(group=place.name)) as own:
        place.send(b"1", b"2")
        until(lambda: "database_away" in own.names())
        is_away = False
        place.send(b"3")
        until(lambda: "database_back" in own.names())
        until_stored(database, b"1", b"2", b"3")
        assert "revoked" not in own.names()
        own.ingest.lags.look()
        assert set(own.ingest.lags.latest) == {("press", place.name)}


def test_partitions_are_paused_only_if_the_inbox_stays_full(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, pause, may_append = JointAppend.commit, OpenPartitions.pause, threading.Event()
    paused: list[int] = []

    def commit_late(*arguments: Any) -> object:
        assert may_append.wait(PATIENCE)
        return commit(*arguments)

    def note_pause(self: OpenPartitions, wanted: Any) -> None:
        if len(own.ingest._ready):
            paused.append(len(wanted))
        pause(self, wanted)

    monkeypatch.setattr(JointAppend, "commit", commit_late)
    monkeypatch.setattr(OpenPartitions, "pause", note_pause)
    monkeypatch.setattr(kafka_ingest, "_INBOX_RECORDS", 1)
    monkeypatch.setattr(kafka_ingest, "_HOLD", 3_600)
    place.send(b"1", b"2", b"3", b"4")
    with running(database, place.plan()) as own:
        until(lambda: len(paused) > 2)
        assert set(paused) == {0}
        monkeypatch.setattr(kafka_ingest, "_HOLD", 0)
        until(lambda: paused[-1] == 1)
        may_append.set()
        until_stored(database, b"1", b"2", b"3", b"4")


def test_a_record_above_the_bytes_of_a_fetch_arrives(database: Database, place: Place) -> None:
    large = b"x" * (3 * kafka_client._FETCHED_BYTES)
    place.send(b"1", large, b"2")
    with running(database, place.plan()):
        until_stored(database, b"1", large, b"2")


def test_partitions_without_a_leader_hold_up_no_others(database: Database, mock_cluster: MockCluster) -> None:
    for group in (None, "sharing"):
        place = Place(mock_cluster)
        mock_cluster.create(place.name, 2)
        mock_cluster.set_leader(place.name, 1, -1)
        before = payloads(database) if group else []
        with running(database, place.plan(group=group)) as own:
            place.send(b"1")
            until_stored(database, *before, b"1")
            until(lambda: "waits" in own.names())  # at once
            assert own.text("waits") == f"cannot read partition 1 of {place.name} yet: it has no leader"
            mock_cluster.set_leader(place.name, 1, 1)
            place.send(b"2", partition=1)
            until_stored(database, *before, b"1", b"2")


def test_a_partition_that_loses_its_leader_goes_on_with_the_next(database: Database, place: Place) -> None:
    place.send(b"1")
    with running(database, place.plan()) as own:
        until_stored(database, b"1")
        # Not set_leader(-1): a response that names no leader may crash librdkafka (its issue 5280).
        place.cluster.fail(FETCH, *[KafkaError.NOT_LEADER_FOR_PARTITION] * 5)
        place.send(b"2")
        until_stored(database, b"1", b"2")
        assert own.names().count("broker_error") <= 1


def test_brokers_that_are_down_are_waited_for(database: Database, place: Place) -> None:
    with running(database, place.plan()) as own:
        place.send(b"1")
        until_stored(database, b"1")
        place.cluster.set_up(is_up=False)
        try:
            until(lambda: "disconnected" in own.names())
        finally:
            place.cluster.set_up(is_up=True)
        place.send(b"2")
        until_stored(database, b"1", b"2")
        until(lambda: own.names().count("connected") == 2)


def test_partitions_are_merged_by_time_while_they_catch_up(database: Database, place: Place) -> None:
    several = Place(place.cluster)
    place.cluster.create(several.name, 3)
    times = [[1, 4, 7, 10], [2, 5, 8, 11], [3, 6, 9, 12]]
    for partition, own_times in enumerate(times):
        for time in own_times:
            several.send(b"%d" % time, partition=partition, timestamp=1_700_000_000_000 + time)
    with running(database, several.plan()):
        until_stored(database, *(b"%d" % each for each in range(1, 13)))


def test_it_starts_from_a_time_and_stops_at_one(
    database: Database, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def look_up(_self: object, parts: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        asked.append(parts[0].offset)  # the mock cluster has no lookup by time
        return [TopicPartition(parts[0].topic, parts[0].partition, 1)]

    class Lookup(kafka_client.Consumer):  # type: ignore[name-defined,misc]
        offsets_for_times = look_up

    monkeypatch.setattr(kafka_client, "Consumer", Lookup)
    second, now = 1_000, 1_700_000_000_000
    for each in range(6):
        place.send(b"%d" % each, timestamp=now + each * second)
    plan = place.plan(start=(now + 2 * second) * 1_000_000, until=(now + 4 * second) * 1_000_000)
    with running(database, plan) as own:
        own.end()
    assert payloads(database) == [b"1", b"2", b"3"]
    assert asked == [now + 2 * second - 60_000]
    with running(database, place.plan(start=(now + 5 * second) * 1_000_000)):  # continues; another start loses nothing
        until_stored(database, b"1", b"2", b"3", b"4", b"5")
