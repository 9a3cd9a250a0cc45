"""Records of partitions that catch up come in the order of their times, within bounds."""

from __future__ import annotations

import random
from typing import cast

from waterclock.ingest.kafka.alignment import PATIENCE, Alignment
from waterclock.ingest.kafka.partition import Arrived, Partition
from waterclock.ingest.kafka.record import KafkaRule, Record
from waterclock.ingest.storing.partition_rows import PartitionRow


def partition(number: int) -> Partition:
    return Partition(("plant", number), cast("PartitionRow", None), cast("KafkaRule", None), 0, 0)


def arrived(of: Partition, time: int | None, *, is_end: bool = False) -> Arrived:
    return Arrived(of, Record("plant", of.place[1], 0, None if is_end else b"12345", time=time), is_end)


def times(taken: list[Arrived]) -> list[int | None]:
    return [each.record.time for each in taken if not each.is_end]


def test_a_record_waits_for_partitions_that_are_behind() -> None:
    alignment, first, second = Alignment(), partition(0), partition(1)
    alignment.track(first, 0)
    alignment.track(second, 0)
    for time in (1, 3, 5):
        alignment.add(arrived(first, time), 0)
    assert times(alignment.take(0)) == []
    alignment.add(arrived(second, 4), 0)
    assert times(alignment.take(0)) == [1, 3, 4]
    alignment.add(arrived(second, None, is_end=True), 0)
    assert times(alignment.take(0)) == [5]
    assert alignment.behind() == [first]
    alignment.add(arrived(second, 9), 0)
    assert times(alignment.take(0)) == []
    alignment.end(first)
    assert times(alignment.take(0)) == [9]


def test_a_silent_partition_is_waited_for_in_vain_only_so_long() -> None:
    alignment, first, second = Alignment(), partition(0), partition(1)
    alignment.track(first, 0)
    alignment.track(second, 0)
    alignment.add(arrived(first, 1), 0)
    assert times(alignment.take(PATIENCE)) == []
    assert times(alignment.take(PATIENCE + 1)) == [1]


def test_what_waits_is_bounded() -> None:
    alignment, first, second = Alignment(most_bytes=30, most_waiting=100), partition(0), partition(1)
    alignment.track(first, 0)
    alignment.track(second, 0)
    for _ in range(3):
        alignment.add(arrived(first, 1), 0)
        assert alignment.full() == set()
    alignment.add(arrived(first, 1), 0)
    assert alignment.full() == {first}
    alignment.forget(second)
    alignment.take(0)
    assert alignment.full() == set()
    few = Alignment(most_waiting=1)
    few.track(first, 0)
    few.add(arrived(first, 1), 0)
    assert few.full() == set()
    few.add(arrived(first, 1), 0)
    assert few.full() == {first}


def test_partitions_keep_their_order_and_sorted_ones_merge_sorted() -> None:
    chance = random.Random(1)  # noqa: S311  # a repeatable one
    alignment, partitions = Alignment(), [partition(number) for number in range(4)]
    waiting = [sorted(chance.choices(range(1_000), k=50)) for _ in partitions]
    for each in partitions:
        alignment.track(each, 0)
    merged: list[int | None] = []
    while any(waiting):
        at = chance.choice([number for number, left in enumerate(waiting) if left])
        for _ in range(min(chance.randint(1, 9), len(waiting[at]))):
            alignment.add(arrived(partitions[at], waiting[at].pop(0)), 0)
        if not waiting[at]:
            alignment.add(arrived(partitions[at], None, is_end=True), 0)
        merged += times(alignment.take(0))
    assert len(merged) == 200
    assert merged == sorted(merged, key=lambda each: each or 0)
