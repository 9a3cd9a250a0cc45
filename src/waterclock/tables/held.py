"""A message as its consumer holds it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Held(NamedTuple):
    """A message as its consumer holds it.

    Attributes
    ----------
    seq, id
        Which row, and which message.
    lease
        The claim's number: whatever another one did to the row since changed it.
    group_id, position
        Its group and its place there; None where it is in no group.
    due
        When it was due before it was claimed, ns.
    """

    seq: int
    id: Any
    lease: int
    group_id: str | None
    position: int | None
    due: int
