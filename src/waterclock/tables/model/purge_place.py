"""The position from which purging a table continues after messages that the database refuses to delete."""

from __future__ import annotations

from waterclock._support import moments

_TELL_EVERY = 60_000_000_000
"""Refused messages are reported once in so long, ns, since they are met again in each round."""


class PurgePlace:
    """How far a round of purging has come. Threads may share it; a lost update repeats a piece.

    Attributes
    ----------
    after
        The round goes on behind messages that were acked then, ns; None: at the first one. Others with the same time
        are left to the next round, since no index has their order.
    """

    def __init__(self) -> None:
        self.after: int | None = None
        self._tells_at: dict[str, int] = {}

    def tells(self, which: str) -> bool:
        """Return whether it is time to report refused messages; True at most once a minute for those of each name."""
        now = moments.monotonic_ns()
        if now < self._tells_at.get(which, now):
            return False
        self._tells_at[which] = now + _TELL_EVERY
        return True
