"""A follower puts the batches of the whole topic into its table, each once, however it is stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa
from tests.live.conftest import RULE, SECOND, START, MakeFollower, MovableClock, expected, landed, traffic
from tests.support.imports import loaded_after
from tests.support.kernel_forms import in_form
from tests.support.killed import Killed, killed_after_each_change, killing

import waterclock as wc
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.live.follower import Follower
from waterclock.live.rules import ByEventTime, ById, ByRate


def drain(follower: Follower, limit: int = 20_000) -> None:
    """Step until nothing is left to read, and once more for the tick."""
    while follower.step(limit):
        pass


@pytest.mark.parametrize("compiled", [True, False])
def test_the_batches_are_those_of_the_batcher_byte_for_byte(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock, compiled: bool
) -> None:
    messages = traffic()
    for first in range(0, len(messages), 7):
        topic.append(messages[first : first + 7])
    with in_form(compiled=compiled):
        follower = follow()
        drain(follower)
        assert follower.counts.messages == len(messages)
        assert follower.counts.open > 0
        clock.now = START + 3600 * SECOND
        drain(follower)
    assert (follower.counts.open, follower.counts.behind) == (0, 0)
    wanted = expected(topic)
    assert landed(table) == wanted
    assert follower.counts.batches == len(wanted) > 20
    assert follower.counts.rejected["late"] > 5


@pytest.mark.parametrize("seed", range(3))
def test_steps_and_restarts_of_any_size_give_the_same_batches(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock, seed: int
) -> None:
    random_ = random.Random(seed)  # noqa: S311  # a schedule
    messages = traffic()
    follower = follow()
    while messages:
        count = random_.randint(1, 20)
        topic.append(messages[:count])
        messages = messages[count:]
        if random_.random() < 0.3:
            topic.roll()
            topic.seal()
        if random_.random() < 0.5:
            follower.step(random_.randint(1, 30))
        if random_.random() < 0.3:
            follower = follow()
    clock.now = START + 3600 * SECOND
    drain(follower, 13)
    assert landed(table) == expected(topic)


@pytest.mark.one_database
@pytest.mark.parametrize("streams", [None, ["m0", "m1", "m2", "m3"]])
def test_batches_by_id_are_those_of_the_batcher_byte_for_byte(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock, streams: list[str] | None
) -> None:
    messages = [
        message.replace(headers={"pulse": str(number // 9)} if number % 13 else None)
        for number, message in enumerate(traffic())
    ]
    messages[70] = messages[70].replace(stream="log")
    rule = ById(IdRule.checked("pulse", "2s", streams))
    follower = follow(rule)
    for first in range(0, len(messages), 7):
        topic.append(messages[first : first + 7])
        follower.step()
        if first % 5 == 0:
            follower = follow(rule)
    clock.now = START + 3600 * SECOND
    drain(follower)
    batcher = wc.BySource(lambda: wc.IdBatcher("pulse", streams, max_delay="2s"))
    batches = [batch for message in topic.read() for batch in batcher.add(message)]
    batches += batcher.advance(clock.now)
    assert landed(table) == {batch.id: batch.to_bytes() for batch in batches}
    reasons = {rejection.reason for rejection in batcher.take_rejected()}
    assert reasons == {"duplicate", "no_id", "late"} | ({"undeclared"} if streams else set())
    assert {batch.reason for batch in batches} == {"timeout"} | ({"complete"} if streams else set())


@pytest.mark.one_database
def test_missing_ids_and_incomplete_batches_are_counted(
    topic: wc.Topic, follow: MakeFollower, clock: MovableClock
) -> None:
    sent = [("a", 1), ("b", 1), ("a", 2), ("a", 7), ("b", 7)]
    topic.append(
        [wc.Message("x", name, START, receive_time=START, headers={"pulse": str(number)}) for name, number in sent]
    )
    follower = follow(ById(IdRule.checked("pulse", "1s", ["a", "b"])))
    clock.now = START + 60 * SECOND
    drain(follower)
    assert (follower.counts.batches, follower.counts.incomplete, follower.counts.missing_ids) == (3, 1, 4)


@pytest.mark.both_servers
def test_a_second_follower_fences_the_first(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    topic.append(traffic(20))
    topic.append(traffic(40)[60:])
    first = follow()
    first.step(20)
    second = follow()
    with pytest.raises(wc.LeaseLostError, match="another process is batching topic 'telemetry' into table 'batches'"):
        first.step()
    with pytest.raises(wc.LeaseLostError):
        first.step()
    clock.now = START + 3600 * SECOND
    drain(second)
    assert landed(table) == expected(topic)


def test_a_step_that_fails_takes_nothing_and_is_made_again(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append(traffic())
    follower = follow()
    clock.now = START + 3600 * SECOND

    def fail(*_: object, **__: object) -> None:
        raise wc.UnavailableError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr("waterclock.live.follower.put_batches", fail)
        for _ in range(2):
            with pytest.raises(wc.UnavailableError):
                follower.step()
    assert (follower.counts.messages, follower.counts.batches) == (0, 0)
    drain(follower)
    assert landed(table) == expected(topic)


@pytest.mark.one_database
def test_silence_closes_batches_once_the_clock_is_max_skew_further(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    topic.append([wc.Message("a", "x", START, receive_time=START)])
    follower = follow()
    # The window of 2 s and the delay of 1.5 s have passed, but not yet max_skew.
    clock.now = START + 13 * SECOND
    drain(follower)
    assert follower.counts.batches == 0
    clock.now = START + 14 * SECOND
    drain(follower)
    assert follower.counts.batches == 1


def test_a_clock_that_goes_back_rejects_nothing_and_loses_nothing(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    messages = traffic()
    half = len(messages) // 2
    topic.append(messages[:half])
    follower = follow()
    clock.now = messages[half].receive_time or 0
    drain(follower)
    clock.now -= 3600 * SECOND
    topic.append(messages[half:])
    drain(follow())
    clock.now = START + 3600 * SECOND
    drain(follow())
    assert landed(table) == expected(topic)


@pytest.mark.both_servers
def test_a_follower_killed_at_each_statement_puts_each_batch_once(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    messages = traffic(14)
    half = len(messages) // 2
    topic.append(messages[:half])
    deaths = killed_after_each_change(lambda: drain(follow()), every=3)[1]
    # Nothing reads for ten minutes, and then the clock goes back by an hour.
    clock.now = (messages[-1].receive_time or 0) + 600 * SECOND
    for first in range(half, len(messages), 10):
        topic.append(messages[first : first + 10])
    clock.now -= 3600 * SECOND
    deaths += killed_after_each_change(lambda: drain(follow(), 10), every=3)[1]
    clock.now = START + 3600 * SECOND
    deaths += killed_after_each_change(lambda: drain(follow()), every=3)[1]
    assert deaths >= 3  # appends on PostgreSQL bypass the events that are counted
    assert landed(table) == expected(topic)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.both_servers
def test_a_follower_killed_at_its_commits_puts_each_batch_once(
    topic: wc.Topic,
    table: wc.MessageTable,
    follow: MakeFollower,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    topic.append(traffic(20))
    clock.now = START + 3600 * SECOND
    killed = killing(sa.Connection._commit_impl, moment)
    for _ in range(5):
        follower = follow()
        with monkeypatch.context() as patch:
            patch.setattr(sa.Connection, "_commit_impl", killed)
            with pytest.raises(Killed):
                follower.step(10)
    drain(follow(), 20)
    assert landed(table) == expected(topic)


def test_other_options_for_the_same_table_are_refused_with_both(follow: MakeFollower) -> None:
    follow()
    with pytest.raises(wc.InvalidArgumentError, match=r"with window = 3s, .*: earlier runs used window = 2s, "):
        follow(ByEventTime(EventTimeRule.checked("3s", "1500ms")))
    with pytest.raises(wc.InvalidArgumentError, match=r"source = \['s1'\]: earlier runs used window = 2s"):
        follow(RULE, sources=["s1"])


@pytest.mark.one_database
def test_chosen_sources_alone_are_batched(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    topic.append(traffic())
    follower = follow(sources=["s1"])
    clock.now = START + 3600 * SECOND
    drain(follower)
    wanted = {name: batch for name, batch in expected(topic).items() if name.startswith("s1@")}
    assert landed(table) == wanted


def test_messages_that_expired_before_they_were_read_are_named(
    topic: wc.Topic, follow: MakeFollower, caplog: pytest.LogCaptureFixture
) -> None:
    follower = follow()
    topic.append(traffic(4))
    topic.roll()
    topic.append(traffic(1))
    topic.truncate(wc.Position(1, 0, 0))
    drain(follower)
    assert "12 messages of topic 'telemetry' were deleted before they were batched into table 'batches'" in caplog.text


def test_removing_the_topic_removes_its_followers(
    database: wc.Database, topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower
) -> None:
    topic.append(traffic())
    follow().step()
    topic.remove()
    again = database.create_topic("telemetry", roll_after=None)
    again.append(traffic(2))
    assert again.info.messages == 6


@pytest.mark.one_database
def test_batches_by_rate_are_those_of_the_batcher(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower
) -> None:
    calls = [
        [
            wc.Message("beam", stream, START + number * SECOND // rate, b"", publish_time=START, receive_time=START)
            for stream, rate in (("detector", 14), ("monitor", 5))
            for number in range(second * rate, (second + 1) * rate)
        ]
        for second in range(6)
    ]
    batcher = wc.RateAwareBatcher("1s")
    wanted: list[wc.Batch] = []
    follower = follow(ByRate.checked("1s"))
    for number, call in enumerate(calls):
        topic.append(call)
        follower.step()
        if number % 2:
            follower = follow(ByRate.checked("1s"))
    for call in calls:
        wanted += batcher.add(call)
    found = {name: wc.Batch.from_bytes(payload) for name, payload in landed(table).items()}
    assert {name: (batch.start, batch.end, batch.reason, len(batch.messages)) for name, batch in found.items()} == {
        batch.id: (batch.start, batch.end, batch.reason, len(batch.messages)) for batch in wanted
    }
    assert len(wanted) > 3


@pytest.mark.one_database
def test_aligned_clocks_disorder_and_boundaries_give_the_batches_of_the_batcher_byte_for_byte(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower
) -> None:
    batcher = wc.RateAwareBatcher("1s", clocks="align", max_disorder="700ms", boundaries=["run"])
    rule = ByRate.checked("1s", clocks="align", max_disorder="700ms", boundaries=["run"])
    follower = follow(rule)
    for second in range(6):
        received = START + (second + 1) * SECOND
        sent = [
            (stream, START + off + number * SECOND // 14)
            for stream, off in (("detector", 0), ("monitor", -60 * SECOND if second < 3 else 30 * SECOND))
            for number in range(second * 14, (second + 1) * 14)
        ]
        sent += [("run", received - SECOND // 3)] * (second in (1, 3))
        topic.append(
            wc.Message("beam", stream, event_time, publish_time=received, receive_time=received)
            for stream, event_time in sent
        )
        follower.step()
        follower = follow(rule)
    calls = [list(call) for _, call in groupby(topic.read(), lambda message: cast("wc.Position", message.position)[:2])]
    wanted = [batch for call in calls for batch in batcher.add(call)]
    assert landed(table) == {batch.id: batch.to_bytes() for batch in wanted}
    assert wanted[-1].offsets["monitor"] == wanted[-1].offsets["detector"] - 30 * SECOND
    assert {"boundary", "slots"} <= {batch.reason for batch in wanted}
    assert len({batch.run for batch in wanted}) == 3
    written = r"clocks = align, max_disorder = 700ms, boundaries = \['run'\]"
    with pytest.raises(wc.InvalidArgumentError, match=written):
        follow(ByRate.checked("1s"))


@pytest.mark.one_database
def test_a_source_that_is_silent_for_long_is_forgotten_by_the_clock(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    times = [START + number * SECOND // 5 for number in range(23)]
    topic.append(wc.Message("beam", "a", time, publish_time=START, receive_time=time) for time in times[:7])
    topic.append(wc.Message("beam", "a", time, publish_time=START, receive_time=time) for time in times[7:])
    rule = ByRate.checked("1s", forget_after="1h")
    drain(follow(rule))
    assert len(landed(table)) < 5
    clock.now = START + 3700 * SECOND
    drain(follow(rule))
    batches = [wc.Batch.from_bytes(data) for data in landed(table).values()]
    assert sum(len(batch.messages) for batch in batches) == len(times)
    assert max(batches, key=lambda batch: batch.start).reason == "flush"
    assert rule.text.endswith("gated = true, forget_after = 1h")


def steps_take(*took: int) -> Callable[[], int]:
    """Make a clock by which each step takes so long, ns: it is read when a step begins and when it ends."""
    readings = accumulate(chain.from_iterable((0, each) for each in took))
    return lambda: next(readings)


@pytest.mark.one_database
def test_an_adaptive_length_follows_the_time_of_a_step_and_gives_the_batches_of_the_batcher(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower
) -> None:
    calls = [
        [
            wc.Message(source, stream, at, b"", publish_time=START, receive_time=START)
            for source in ("beam", "sample")
            for stream, rate in (("detector", 14), ("monitor", 5))
            for at in (START + number * SECOND // rate for number in range(second * rate, (second + 1) * rate))
        ]
        for second in range(24)
    ]
    batcher = wc.BySource(lambda: wc.RateAwareBatcher("1s"))
    wanted: list[wc.Batch] = []
    lengths: list[int] = []
    slow, fast = 3 * SECOND, SECOND // 10
    clock = steps_take(*[slow] * 8, *[fast] * 16)
    follower = follow(ByRate.checked("adaptive"), monotonic=clock)
    for number, call in enumerate(calls):
        topic.append(call)
        follower.step()
        wanted += batcher.add(call)
        length = follower.counts.batch_length
        assert length is not None
        for each in batcher._by_rate.batchers.values():
            each.set_batch_length(length)
        lengths.append(length)
        if number % 5 == 0:
            follower = follow(ByRate.checked("adaptive"), monotonic=clock)
    assert max(lengths) >= 4 * SECOND
    assert lengths[-1] < max(lengths)
    assert landed_lists(table) == {batch.id: without_positions(batch) for batch in wanted}
    assert len({batch.end - batch.start for batch in wanted if batch.reason == "slots"}) >= 3


def landed_lists(table: wc.MessageTable) -> dict[str, list[object]]:
    return {name: without_positions(wc.Batch.from_bytes(payload)) for name, payload in landed(table).items()}


def without_positions(batch: wc.Batch) -> list[object]:
    """Return all of a batch that a batcher knows whose messages are not from a topic."""
    messages = [(message.stream, message.event_time) for message in batch.messages]
    return [batch.source, batch.start, batch.end, batch.closed_at, batch.reason, batch.run, messages]


@pytest.mark.one_database
def test_an_adaptive_length_shrinks_when_nothing_comes_and_stays_between_its_bounds(
    topic: wc.Topic, follow: MakeFollower
) -> None:
    rule = ByRate.checked(AdaptiveBatchLength("2s", longest="5s"))
    calls = [
        [wc.Message("beam", "detector", START + n * SECOND // 14, b"", receive_time=START) for n in range(at, at + 70)]
        for at in range(0, 560, 70)
    ]
    follower = follow(rule, monotonic=steps_take(*[20 * SECOND] * len(calls), *[6 * SECOND] * 13))
    for call in calls:
        topic.append(call)
        follower.step()
    assert follower.counts.batch_length == 5 * SECOND
    for _ in range(13):
        follower.step()
    assert follower.counts.batch_length == 2 * SECOND
    with pytest.raises(wc.InvalidArgumentError, match="used batch_length = adaptive from 2s to 5s"):
        follow(ByRate.checked("2s"))


@pytest.mark.one_database
def test_sessions_are_those_of_the_batcher_and_close_at_their_own_time(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    rule = ByEventTime(EventTimeRule.checked("1h", "1500ms", gap="900ms"))
    sent = [message for message in traffic() if message.event_time % (7 * SECOND) < 5 * SECOND]
    follower = follow(rule)
    for first in range(0, len(sent), 9):
        topic.append(sent[first : first + 9])
        follower = follow(rule)
        drain(follower)
    last = max(message.event_time for message in sent)
    clock.now = last + 3 * SECOND + 9 * SECOND
    drain(follower)
    assert follower.counts.open > 0
    clock.now = last + 3 * SECOND + 11 * SECOND
    drain(follower)
    assert follower.counts.open == 0
    wanted = expected(topic, rule)
    assert landed(table) == wanted
    assert {wc.Batch.from_bytes(data).reason for data in wanted.values()} == {"gap"}
    with pytest.raises(wc.InvalidArgumentError, match=r"used .*gap = 900ms, on_conflict = keep"):
        follow(ByEventTime(EventTimeRule.checked("1h", "1500ms")))


@pytest.mark.one_database
def test_runs_are_those_of_the_batcher_and_close_at_their_boundaries(
    topic: wc.Topic, table: wc.MessageTable, follow: MakeFollower, clock: MovableClock
) -> None:
    rule = ByEventTime(EventTimeRule.checked("1h", "1500ms", on_conflict="keep", boundaries=["m1"]))
    sent = traffic()
    for first in range(0, len(sent), 9):
        topic.append(sent[first : first + 9])
        follower = follow(rule)
        drain(follower)
    clock.now = max(message.event_time for message in sent) + 20 * SECOND
    drain(follower)
    assert follower.counts.open == 3
    wanted = expected(topic, rule)
    assert landed(table) == wanted
    batches = [wc.Batch.from_bytes(data) for data in wanted.values()]
    assert {batch.reason for batch in batches} == {"boundary"}
    assert {batch.run for batch in batches} - {None} == {
        message.event_time for batch in batches for message in batch.messages if message.stream == "m1"
    }
    with pytest.raises(wc.InvalidArgumentError, match=r"used .*boundaries = \['m1'\]"):
        follow(ByEventTime(EventTimeRule.checked("1h", "1500ms", on_conflict="keep")))


@pytest.mark.one_database
def test_a_follower_of_few_messages_does_not_import_numba(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'messages.db'}"
    with wc.connect(url, tmp_path / "ledgers") as opened:
        opened.create_topic("telemetry").append(traffic())
        opened.create_table("batches", id_type="text")
    words = ["batch", "telemetry", "--into", "batches", "--url", url, "--ledgers", str(tmp_path / "ledgers"), "-q"]
    for rule in (["--window", "2s", "--max-delay", "1s"], ["--by", "rate"]):
        loaded = loaded_after(f"from waterclock.cli.app import run; assert run({[*words, *rule]}) == 0")
        assert "waterclock" in loaded
        assert not loaded & {"numba", "pandas", "pyspark"}
        words[3] = "others"
        with wc.connect(url, tmp_path / "ledgers") as opened:
            opened.create_table("others", id_type="text", exist_ok=True)
