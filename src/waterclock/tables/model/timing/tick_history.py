"""The last ticks of a schedule and their outcomes, as text in the schedule's row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, get_args

TickOutcome = Literal["put", "skipped", "missed", "failed", "run"]

MOST = 10  # how many of its last ticks a schedule keeps

_MOST_TEXT = 500
_FIELDS = 4


@dataclass(frozen=True, slots=True)
class PastTick:
    """A tick of a schedule that was processed."""

    at: int  # the tick's time, ns
    outcome: TickOutcome
    """``"put"``: it put a message. ``"skipped"``: the previous message was not acked (``overlap="skip"``).
    ``"missed"``: no process ran in time, and it was not caught up; later missed ticks have no entry. ``"failed"``: its
    message could not be put. ``"run"``: an operator ran the schedule.
    """
    message_id: str | None = None  # id of the message, as text; None: none was put
    error: str | None = None  # why it failed; None: it did not


def with_ticks(kept: str | None, ticks: Iterable[PastTick]) -> str:
    """Return the text for a schedule's row after further ticks, which keeps the latest `MOST`.

    Repeated failures of one tick are one entry, with the last error.
    """
    latest = list(read_ticks(kept))
    for one in ticks:
        if latest and one.outcome == "failed" and (latest[-1].at, latest[-1].outcome) == (one.at, "failed"):
            latest.pop()
        latest.append(one)
    rows = [
        (at, outcome, message_id, error and error[:_MOST_TEXT])
        for at, outcome, message_id, error in map(astuple, latest[-MOST:])
    ]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def read_ticks(kept: str | None) -> Sequence[PastTick]:
    """Parse the text of a schedule's row; invalid text, which plain SQL wrote, counts as no ticks."""
    try:
        rows: Any = json.loads(kept or "[]")
        return [PastTick(*row) for row in rows if _is_tick(row)]
    except (ValueError, TypeError, RecursionError):
        return []


def _is_tick(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != _FIELDS:
        return False
    at, outcome, *texts = row
    return (
        isinstance(at, int) and outcome in get_args(TickOutcome) and all(isinstance(each, str | None) for each in texts)
    )
