"""Command-line options for those settings of a message table that may change while the table is in use."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from waterclock._support.quoting import quoted
from waterclock.cli.tables.payloads import pairs
from waterclock.cli.terminal.output import span
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.options import DURATIONS, OptionChanges, TableOptions


@Parameter(name="*")
@dataclass(frozen=True)
class ChangingOptions:
    """Omitted options have the library's defaults, or stay unchanged."""

    ack_wait: str | None = None
    """How long a consumer has before a message is sent again; doubles each time. A new table has 30s."""
    purge_after: str | None = None
    """How long acked messages are kept. A new table has 1d."""
    batch_size: int | None = None
    """How many messages a consumer takes at a time unless it sets this itself. A new table has 10."""
    cache_size: int | None = None
    """How many messages a subscription holds at most. A new table has 10000."""
    poll_interval: str | None = None
    """How often consumers look for messages that no notification announced. A new table has 30s."""
    min_backoff: str | None = None
    """Shortest pause after a failed attempt."""
    max_backoff: str | None = None
    """Longest pause after a failed attempt."""
    jitter: float | None = None
    """Fraction by which pauses vary. A new table has 0.33."""
    max_attempts: int | None = None
    """How often a message is sent at most; then it becomes a dead letter."""
    attempts_kept: int | None = None
    """The number of failed attempts that are kept with a message. A new table has 5."""
    dead_letter: str | None = None
    """The message table that takes dead letters; NAME_dead unless given."""
    rate_limit: float | None = None
    """How many messages a second are handed out at most."""
    on_exhausted: Literal["block", "dead_letter"] | None = None
    """When the first message of a group has used up its attempts, it becomes a dead letter, or the group waits (block).
    A new table has dead_letter."""
    on_expired: Literal["drop", "dead_letter"] | None = None
    """A message that expires before a consumer takes it is dropped, or becomes a dead letter. A new table drops."""
    group_idle: str | None = None
    """How long an exclusive group without messages stays with its consumer."""
    rebalance: Literal["manual", "join"] | None = None
    """Exclusive groups move to another living consumer by 'group rebalance' only, or also when a consumer joins (join).
    A new table has manual."""

    limit: str | None = None
    """The maximum number of messages of one key that consumers have at once, KEY=N, such as customer=3. The key is a
    column, a header or group. An existing table keeps its key."""
    rate: str | None = None
    """The maximum number of messages of one key that are handed out in a time, KEY=N/UNIT with the unit s, m, h or d,
    such as customer=10/s. The key is named as in limit."""
    weights: Annotated[list[str] | None, Parameter(negative="")] = None
    """The number of messages that a key gets in one turn, VALUE=N, such as vip=3; may be given several times. Others
    get one."""

    def given(self) -> OptionChanges:
        found: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.limit is not None:
            found["limit"] = _counts("limit", [self.limit])
        if self.rate is not None:
            found["rate"] = pairs("rate", [self.rate])
        if self.weights is not None:
            found["weights"] = _counts("weights", self.weights)
        return OptionChanges(**{name: value for name, value in found.items() if value is not None})


def _counts(option: str, given: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key, text in pairs(option, given).items():
        try:
            counts[key] = int(text)
        except ValueError:
            raise InvalidArgumentError(
                f"--{option} must be KEY=N with an integer N, got {quoted(f'{key}={text}')}"
            ) from None
    return counts


def shown(options: TableOptions) -> dict[str, Any]:
    """Format options for output."""
    found = asdict(options)
    durations = {name: span(found[name]) for name in DURATIONS}
    columns = ", ".join(f"{name}={kind}" for name, kind in options.columns.items())
    of_keys = {name: found[name] or {} for name in ("limit", "rate", "weights")}
    texts = {name: ", ".join(f"{key}={value}" for key, value in its.items()) or None for name, its in of_keys.items()}
    return {**found, **durations, "columns": columns or None, **texts}
