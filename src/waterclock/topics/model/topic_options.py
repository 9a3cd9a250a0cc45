"""The options of a topic: what users may write, checked, and how the catalogue keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypedDict

from waterclock._support.quoting import unknown_name
from waterclock.errors import InvalidArgumentError
from waterclock.time import Duration, to_duration
from waterclock.topics.model.clock_skew_limit import check_on_ahead
from waterclock.topics.model.literals import OnAhead
from waterclock.topics.model.names import check_size

DURATIONS = frozenset({"roll_after", "retention", "max_ahead"})
"""The options that are lengths of time, in ns."""


class TopicChanges(TypedDict, total=False):
    """The options of `Topic.alter`."""

    roll_after: Duration | None
    roll_size: int
    retention: Duration | None
    max_ahead: Duration | None
    on_ahead: OnAhead


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The options of one topic, checked. `Database.create_topic` explains them, and has the same defaults."""

    roll_after: int | None = 3600 * 10**9
    roll_size: int = 64 << 20
    retention: int | None = None
    max_ahead: int | None = None
    on_ahead: OnAhead = "reject"

    @classmethod
    def check(
        cls,
        *,
        roll_after: Duration | None,
        roll_size: int,
        retention: Duration | None,
        max_ahead: Duration | None,
        on_ahead: OnAhead,
    ) -> Self:
        """Check what a user wrote.

        Raises
        ------
        InvalidArgumentError
            If an option is invalid; names it and its value.
        """
        return cls(
            roll_after=None if roll_after is None else to_duration(roll_after, "roll_after", minimum=1),
            roll_size=check_size(roll_size, "roll_size"),
            retention=None if retention is None else to_duration(retention, "retention", minimum=1),
            max_ahead=None if max_ahead is None else to_duration(max_ahead, "max_ahead"),
            on_ahead=check_on_ahead(on_ahead),
        )

    @classmethod
    def of_row(cls, row: Mapping[Any, Any]) -> Self:
        """Read a topic's row."""
        values: dict[str, Any] = {field.name: row[field.name] for field in fields(cls)}
        values["on_ahead"] = values["on_ahead"] or "reject"
        return cls(**values)

    def changed(self, changes: TopicChanges) -> Self:
        """Return the options with some of them changed, checked again."""
        names = tuple(field.name for field in fields(self))
        for option in changes:
            if option not in names:
                raise InvalidArgumentError(unknown_name("option", option, names, f"a topic has {', '.join(names)}"))
        given: dict[str, Any] = {**asdict(self), **changes}
        return self.check(**given)
