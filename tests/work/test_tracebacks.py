"""What is kept of where a handler failed."""

from __future__ import annotations

from waterclock.work.ground.outcomes import outcome_of
from waterclock.work.ground.tracebacks import frames_of, traceback_of


def _fail(depth: int, text: str = "deep") -> None:
    if depth:
        _fail(depth - 1, text)
    raise ValueError(text)


def _error(depth: int, text: str = "deep") -> ValueError:
    try:
        _fail(depth, text)
    except ValueError as error:
        return error
    raise AssertionError


def test_a_row_keeps_the_last_three_frames() -> None:
    frames = frames_of(_error(20)) or ""
    assert frames.count(" > ") == 2
    assert frames.endswith(" in _fail")
    assert outcome_of(_error(20)).last_error == f"ValueError: deep ({frames})"


def test_an_error_without_frames_keeps_its_text_alone() -> None:
    assert outcome_of(ValueError("bare")).last_error == "ValueError: bare"


def test_a_long_traceback_is_cut_and_moves_no_cursor() -> None:
    text = traceback_of(_error(0, "\x1b[31m" + "x" * 100_000))
    assert len(text) < 17_000
    assert "characters left out" in text
    assert "\x1b" not in text
    assert text.startswith("Traceback")
