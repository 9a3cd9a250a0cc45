from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from waterclock._support.quoting import cut, quoted
from waterclock.connection import connect
from waterclock.errors import DamagedError, InvalidArgumentError, OrderError, WaterclockError


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_short_values_are_quoted_whole() -> None:
    for value in ("a", b"b", 7, None, ["x"], 1.5):
        assert quoted(value) == repr(value)


def test_long_values_are_cut_and_their_length_is_reported() -> None:
    assert quoted("x" * 10**6) == f"'{'x' * 80}'… (1000000 characters)"
    assert quoted(bytes(200)).endswith("'… (200 bytes)")
    assert quoted(list(range(10**5))).endswith("… (688890 characters)")
    assert max(len(quoted(value)) for value in ("ä" * 10**6, b"\xff" * 500, {"k": "v" * 999}, [["x" * 10**6]])) < 400


def test_values_that_cannot_be_spelled_are_quoted_all_the_same() -> None:
    assert quoted(10**5000) == "<int that cannot be shown>"
    assert quoted(Unspeakable()) == "<Unspeakable that cannot be shown>"


def test_an_errors_text_is_cut_in_its_middle_so_that_the_remedy_stays() -> None:
    text = "begins " + "x" * 10**6 + " do this"
    for error in (InvalidArgumentError(text), DamagedError(text, ledger=3), OrderError(text, 7)):
        assert len(str(error)) < 1100
        assert str(error).startswith("begins ")
        assert str(error).endswith(" do this")
    assert cut("short") == "short"


@pytest.mark.parametrize("wrap", [str, str.encode, lambda url: [url], lambda url: {url: 1}])
def test_a_url_is_quoted_without_its_user_and_password(wrap: Callable[[str], object]) -> None:
    for rest in ("host/factory", "host/" + "x" * 1000):
        for secret in ("s3cr3t", "s3cr3t@s3cr3t", "s3cr3t/s3cr3t", "s3cr3t" * 30):
            spelled = quoted(wrap(f"postgresql://clerk:{secret}@{rest}"))
            assert "s3cr3t" not in spelled
            assert "postgresql://***@host/" in spelled


def test_a_key_range_that_is_a_url_and_a_table_that_is_one_are_refused_without_the_password(tmp_path: Path) -> None:
    url = "postgresql://clerk:s3cr3t@host/factory"
    with connect(f"sqlite:///{tmp_path / 'factory.db'}") as database:
        calls: list[Callable[[], object]] = [
            lambda: connect(shards={url: "-80"}),
            lambda: database.table(url),
            lambda: database.topic(url),
            lambda: database.create_table(url),
            lambda: database.create_table("orders", ack_wait=url),
            lambda: database.create_table("orders", dead_letter=url),
            lambda: database.backup(url),
        ]
        for call in calls:
            with pytest.raises(WaterclockError) as caught:
                call()
            assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pa.table({"a": ["secret"]}), "<Table of length 1>"),
        (pa.array(["secret"]), "<StringArray of length 1>"),
        (pa.chunked_array([["secret"]]), "<ChunkedArray of length 1>"),
        (np.array(["secret"]), "<ndarray of length 1>"),
        ([pa.table({"a": ["secret"]})], "<list of length 1: data not shown>"),
        (pa.table({"a": ["secret"]}).to_reader(), "<RecordBatchReader>"),
    ],
)
def test_the_data_of_a_table_or_array_is_not_quoted(value: object, expected: str) -> None:
    assert quoted(value) == expected


def test_a_number_of_numpy_is_quoted_as_a_number() -> None:
    assert quoted(np.float64(1.5)) == repr(np.float64(1.5))
