"""A message as the consumer has it that took it, and what became of an ack of it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Leased(NamedTuple):
    """A message as the consumer has it that took it.

    Attributes
    ----------
    seq, id
        Which row, and which message.
    claim_id
        The number of the claim that took it: any later operation of another consumer on the row changes it there.
    group_id, position
        Its group and its place there; None where it is in no group.
    due
        When it was due before it was claimed, ns.
    epoch
        How often it has been sent.
    """

    seq: int
    id: Any
    claim_id: int
    group_id: str | None
    position: int | None
    due: int
    epoch: int


class Held(NamedTuple):
    """A message that a consumer has, as the database has it.

    Attributes
    ----------
    until
        When the lease ends now, ns.
    cancelled
        Whether the message was cancelled meanwhile.
    """

    until: int
    cancelled: bool


class Acked(NamedTuple):
    """What an ack found of messages that a consumer took; the others it acked.

    Attributes
    ----------
    lost
        Those whose lease was lost, which stay as they are.
    again
        How many the same claim had acked before, or a statement whose answer was lost.
    """

    lost: frozenset[Leased]
    again: int
