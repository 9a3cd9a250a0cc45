"""The options of a message table: their validation, and how the catalogue stores them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, TypedDict, cast, get_args

from waterclock._support.quoting import quoted, unknown_name
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.tables.model.attempts import MOST_KEPT
from waterclock.tables.model.keyspace import WHOLE, KeyRange
from waterclock.tables.model.timing.backoff import Backoff
from waterclock.tables.model.timing.lease_length import LONGEST_GIVEN, LeaseLength
from waterclock.tables.model.timing.rate import Rate
from waterclock.tables.model.values.key_names import LONGEST_KEY, check_key_name
from waterclock.time import Duration, to_duration

Groups = Literal["exclusive", "sequenced"]
"""How the messages of a group are handed out (message groups, policies 1 and 2)."""

Ungrouped = Literal["default", "free", "reject"]  # how messages without a group are treated

AckOrder = Literal["strict", "hold", "lenient"]
"""How an ack that would overtake an earlier message of its group is treated."""

OnExhausted = Literal["block", "dead_letter"]  # how a group whose head has used up its attempts is treated
OnExpired = Literal["drop", "dead_letter"]  # how a message that expired before a consumer took it is treated
IdType = Literal["bigint", "text", "uuid"]  # the type of a message's id
Payload = Literal["bytes", "text", "json"]  # the type of a message's payload

PurgeBy = Literal["rows", "partition"]
"""Whether acked messages are deleted one by one, or dropped with the partition of their day."""

Rebalance = Literal["manual", "join"]
"""Whether exclusive groups move to other living consumers on demand only, or also when a consumer joins."""

_LEAST_RATE, _GREATEST_RATE = 1e-6, 1e9  # messages a second

_MOST_WEIGHTS, _GREATEST_WEIGHT = 1_000, 1_000

MOST = 2**31 - 1  # maximum count: the databases store epochs and limits as 32-bit integers


DURATIONS = ("ack_wait", "purge_after", "poll_interval", "min_backoff", "max_backoff", "group_idle")
"""The options that are durations, in ns."""


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
    attempts_kept: int
    dead_letter: str | None
    rate_limit: float | None
    on_exhausted: OnExhausted
    on_expired: OnExpired
    group_idle: Duration | None
    rebalance: Rebalance
    limit: Mapping[str, int] | None
    rate: Mapping[str, str | float] | None
    weights: Mapping[str, int] | None


def check_count(value: object, name: str = "limit") -> int:
    """Return a count; raise InvalidArgumentError if invalid."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidArgumentError(f"{name} must be an integer from 1 to {MOST}, got {quoted(value)}")
    return value


def check_rate(value: object, name: str = "rate_limit") -> float:
    """Return a rate limit in messages per second; raise InvalidArgumentError if invalid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_RATE <= value <= _GREATEST_RATE:
        raise InvalidArgumentError(
            f"{name} must be a number of messages per second from {_LEAST_RATE:g} to {_GREATEST_RATE:g}, got"
            f" {quoted(value)}"
        )
    return float(value)


def _fraction(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidArgumentError(f"{name} must be at least 0 and less than 1, got {quoted(value)}")
    return float(value)


def _kept(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_KEPT:
        raise InvalidArgumentError(f"{name} must be an integer from 0 to {MOST_KEPT}, got {quoted(value)}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{name} must be a non-empty string, got {quoted(value)}")
    return value


def _limit(value: object, name: str) -> dict[str, int]:
    if not isinstance(value, Mapping) or len(given := cast("Mapping[object, object]", value)) != 1:
        raise InvalidArgumentError(f"{name} must be a dict with one key and its limit, got {quoted(value)}")
    [(key, most)] = given.items()
    return {check_key_name(key, name): check_count(most, f"{name}: the limit of {quoted(key)}")}


def _rate(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(given := cast("Mapping[object, object]", value)) != 1:
        raise InvalidArgumentError(f"{name} must be a dict with one key and its rate, got {quoted(value)}")
    [(key, rate)] = given.items()
    text = rate
    if isinstance(rate, int | float) and not isinstance(rate, bool) and _LEAST_RATE <= rate <= _GREATEST_RATE:
        text = f"{rate:.9f}".rstrip("0").rstrip(".") + "/s"
    found = Rate.parse(text) if isinstance(text, str) else None
    if found is None or not _LEAST_RATE <= found.per_second <= _GREATEST_RATE:
        raise InvalidArgumentError(
            f"{name}: the rate of {quoted(key)} must be {_LEAST_RATE:g} to {_GREATEST_RATE:g} messages per second, as a"
            f" number or a text such as '10/s', '600/m', '5/h' or '100/d', got {quoted(rate)}"
        )
    return {check_key_name(key, name): cast("str", text)}


def _weights(value: object, name: str) -> dict[str, int]:
    if not isinstance(value, Mapping) or not 1 <= len(given := cast("Mapping[object, object]", value)) <= _MOST_WEIGHTS:
        raise InvalidArgumentError(f"{name} must be a dict of 1 to {_MOST_WEIGHTS} weights by key, got {quoted(value)}")
    for key, weight in given.items():
        if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:
            raise InvalidArgumentError(
                f"{name}: each key must be a text of 1 to {LONGEST_KEY} characters, got {quoted(key)}"
            )
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _GREATEST_WEIGHT:
            raise InvalidArgumentError(
                f"{name}: the weight of {quoted(key)} must be an integer from 1 to {_GREATEST_WEIGHT}, got"
                f" {quoted(weight)}"
            )
    return cast("dict[str, int]", dict(given))


def _column_types(value: object, name: str) -> dict[str, str]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name} must be a dict of types by name, got {quoted(value)}")
    given: Mapping[Any, Any] = value or {}
    return {column: kind for column, kind in given.items() if isinstance(kind, str)}


def _one_of(choices: Any) -> Callable[[Any, str], Any]:
    known = get_args(choices)

    def check_choice(value: Any, name: str) -> Any:
        if value not in known:
            raise InvalidArgumentError(f"{name} must be one of {', '.join(map(repr, known))}, got {quoted(value)}")
        return value

    return check_choice


def _option(default: object, check: Any, *, none: bool = False) -> Any:
    """Return a field of `TableOptions`.

    ``default`` is written as by a user. ``check`` takes a value and the option's name, and returns the value in the
    table's form; or a Literal type. ``none`` says whether a user may write None.
    """
    known = _one_of(check) if get_args(check) else check
    checked = (lambda value, name: None if value is None else known(value, name)) if none else known
    return field(metadata={"default": default, "check": checked})


_optional = partial(_option, None, none=True)


_length = partial(to_duration, minimum=1)
_wait = partial(to_duration, minimum=1, maximum=LONGEST_GIVEN)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The validated options of one message table. Durations are int ns; `Database.create_table` explains them."""

    ack_wait: int = _option("30s", _wait)
    purge_after: int | None = _option("1d", to_duration, none=True)
    batch_size: int = _option(10, check_count)
    cache_size: int = _option(10_000, check_count)
    poll_interval: int = _option("30s", _length)
    min_backoff: int | None = _optional(_wait)
    max_backoff: int | None = _optional(_length)
    jitter: float = _option(0.33, _fraction)
    groups: Groups | None = _option(None, Groups, none=True)
    group_header: str = _option("waterclock.group", _text)
    id_type: IdType = _option("bigint", IdType)
    payload: Payload = _option("bytes", Payload)
    columns: dict[str, str] = _option(None, _column_types)
    """The types of additional columns that the user gave by our names."""
    key_range: str = _option(WHOLE, lambda value, name: str(KeyRange.parse(value, name)))
    """The keyspace ids of the table."""
    purge_by: PurgeBy = _option("rows", PurgeBy)
    max_attempts: int | None = _optional(check_count)
    attempts_kept: int = _option(5, _kept)
    dead_letter: str | None = _optional(_text)  # the dead-letter table; set whenever ``max_attempts`` is
    rate_limit: float | None = _optional(check_rate)  # messages per second
    ungrouped: Ungrouped = _option("default", Ungrouped)
    ack_order: AckOrder = _option("strict", AckOrder)
    on_exhausted: OnExhausted = _option("dead_letter", OnExhausted)
    group_idle: int | None = _optional(_length)
    rebalance: Rebalance = _option("manual", Rebalance)
    on_expired: OnExpired = _option("drop", OnExpired)
    limit: dict[str, int] | None = _option(None, _limit, none=True)
    """How many messages of one key are leased at most; the key is named as in ``fair_by``."""
    rate: dict[str, str] | None = _option(None, _rate, none=True)
    """How many messages of one key are sent at most in a time; the key is named as in ``fair_by``."""
    fair_by: str | None = _optional(check_key_name)
    weights: dict[str, int] | None = _option(None, _weights, none=True)
    """How many messages a key gets in one turn; others get one."""

    @property
    def turns_by(self) -> str | None:
        """Return the name of the key whose values take turns; None if messages have no keys."""
        return next(iter(self.limit or self.rate or ()), self.fair_by)

    @property
    def keys_named(self) -> dict[str, str]:
        """Return the key that each option names."""
        named = {"limit": next(iter(self.limit or ()), None), "rate": next(iter(self.rate or ()), None)}
        return {option: key for option, key in {**named, "fair_by": self.fair_by}.items() if key is not None}

    @property
    def limit_of_a_key(self) -> int | None:
        """Return how many messages of one key are leased at most; None: any number."""
        return None if self.limit is None else next(iter(self.limit.values()))

    @property
    def rate_of_a_key(self) -> Rate | None:
        """Return how many messages of one key are sent at most in a time; None: any number."""
        return None if self.rate is None else Rate.parse(next(iter(self.rate.values())))

    def _check_key(self) -> None:
        """Check that a table whose messages have keys can have its other options."""
        if self.weights is not None and self.turns_by is None:
            raise InvalidArgumentError(
                f"weights needs fair_by, limit or rate, got {quoted(self.weights)} without any of them"
            )
        for option, key in self.keys_named.items():
            value = getattr(self, option)
            if self.groups is not None:
                raise InvalidArgumentError(
                    f"{option} must be omitted with groups={quoted(self.groups)}, got {quoted(value)}: a group"
                    " belongs to one consumer at a time"
                )
            if self.purge_by != "rows":
                raise InvalidArgumentError(
                    f"{option} must be omitted with purge_by={quoted(self.purge_by)}, got {quoted(value)}"
                )
            if key != self.turns_by:
                first = next(iter(self.keys_named))
                raise InvalidArgumentError(
                    f"{option} must name the key {quoted(self.turns_by)}, as {first} does, got {quoted(key)}"
                )

    @property
    def blocking_attempts(self) -> int | None:
        """Return after how many attempts a message blocks its group; None if none does."""
        return self.max_attempts if self.groups is not None and self.on_exhausted == "block" else None

    @property
    def has_free_messages(self) -> bool:
        """Return whether the table has both groups and ungrouped messages."""
        return self.groups is not None and self.ungrouped == "free"

    @property
    def backoff(self) -> Backoff:
        base = self.ack_wait if self.min_backoff is None else self.min_backoff
        return Backoff(base, self.max_backoff, self.jitter)

    @property
    def lease_length(self) -> LeaseLength:
        return LeaseLength(0 if self.min_backoff is None else self.ack_wait, self.backoff)

    def changed(self, changes: OptionChanges) -> TableOptions:
        """Return the options with some of them changed, validated again."""
        for option in changes:
            if option not in OptionChanges.__annotations__:
                known = OptionChanges.__annotations__
                remedy = f"the changeable options are {', '.join(known)}"
                raise InvalidArgumentError(unknown_name("changeable option", option, known, remedy))
        given: dict[str, Any] = {**asdict(self), **changes}
        if not given["limit"] and not given["rate"]:
            given["fair_by"] = self.turns_by  # without a limit and a rate, keys still take turns
        checked = TableOptions.check(**given)
        if checked.turns_by != self.turns_by:
            option = "rate" if changes.get("rate") else "limit"
            how = "be None in a table without keys"
            if self.turns_by is not None:
                how = f"keep the key {quoted(self.turns_by)}, with which the table was created"
            raise InvalidArgumentError(
                f"{option} must {how}, got {quoted(getattr(checked, option))}. Create another table, and"
                " move the messages"
            )
        return checked

    def with_dead_letter(self, name: str) -> TableOptions:
        """Name the dead-letter table of the table ``name`` if it needs one and none is named."""
        if self.max_attempts is None or self.dead_letter is not None:
            return self
        return replace(self, dead_letter=f"{name}_dead")

    def to_json(self) -> str:
        """Return the options in the catalogue's form."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, name: str, text: str) -> TableOptions:
        """Parse the options of the table ``name`` from `to_json`; SchemaError names a missing option."""
        known: dict[str, Any] = json.loads(text)
        for each in fields(cls):
            if each.name not in known:
                raise SchemaError(f"message table {quoted(name)}: its row in the catalogue has no option {each.name!r}")
        return cls(**{each.name: known[each.name] for each in fields(cls)})

    @classmethod
    def check(cls, **given: object) -> TableOptions:
        """Validate options; InvalidArgumentError names the option, the value and the remedy."""
        known = [each.name for each in fields(cls)]
        for option in given:
            if option not in known:
                remedy = f"the options are {', '.join(known)}"
                raise InvalidArgumentError(unknown_name("option", option, known, remedy))
        checked: dict[str, Any] = {
            each.name: each.metadata["check"](given.get(each.name, each.metadata["default"]), each.name)
            for each in fields(cls)
        }
        options = cls(**checked)
        if options.group_idle is not None and options.groups != "exclusive":
            raise InvalidArgumentError(
                f"group_idle must be omitted with groups={quoted(options.groups)}, got {quoted(given['group_idle'])}:"
                " only exclusive groups stay with a consumer while they are empty"
            )
        if options.rebalance == "join" and options.groups != "exclusive":
            raise InvalidArgumentError(
                f"rebalance must be 'manual' with groups={quoted(options.groups)}, got 'join':"
                " only exclusive groups stay with a consumer"
            )
        options._check_key()
        if options.on_expired == "dead_letter" and options.max_attempts is None and options.dead_letter is None:
            raise InvalidArgumentError(
                "on_expired='dead_letter' needs a dead-letter table. Set dead_letter or max_attempts"
            )
        if options.max_backoff is not None and options.max_backoff < options.backoff.base:
            shortest = "ack_wait" if options.min_backoff is None else "min_backoff"
            raise InvalidArgumentError(f"max_backoff must be at least {shortest}, got {quoted(given['max_backoff'])}")
        return options
