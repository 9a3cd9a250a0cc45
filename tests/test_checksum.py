from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.checksum import checksum, framed, has_form, unframed
from waterclock.errors import DamagedError


@given(st.binary(max_size=200))
def test_framed_bytes_come_back(body: bytes) -> None:
    assert bytes(unframed(b"TST1", framed(b"TST1", body), "a test")) == body


@given(st.binary(max_size=200), st.data())
def test_no_flipped_bit_is_read(body: bytes, data: st.DataObject) -> None:
    damaged = bytearray(framed(b"TST1", body))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedError, match="entry 3 is corrupt"):
        unframed(b"TST1", bytes(damaged), "entry 3")


@given(st.binary(max_size=200), st.integers(0, 207))
def test_nothing_cut_short_is_read(body: bytes, length: int) -> None:
    whole = framed(b"TST1", body)
    with pytest.raises(DamagedError):
        unframed(b"TST1", whole[: min(length, len(whole) - 1)], "entry 3")


def test_another_form_is_distinguished() -> None:
    assert has_form(b"TST1", framed(b"TST1", b"x"))
    assert not has_form(b"TST2", framed(b"TST1", b"x"))
    with pytest.raises(
        DamagedError, match="state is corrupt or has another format: it begins with b'TST1' instead of b'TST2'"
    ):
        unframed(b"TST2", framed(b"TST1", b"x"), "state")


def test_a_checksum_continues_from_another() -> None:
    assert checksum(b"world", checksum(b"hello ")) == checksum(b"hello world")


def test_the_place_of_damage_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DamagedError("entry 3 is damaged", ledger=1, entry=3)))  # noqa: S301  # our own
    assert (str(error), error.ledger, error.entry) == ("entry 3 is damaged", 1, 3)
