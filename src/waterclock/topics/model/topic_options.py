"""The options of a topic: how users' values are parsed, and how the catalogue stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypedDict, Unpack

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
    def check(cls, **given: Unpack[TopicChanges]) -> Self:
        """Check a user's options; a missing one has its default.

        Raises `InvalidArgumentError` if an option is invalid; names it and its value.
        """
        options: dict[str, Any] = {**asdict(cls()), **given}
        for name, least in (("roll_after", 1), ("retention", 1), ("max_ahead", 0)):
            if options[name] is not None:
                options[name] = to_duration(options[name], name, minimum=least)
        options["roll_size"] = check_size(options["roll_size"], "roll_size")
        options["on_ahead"] = check_on_ahead(options["on_ahead"])
        return cls(**options)

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
