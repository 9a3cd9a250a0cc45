"""Processes that die, and threads that a signal handler interrupts, at a chosen moment."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection, Generator
from types import CodeType, FrameType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event

T = TypeVar("T")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it, so no clean-up runs."""


def killing(step: Callable[..., Any], moment: str) -> Callable[..., Any]:
    """Replace a step by one that is killed ``"before"`` or ``"after"`` it is done."""

    def killed(*arguments: Any) -> Any:
        if moment == "after":
            step(*arguments)
        raise Killed

    return killed


def killed_after_each_change(work: Callable[[], T], *, every: int = 1) -> tuple[T, int]:
    """Do some work again and again: killed after its first statement that changes something, after the second, ….

    With ``every`` after the first, and then after each so many more.

    Returns
    -------
    tuple
        What it gave when it came to its end, and how often it was killed.
    """
    deaths = steps = 0

    def die(*facts: Any) -> None:
        nonlocal steps
        if not facts[2].lstrip().startswith(("SELECT", "SHOW", "PRAGMA")):
            steps += 1
            if steps > deaths * every:  # further each time
                raise Killed

    event.listen(sa.Engine, "after_cursor_execute", die)
    try:
        while True:
            steps = 0
            try:
                return work(), deaths
            except Killed:
                deaths += 1
    finally:
        event.remove(sa.Engine, "after_cursor_execute", die)


class Interrupted(BaseException):
    """Raised by a signal handler."""


def interrupted_at_each_point(
    work: Callable[[], object], files: Collection[str], names: Collection[str] | None = None
) -> Generator[int]:
    """Call a function again and again, each time interrupted one point later, until it ends without an interruption.

    An interruption in ``__del__`` counts, too, although the interpreter only reports it. Points are those of functions
    in the files with these names, or of all functions there. Yields the number of each point after its interruption.
    """
    after = 1
    while _is_interrupted(work, tuple(files), names, after):
        yield after
        after += 1


def _is_interrupted(
    work: Callable[[], object], files: tuple[str, ...], names: Collection[str] | None, after: int
) -> bool:
    left = after

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        code = frame.f_code
        if event == "call":
            frame.f_trace_opcodes = True
            return trace if (names is None or code.co_name in names) and code.co_filename.endswith(files) else None
        left -= event == "opcode" and _runs_signal_handlers(code, frame.f_lasti)
        if left == 0:
            sys.settrace(None)
            raise Interrupted
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(tracing)
    return left <= 0


def _runs_signal_handlers(code: CodeType, at: int) -> bool:
    """Return whether the interpreter runs signal handlers here: at the beginning of a function, and after a call."""
    if code.co_code[at] == dis.opmap["RESUME"]:
        return True
    before = at - 2
    while before > 0 and code.co_code[before] == dis.opmap["CACHE"]:
        before -= 2
    return code.co_code[before] == dis.opmap["CALL"]
