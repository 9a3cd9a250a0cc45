"""A producer's numbers, against a model that forgets nothing: nothing new is ever taken for a repeat."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.topics.model.producer_state import (
    RANGES,
    REMEMBERED,
    ProducerAppend,
    ProducerState,
    Range,
    Repeat,
    check_sequence,
)


def appended(numbering: ProducerState, first: int, last: int, checksum: int = 0) -> ProducerState:
    append = ProducerAppend("p", first, last, None, checksum)
    assert numbering.find_repeat(append, "t") is None
    return numbering.appended(append, Position(0, first, 0))


def stored(numbering: ProducerState) -> ProducerState:
    columns = numbering.columns()
    return ProducerState.read(
        columns["producer_epoch"], columns["last_sequence"], columns["recent"], columns["covered"]
    )


steps = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 5]), st.integers(1, 4)), min_size=1, max_size=60)


@given(steps, st.lists(st.tuples(st.integers(0, 200), st.integers(1, 8)), max_size=20))
def test_a_new_append_is_never_taken_for_a_repeat(steps: list[tuple[int, int]], tries: list[tuple[int, int]]) -> None:
    numbering, numbers, appends = ProducerState(0), set[int](), list[tuple[int, int]]()
    following = 0
    for gap, count in steps:
        first, last = following + gap, following + gap + count - 1
        numbering = stored(appended(numbering, first, last))
        numbers |= set(range(first, last + 1))
        appends.append((first, last))
        following = last + 1
    assert len(numbering.covered) <= RANGES
    assert all(before.last + 1 < (after.first or 0) for before, after in pairwise(numbering.covered))
    for first, count in tries:
        last = first + count - 1
        try:
            repeat = numbering.find_repeat(ProducerAppend("p", first, last, None, 0), "t")
        except InvalidArgumentError:
            assert first < following
            assert (first, last) not in appends[-REMEMBERED:]
        else:
            if repeat is None:
                assert first >= following
            elif repeat.first is None:
                assert set(range(first, last + 1)) <= numbers
            else:
                assert (first, last) in appends
        assert numbering.holds(first) in {first in numbers, None}


def test_a_producer_without_gaps_is_known_whole_however_long_it_runs() -> None:
    numbering = ProducerState(0)
    for first in range(0, 3 * RANGES, 3):
        numbering = appended(numbering, first, first + 2)
    assert numbering.covered == (Range(0, 3 * RANGES - 1),)
    assert numbering.find_repeat(ProducerAppend("p", 0, 2, None, 0), "t") == Repeat(None)
    assert numbering.find_repeat(ProducerAppend("p", 1, 9, None, 0), "t") == Repeat(None)


def test_the_oldest_of_too_many_ranges_are_forgotten_and_repeating_them_is_an_error() -> None:
    numbering = ProducerState(0)
    for number in range(10, 10 * RANGES + 30, 10):
        numbering = appended(numbering, number, number)
    assert len(numbering.covered) == RANGES
    assert numbering.covered[0] == Range(None, 30)
    assert [numbering.holds(number) for number in (5, 10, 30, 35, 40)] == [None, None, None, False, True]
    with pytest.raises(InvalidArgumentError, match=r"10 to 10 .* may or may not hold these"):
        numbering.find_repeat(ProducerAppend("p", 10, 10, None, 0), "t")
    assert numbering.find_repeat(ProducerAppend("p", 40, 40, None, 0), "t") == Repeat(None)


def test_a_row_of_a_producer_that_has_appended_nothing_is_read() -> None:
    assert ProducerState.read(1, None, "[]", "[]") == ProducerState(1)


@pytest.mark.parametrize(
    ("sequence", "messages"), [(-1, 1), (2**63, 1), (2**63 - 1, 2), (True, 1), (1.0, 1), ("1", 1), (None, 1)]
)
def test_an_invalid_number_is_refused_by_name(sequence: object, messages: int) -> None:
    with pytest.raises(InvalidArgumentError, match="sequence must"):
        check_sequence(sequence, messages)
    assert check_sequence(2**63 - 2, 2) == 2**63 - 2
