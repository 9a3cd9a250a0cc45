"""The position from which a purge continues, after messages that the database refuses to delete."""

from __future__ import annotations

from waterclock._support import moments

_TELL_EVERY = 60_000_000_000  # how often refused messages are reported, ns, because each round finds them again


class PurgePlace:
    """The progress of a round of purging. Threads may share it; a lost update repeats a chunk."""

    def __init__(self) -> None:
        # The round continues after messages acked at this time, ns; None: at the first one. Others with the same time
        # are left to the next round, because no index orders them.
        self.after: int | None = None
        self._tells_at: dict[str, int] = {}

    def tells(self, which: str) -> bool:
        """Return whether to report refused messages now: at most once a minute for each name."""
        now = moments.monotonic_ns()
        if now < self._tells_at.get(which, now):
            return False
        self._tells_at[which] = now + _TELL_EVERY
        return True
