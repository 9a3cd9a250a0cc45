"""The failed attempts of a message, as a JSON array in its row, from the oldest to the latest."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

AttemptOutcome = Literal["failed", "dead_letter"]
"""Whether the message was given back with an error, or moved to the dead letters by its handler."""

MOST_TEXT = 1_000
"""Characters kept of an attempt's error, so that all attempts of a message take a few kilobytes at most."""

MOST_KEPT = 100  # the maximum of ``attempts_kept``: a claim reads all kept attempts with the message

_CLASS = re.compile(r"([A-Za-z_][\w.]{0,99}): ")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt to handle a message."""

    epoch: int
    """The delivery's epoch: 1 for the first attempt. Numbers are missing if a lease ended without an outcome."""
    claimed_at: int  # when the message was claimed, ns, by the database's clock
    duration: int  # from the claim to the outcome, ns
    consumer: str | None  # name of the consumer; None if it has none
    outcome: AttemptOutcome
    """``"failed"``: given back with an error. ``"dead_letter"``: the handler moved it to the dead letters."""
    error: str  # the error or reason, truncated to 1,000 characters

    @property
    def error_class(self) -> str | None:
        """The name of the exception's class, if the error begins with one."""
        found = _CLASS.match(self.error)
        return None if found is None else found[1]


class Failure(NamedTuple):
    """The columns of a message's row that a failed attempt changes."""

    error: str | None  # the column ``last_error``; None leaves it as it is
    attempts: str | None  # the column ``failed_attempts``; None leaves it as it is


def with_attempt(kept: str | None, attempt: Attempt, most: int) -> str:
    """Return the text for a message's row after another attempt, which keeps the latest ``most``."""
    latest = [*read_attempts(kept), attempt][-most:]
    return json.dumps([list(asdict(each).values()) for each in latest], ensure_ascii=False, separators=(",", ":"))


def read_attempts(kept: str | None) -> Sequence[Attempt]:
    """Parse the text of a message's row; text that plain SQL wrote and that is invalid counts as no attempts."""
    try:
        rows: Any = json.loads(kept or "[]")
        return [Attempt(*row) for row in rows if _is_attempt(row)]
    except (ValueError, TypeError, RecursionError):
        return []


def truncated(error: str) -> str:
    """Return an error as an attempt keeps it."""
    return error if len(error) <= MOST_TEXT else f"{error[: MOST_TEXT - 1]}…"


def _is_attempt(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != len(fields(Attempt)):
        return False
    epoch, claimed_at, duration, consumer, outcome, error = row
    return (
        all(isinstance(each, int) for each in (epoch, claimed_at, duration))
        and (consumer is None or isinstance(consumer, str))
        and outcome in ("failed", "dead_letter")
        and isinstance(error, str)
    )
