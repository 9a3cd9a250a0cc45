"""The rights of tokens: which verbs a token may use on which topics and message tables. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

Verb = Literal["read", "append", "put", "receive", "manage"]
Kind = Literal["topic", "table"]

VERBS: dict[Kind, tuple[Verb, ...]] = {
    "topic": ("read", "append", "receive", "manage"),
    "table": ("read", "put", "receive", "manage"),
}
"""The verbs of each kind of object. No verb includes another one.

read: look at messages and at the state of everything. append, put: add messages. receive: take messages and decide what
happens to them; of a topic, read with subscriptions. manage: create, change and remove.
"""

EVERY = "*"
"""Instead of a name: every topic, or every message table."""


class Right(NamedTuple):
    """One verb on one topic or table, or on all of them."""

    verb: Verb
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.verb} {self.kind}:{self.name}"

    @classmethod
    def parse(cls, verb: str, on: str) -> Right:
        """Parse an object such as ``topic:telemetry`` or ``table:*``."""
        kind, colon, name = on.partition(":")
        if kind not in VERBS or not colon or not name:
            raise InvalidArgumentError(
                f"{verb} must be topic:NAME or table:NAME, or '*' for every name, got {quoted(on)}"
            )
        if verb not in VERBS[kind]:
            known = ", ".join(VERBS[kind])
            raise InvalidArgumentError(f"the verb of a {kind} must be one of {known}, got {quoted(verb)}")
        return cls(next(each for each in get_args(Verb) if each == verb), kind, name)


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request."""

    name: str  # its name in the audit log: that of its token
    rights: frozenset[Right] | None  # its rights; None: all, which only callers on this machine have

    def may(self, verb: Verb, kind: Kind, name: str) -> bool:
        """Return whether it has a right."""
        if self.rights is None:
            return True
        return not self.rights.isdisjoint((Right(verb, kind, name), Right(verb, kind, EVERY)))

    def readable(self, kind: Kind, names: Iterable[str]) -> list[str]:
        """Return the names that it may read."""
        return [name for name in names if self.may("read", kind, name)]
