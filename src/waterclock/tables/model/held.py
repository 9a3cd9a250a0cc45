"""A message as its consumer holds it, and what became of an ack of it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Held(NamedTuple):
    """A message as its consumer holds it.

    Attributes
    ----------
    seq, id
        Which row, and which message.
    lease
        The claim's number: any later operation of another consumer on the row changes it.
    group_id, position
        Its group and its place there; None where it is in no group.
    due
        When it was due before it was claimed, ns.
    epoch
        How often it has been sent.
    """

    seq: int
    id: Any
    lease: int
    group_id: str | None
    position: int | None
    due: int
    epoch: int


class Acked(NamedTuple):
    """What an ack found of messages that a consumer holds; the others it acked.

    Attributes
    ----------
    lost
        Those that the consumer holds no more, which stay as they are.
    again
        How many it had acked before, or a statement whose answer was lost.
    """

    lost: frozenset[Held]
    again: int
