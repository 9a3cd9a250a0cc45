"""A leased message, and the outcome of acking it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Leased(NamedTuple):
    """A message as its consumer sees it."""

    # Key of the row, and id of the message.
    seq: int
    id: Any
    claim_id: int  # the id of the claim that took it; any later operation of another consumer changes it in the row
    # Its group and its position; None if it is ungrouped.
    group_id: str | None
    position: int | None
    due: int  # when it was due before it was claimed, ns
    epoch: int  # how often it has been sent


class Held(NamedTuple):
    """The database's view of a leased message."""

    until: int  # when the lease ends now, ns
    cancelled: bool  # whether the message was cancelled meanwhile


class Acked(NamedTuple):
    """The exceptions of an ack of leased messages; all others were acked."""

    lost: frozenset[Leased]  # messages whose lease was lost, which are unchanged
    again: int  # how many were already acked by the same claim, or by a statement whose answer was lost
