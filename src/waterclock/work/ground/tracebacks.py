"""Formats the errors of failed handlers: the last frames for the message's row, and the whole traceback for the log."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FRAMES = 3
"""Innermost frames that a row keeps: a handler, the function it calls, and the library's function that raised."""

_FRAME = 120  # characters of one frame in a row; the names of a file and a function are rarely longer

_LOGGED = 16_000
"""Characters of a traceback in the log, so that a log of failures stays readable and a pipe to the parent short."""

_OURS = Path(__file__).parents[2]
_NOT_THEIRS = (_OURS / "work", _OURS / "testing")


def frames_of(error: BaseException) -> str | None:
    """Return the last frames outside the worker itself in a line, the innermost one last; None if all are inside."""
    summary = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False)
    theirs = [each for each in summary if not any(map(Path(each.filename).is_relative_to, _NOT_THEIRS))]
    if not theirs:
        return None
    return " > ".join(
        f"{'/'.join(Path(each.filename).parts[-2:])}:{each.lineno} in {each.name}"[:_FRAME]
        for each in theirs[-_FRAMES:]
    )


def traceback_of(error: BaseException) -> str:
    """Format an exception as Python does, without control characters; cut in its middle if it is long."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # noqa: BLE001  # an exception of a handler's may do anything
        text = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    if len(text) > _LOGGED:
        half = _LOGGED // 2
        text = f"{text[:half]}\n… ({len(text) - _LOGGED} characters left out) …\n{text[-half:]}"
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


def warn_with_traceback(
    log: logging.Logger, text: str | None, message: str, *arguments: object, extra: Mapping[str, Any] | None = None
) -> None:
    """Log a warning with a traceback that was formatted before, perhaps in another process."""
    if log.isEnabledFor(logging.WARNING):
        record = log.makeRecord(log.name, logging.WARNING, __file__, 0, message, arguments, None, extra=extra)
        record.exc_text = text
        log.handle(record)
