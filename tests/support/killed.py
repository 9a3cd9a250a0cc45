"""Processes that die at a chosen moment, as an error that nothing catches."""

from __future__ import annotations

from collections.abc import Callable
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
