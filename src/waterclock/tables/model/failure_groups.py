"""Groups failures whose errors differ only in numbers, ids, quoted texts and paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waterclock.tables.model.attempts import MOST_TEXT

EXAMPLES = 3  # maximum ids listed for each group: examples, not a full list

_VARIABLE = re.compile(
    r"""
      (?P<text> "[^"]*" | (?<!\w)'[^']*'(?!\w) )
    | (?P<uuid> \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b )
    | (?P<url>  \b[a-z][a-z0-9+.-]*://\S+ )
    | (?P<path> (?<![\w.])/(?:[\w.-]+/)+[\w.-]* )
    | (?P<hex>  \b0x[0-9a-f]+\b | \b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\b )
    | (?P<number> (?<![a-z_\d])[+-]?\d[\d_]*(?:[.,:]\d+)*(?:e[+-]?\d+)? )
    """,
    re.VERBOSE | re.IGNORECASE,
)


class FailedMessage(NamedTuple):
    """A message that failed."""

    id: Any
    error: str  # why it failed last
    failed_at: int | None
    """When, ns; None if the table keeps no attempts, or the message failed before it was given back with an error."""


@dataclass(slots=True)
class FailureGroup:
    """Messages that failed in the same way.

    Attributes
    ----------
    error
        Their error, with a placeholder such as ``<number>`` for each part by which errors of one kind differ.
    count
        How many messages.
    first, last
        When the first and the last of them failed, ns; None if the table keeps no attempts.
    ids
        Some of the messages, latest first.
    """

    error: str
    count: int = 0
    first: int | None = None
    last: int | None = None
    ids: list[Any] = field(default_factory=list[Any])

    def add(self, message: FailedMessage) -> None:
        """Count a message."""
        self.count += 1
        if len(self.ids) < EXAMPLES:
            self.ids.append(message.id)
        if message.failed_at is not None:
            self.first = message.failed_at if self.first is None else min(self.first, message.failed_at)
            self.last = message.failed_at if self.last is None else max(self.last, message.failed_at)


def normalised(error: str) -> str:
    """Return the first line of an error, with a placeholder for each number, id, quoted text, path and URL."""
    line = error.strip()[:MOST_TEXT].partition("\n")[0].strip()
    return _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", line)


def group_failures(messages: Iterable[FailedMessage]) -> Sequence[FailureGroup]:
    """Group messages by their normalised errors, the largest group first."""
    groups: dict[str, FailureGroup] = {}
    for message in messages:
        error = normalised(message.error)
        groups.setdefault(error, FailureGroup(error)).add(message)
    return _largest_first(groups)


def merge_failures(parts: Iterable[FailureGroup]) -> Sequence[FailureGroup]:
    """Merge the groups of several tables, the largest group first."""
    groups: dict[str, FailureGroup] = {}
    for part in parts:
        group = groups.setdefault(part.error, FailureGroup(part.error))
        group.count += part.count
        group.ids = [*group.ids, *part.ids][:EXAMPLES]
        group.first = min((time for time in (group.first, part.first) if time is not None), default=None)
        group.last = max((time for time in (group.last, part.last) if time is not None), default=None)
    return _largest_first(groups)


def _largest_first(groups: Mapping[str, FailureGroup]) -> Sequence[FailureGroup]:
    return sorted(groups.values(), key=lambda group: (-group.count, group.error))
