from __future__ import annotations

from waterclock.errors import DamagedError, InvalidArgumentError, OrderError
from waterclock.quoting import cut, quoted


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_short_values_are_quoted_whole() -> None:
    for value in ("a", b"b", 7, None, ["x"], 1.5):
        assert quoted(value) == repr(value)


def test_long_values_are_cut_and_their_length_is_said() -> None:
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
