"""Times are read exactly from their text."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.times import LONGEST_NUMBER, parse_offset, parse_time, parse_unix_time
from waterclock.time import MAX_NS, NS_PER, TimeUnit

UNITS: list[TimeUnit] = ["s", "ms", "us", "ns"]


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9), st.sampled_from(UNITS))
def test_each_decimal_number_is_rounded_to_the_nearest_nanosecond(number, unit: TimeUnit) -> None:
    text = str(number)
    if len(text) <= LONGEST_NUMBER:
        assert parse_offset(text, unit) == round(Fraction(text) * NS_PER[unit])


@given(st.floats(min_value=0, max_value=9e9))
def test_a_double_as_programs_print_it_keeps_all_its_digits(seconds: float) -> None:
    assert parse_unix_time(repr(seconds)) == round(Fraction(repr(seconds)) * 10**9)


@pytest.mark.parametrize(
    ("text", "unit", "ns"),
    [
        ("1760120317.152", "s", 1_760_120_317_152_000_000),  # by way of a float: …151999950
        ("1760120317152", "ms", 1_760_120_317_152_000_000),
        ("1.760120317152e9", "s", 1_760_120_317_152_000_000),
        ("0.0000000005", "s", 0),
        ("0.0000000015", "s", 2),
        ("-1.5", "s", -1_500_000_000),
        ("1e-300", "s", 0),
        ("9223372036854775807", "ns", MAX_NS),
    ],
)
def test_numbers_of_each_unit(text: str, unit: TimeUnit, ns: int) -> None:
    assert parse_unix_time(text, unit) == ns


@pytest.mark.parametrize("text", ["", "nan", "1e999999999", "1" * 5000, "0x10", "1_000", "٣", "1,5", " 1"])
def test_an_invalid_decimal_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="time must be"):
        parse_unix_time(text)


@pytest.mark.parametrize("text", ["9223372037", "1e300", "-9999999999999"])
def test_a_time_outside_64_bits_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="another unit"):
        parse_unix_time(text)


def test_a_text_may_be_iso_8601_or_a_number() -> None:
    assert parse_time("2020-10-15T05:30:47+00:00") == 1_602_739_847_000_000_000
    assert parse_time(" 1602739847.5 ") == 1_602_739_847_500_000_000


def test_a_length_of_time_is_not_read_as_that_long_ago() -> None:
    with pytest.raises(InvalidArgumentError, match="ISO 8601"):
        parse_time("2h")
