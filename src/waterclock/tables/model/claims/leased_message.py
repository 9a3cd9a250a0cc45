"""A leased message, and the outcome of acking it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Leased(NamedTuple):
    """A message as its consumer sees it.

    Attributes
    ----------
    seq, id
        Key of the row, and id of the message.
    claim_id
        The id of the claim that took it; any later operation of another consumer changes it in the row.
    group_id, position
        Its group and its position; None if it is ungrouped.
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
    """The database's view of a leased message."""

    until: int  # when the lease ends now, ns
    cancelled: bool  # whether the message was cancelled meanwhile


class Acked(NamedTuple):
    """The exceptions of an ack of leased messages; all others were acked."""

    lost: frozenset[Leased]  # messages whose lease was lost, which are unchanged
    again: int  # how many were already acked by the same claim, or by a statement whose answer was lost
