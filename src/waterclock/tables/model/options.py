"""The options of a message table: what users may write, checked, and how the catalogue keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, Literal, TypedDict, get_args

from waterclock._support.quoting import quoted, unknown_name
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.tables.model.keyspace import WHOLE, KeyRange
from waterclock.tables.model.timing.backoff import LONGEST_GIVEN, Backoff
from waterclock.time import Duration, to_duration

Groups = Literal["exclusive", "sequenced"]
"""How the messages of a group are handed out (message groups, policies 1 and 2)."""

Ungrouped = Literal["default", "free", "reject"]
"""What a message is that names no group."""

AckOrder = Literal["strict", "hold", "lenient"]
"""What an ack means that passes over an earlier message of its group."""

OnExhausted = Literal["block", "dead_letter"]
"""What a group does when its head has used up its attempts."""

OnExpired = Literal["drop", "dead_letter"]
"""What becomes of a message that no consumer took before its time was over."""

IdType = Literal["bigint", "text", "uuid"]
"""The type of a message's id."""

Payload = Literal["bytes", "text", "json"]
"""The type of a message's payload."""

PurgeBy = Literal["rows", "partition"]
"""Whether acked messages are deleted one by one, or dropped with the partition of their day."""

_LEAST_RATE, _GREATEST_RATE = 1e-6, 1e9  # messages a second

MOST = 2**31 - 1
"""No count is larger: the databases keep epochs and limits as 32-bit integers."""


DURATIONS = ("ack_wait", "purge_after", "poll_interval", "min_backoff", "max_backoff", "group_idle")
"""The options that are lengths of time, in ns."""


class OptionChanges(TypedDict, total=False):
    """The options that may change while a table is in use."""

    ack_wait: Duration
    purge_after: Duration | None
    batch_size: int
    cache_size: int
    poll_interval: Duration
    min_backoff: Duration | None
    max_backoff: Duration | None
    jitter: float
    max_attempts: int | None
    dead_letter: str | None
    rate_limit: float | None
    on_exhausted: OnExhausted
    on_expired: OnExpired
    group_idle: Duration | None


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of one message table, checked. Durations are int ns; `MessageTable.create` explains them."""

    ack_wait: int
    purge_after: int | None
    batch_size: int
    cache_size: int
    poll_interval: int
    min_backoff: int | None
    max_backoff: int | None
    jitter: float
    groups: Groups | None
    group_header: str
    id_type: IdType
    payload: Payload
    columns: dict[str, str]
    """The types of the further columns that were given by our names for them."""
    key_range: str
    """The keyspace ids that the table holds."""
    purge_by: PurgeBy
    # Those with defaults here came later: entries that were written before lack them.
    max_attempts: int | None = None
    dead_letter: str | None = None
    """The message table that takes dead letters; given wherever ``max_attempts`` is."""
    rate_limit: float | None = None
    """Messages a second."""
    ungrouped: Ungrouped = "default"
    ack_order: AckOrder = "strict"
    on_exhausted: OnExhausted = "dead_letter"
    group_idle: int | None = None
    on_expired: OnExpired = "drop"

    @property
    def blocking_attempts(self) -> int | None:
        """After how many attempts a message blocks its group; None if none does."""
        return self.max_attempts if self.groups is not None and self.on_exhausted == "block" else None

    @property
    def has_free_messages(self) -> bool:
        """Whether some messages are in no group although others are."""
        return self.groups is not None and self.ungrouped == "free"

    @property
    def backoff(self) -> Backoff:
        """The back-off that these options describe."""
        return Backoff(self.ack_wait, self.min_backoff, self.max_backoff, self.jitter)

    def changed(self, changes: OptionChanges) -> TableOptions:
        """Return the options with some of them changed, checked anew."""
        for option in changes:
            if option not in OptionChanges.__annotations__:
                known = OptionChanges.__annotations__
                remedy = f"those that can change are {', '.join(known)}"
                raise InvalidArgumentError(unknown_name("option that can change", option, known, remedy))
        given: dict[str, Any] = {**asdict(self), **changes}
        return TableOptions.check(**given)

    def with_dead_letter(self, name: str) -> TableOptions:
        """Name the dead-letter table of the table ``name`` where it must have one and none is named."""
        if self.max_attempts is None or self.dead_letter is not None:
            return self
        return replace(self, dead_letter=f"{name}_dead")

    def to_json(self) -> str:
        """Write the options as the catalogue keeps them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, name: str, text: str) -> TableOptions:
        """Read what `to_json` wrote for the table ``name``; SchemaError names an option that is missing."""
        known: dict[str, Any] = json.loads(text)
        for field in fields(cls):
            if field.name not in known and field.default is MISSING:
                raise SchemaError(
                    f"message table {quoted(name)}: its row in the catalogue lacks the option {field.name!r}"
                )
        return cls(**{field.name: known[field.name] for field in fields(cls) if field.name in known})

    @classmethod
    def check(
        cls,
        *,
        ack_wait: Duration = "30s",
        purge_after: Duration | None = "1d",
        batch_size: int = 10,
        cache_size: int = 10_000,
        poll_interval: Duration = "30s",
        min_backoff: Duration | None = None,
        max_backoff: Duration | None = None,
        jitter: float = 0.33,
        groups: Groups | None = None,
        group_header: str = "waterclock.group",
        id_type: IdType = "bigint",
        payload: Payload = "bytes",
        columns: Mapping[str, object] | None = None,
        key_range: str = WHOLE,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        rate_limit: float | None = None,
        ungrouped: Ungrouped = "default",
        ack_order: AckOrder = "strict",
        on_exhausted: OnExhausted = "dead_letter",
        on_expired: OnExpired = "drop",
        group_idle: Duration | None = None,
        purge_by: PurgeBy = "rows",
        **unknown: object,
    ) -> TableOptions:
        """Check what a user wrote; InvalidArgumentError names the option, the value and the remedy."""
        for option in unknown:
            known = [field.name for field in fields(cls)]
            remedy = f"a message table has {', '.join(known)}"
            raise InvalidArgumentError(unknown_name("option", option, known, remedy))
        if columns is not None and not isinstance(columns, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may give anything
            raise InvalidArgumentError(f"columns: {quoted(columns)} is no dict; give each column's type by its name")
        options = cls(
            ack_wait=to_duration(ack_wait, "ack_wait", minimum=1, maximum=LONGEST_GIVEN),
            purge_after=None if purge_after is None else to_duration(purge_after, "purge_after"),
            batch_size=check_count(batch_size, "batch_size"),
            cache_size=check_count(cache_size, "cache_size"),
            poll_interval=to_duration(poll_interval, "poll_interval", minimum=1),
            min_backoff=None
            if min_backoff is None
            else to_duration(min_backoff, "min_backoff", minimum=1, maximum=LONGEST_GIVEN),
            max_backoff=None if max_backoff is None else to_duration(max_backoff, "max_backoff", minimum=1),
            jitter=_fraction(jitter, "jitter"),
            groups=None if groups is None else _choice(groups, "groups", Groups),
            group_header=_text(group_header, "group_header"),
            id_type=_choice(id_type, "id_type", IdType),
            payload=_choice(payload, "payload", Payload),
            columns={column: kind for column, kind in (columns or {}).items() if isinstance(kind, str)},
            key_range=str(KeyRange.parse(key_range, "key_range")),
            max_attempts=None if max_attempts is None else check_count(max_attempts, "max_attempts"),
            dead_letter=None if dead_letter is None else _text(dead_letter, "dead_letter"),
            rate_limit=None if rate_limit is None else check_rate(rate_limit),
            ungrouped=_choice(ungrouped, "ungrouped", Ungrouped),
            ack_order=_choice(ack_order, "ack_order", AckOrder),
            on_exhausted=_choice(on_exhausted, "on_exhausted", OnExhausted),
            on_expired=_choice(on_expired, "on_expired", OnExpired),
            group_idle=None if group_idle is None else to_duration(group_idle, "group_idle", minimum=1),
            purge_by=_choice(purge_by, "purge_by", PurgeBy),
        )
        if options.group_idle is not None and options.groups != "exclusive":
            raise InvalidArgumentError(
                f"group_idle: {quoted(group_idle)} has no meaning with groups={quoted(groups)}; only exclusive groups"
                " stay with a consumer while they are empty"
            )
        if options.on_expired == "dead_letter" and options.max_attempts is None and options.dead_letter is None:
            raise InvalidArgumentError(
                "on_expired: 'dead_letter' needs a table for dead letters; name one with dead_letter=…, or give"
                " max_attempts"
            )
        if options.max_backoff is not None and options.max_backoff < options.backoff.base:
            shortest = "ack_wait" if options.min_backoff is None else "min_backoff"
            raise InvalidArgumentError(
                f"max_backoff: {quoted(max_backoff)} is shorter than {shortest}; give at least that"
            )
        return options


def check_count(value: object, name: str = "limit") -> int:
    """Return a number of things; InvalidArgumentError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidArgumentError(f"{name}: {quoted(value)} is no count; give a whole number from 1 to {MOST}")
    return value


def _fraction(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidArgumentError(f"{name}: {quoted(value)} is no fraction; give a number from 0 to less than 1")
    return float(value)


def check_rate(value: object) -> float:
    """Return a rate limit in messages a second; InvalidArgumentError where it cannot be meant."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_RATE <= value <= _GREATEST_RATE:
        raise InvalidArgumentError(
            f"rate_limit: {quoted(value)} is no rate; give messages a second, from {_LEAST_RATE:g} to"
            f" {_GREATEST_RATE:g}"
        )
    return float(value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{name}: {quoted(value)} is not a text of at least one character")
    return value


def _choice(value: Any, name: str, choices: Any) -> Any:
    if value not in get_args(choices):
        raise InvalidArgumentError(f"{name}: {quoted(value)} is none of {', '.join(map(repr, get_args(choices)))}")
    return value
