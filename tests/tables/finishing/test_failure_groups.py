"""Errors of one kind are one group."""

from __future__ import annotations

import pytest

from waterclock.tables.model.attempts import MOST_TEXT
from waterclock.tables.model.failure_groups import (
    EXAMPLES,
    FailedMessage,
    FailureGroup,
    group_failures,
    merge_failures,
    normalised,
)


@pytest.mark.parametrize(
    ("error", "group"),
    [
        ("KeyError: 'customer'", "KeyError: <text>"),
        ('no column "a b" in 3 rows', "no column <text> in <number> rows"),
        ("order 4f1c2b1a-0000-4000-8000-0123456789ab is gone", "order <uuid> is gone"),
        ("at 0xFF12 of deadbeef01", "at <hex> of <hex>"),
        ("GET https://example.org/a?b=1 failed", "GET <url> failed"),
        ("cannot open /var/lib/x/y.db", "cannot open <path>"),
        ("took 1.5 s, -3 left, 10:42:07, 2e9", "took <number> s, <number> left, <number>, <number>"),
        ("utf8 v2 sha256 are names", "utf8 v2 sha256 are names"),
        ("can't pour 3 cups, won't stop", "can't pour <number> cups, won't stop"),
        ("first line\nsecond 17", "first line"),
        ("", ""),
    ],
)
def test_differences_between_errors_of_one_kind_are_placeholders(error: str, group: str) -> None:
    assert normalised(error) == group


def test_groups_come_by_size_and_name_the_latest_ids() -> None:
    messages = [FailedMessage(number, f"error {number}", number * 10) for number in range(9, 0, -1)]
    messages.append(FailedMessage(0, "other", None))
    large, small = group_failures(messages)
    assert (large.error, large.count, large.first, large.last) == ("error <number>", 9, 10, 90)
    assert large.ids == [9, 8, 7]
    assert len(large.ids) == EXAMPLES
    assert (small.count, small.first, small.last) == (1, None, None)


def test_groups_of_several_tables_are_merged() -> None:
    parts = [
        FailureGroup("a", 2, 5, 9, [1, 2]),
        FailureGroup("b", 3, None, None, [7]),
        FailureGroup("a", 2, 4, 6, [3, 4]),
    ]
    assert list(merge_failures(parts)) == [FailureGroup("a", 4, 4, 9, [1, 2, 3]), FailureGroup("b", 3, None, None, [7])]


def test_a_long_error_costs_no_more_than_its_beginning() -> None:
    assert len(normalised("'" * 10**6)) <= MOST_TEXT * 6
    assert len(normalised("/a" * 10**6)) <= MOST_TEXT
