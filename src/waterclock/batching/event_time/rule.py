"""The options of batching by event time, such as the window's length, the delays and the treatment of conflicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from waterclock._support.quoting import quoted
from waterclock.batching.batch import CloseReason, RejectReason
from waterclock.batching.declared_streams import stream_names
from waterclock.errors import InvalidArgumentError
from waterclock.time import Duration, format_duration, to_duration

OnConflict = Literal["split", "replace", "isolate", "keep"]
"""The treatment of a stream's second event time in a window."""

# The kernel compiles in the numbers of this file: after a change of one, save `kernel.py`, too.

SPLIT, REPLACE, ISOLATE, KEEP = range(4)

CONFLICTS: dict[OnConflict, int] = {"split": SPLIT, "replace": REPLACE, "isolate": ISOLATE, "keep": KEEP}
"""The numbers of those words, for the compiled rule."""

BY_TIME, BY_CONFLICT, BY_BOUNDARY = range(3)
"""Why a window ended: its length or a silence, a conflict, or a boundary."""

CUT_REASONS: dict[int, CloseReason] = {BY_CONFLICT: "conflict", BY_BOUNDARY: "boundary"}
"""The reasons of the batches of windows that were cut."""

ACCEPTED, LATE, FUTURE, DUPLICATE, REPLACED, UNDECIDED = range(6)
"""The verdicts of the rule on a message, as numbers.

Undecided: received after the clock's reading, or in a window that is open then.
"""

REJECTIONS: dict[int, RejectReason] = {
    LATE: "late",
    FUTURE: "future",
    DUPLICATE: "duplicate",
    REPLACED: "replaced",
}
"""The words for the verdicts that keep a message out of every batch."""


class EventTimeRule(NamedTuple):
    """The checked options of batching by event time, lengths in int nanoseconds."""

    window: int
    """Longest event-time distance between the first and the last message of a batch; 0 keeps equal times only."""
    max_delay: int  # how much later than its event time a message may be received
    max_lead: int  # how far ahead of its receive time an event time may be
    on_conflict: OnConflict
    """The effect of a second event time of a stream on the window: ``"split"`` cuts the window there and opens the next
    one (message batching, UC3); ``"replace"`` leaves the window uncut and keeps the newest event time of each stream;
    ``"isolate"`` cuts the window there and puts all messages of that event time into a batch of their own; ``"keep"``
    leaves the window uncut and keeps all messages.
    """
    gap: int | None = None
    """Longest event-time distance between a message of a batch and the next one; None: as long as the window."""
    boundaries: tuple[str, ...] = ()  # names of the streams, in order, whose messages cut windows

    @property
    def silence(self) -> int:
        """Longest silence within a window, ns: at most the window's length."""
        return self.window if self.gap is None else min(self.gap, self.window)

    @property
    def lengths(self) -> dict[str, int]:
        """The options that are lengths, by name, ns."""
        lengths = {"window": self.window, "max_delay": self.max_delay, "max_lead": self.max_lead}
        return lengths if self.gap is None else lengths | {"gap": self.gap}

    @property
    def text(self) -> str:
        """The options as a user reads them: ``window = 500ms, max_delay = 2s, …``."""
        named = [f"{name} = {format_duration(ns)}" for name, ns in self.lengths.items()]
        named.append(f"on_conflict = {self.on_conflict}")
        return ", ".join([*named, f"boundaries = {list(self.boundaries)}"] if self.boundaries else named)

    @classmethod
    def checked(
        cls,
        window: Duration,
        max_delay: Duration,
        max_lead: Duration = 0,
        on_conflict: OnConflict | None = None,
        gap: Duration | None = None,
        boundaries: Iterable[str] | None = None,
    ) -> EventTimeRule:
        """Read the options as users write them.

        Raises
        ------
        InvalidArgumentError
            Naming the option and its value, for a length that is negative, no whole number of nanoseconds or beyond
            int64, for an unknown ``on_conflict``, and unless ``boundaries`` are names.
        """
        known = get_args(OnConflict)
        if on_conflict is None:
            on_conflict = "split" if gap is None else "keep"
        if on_conflict not in known:
            raise InvalidArgumentError(f"on_conflict must be one of {', '.join(known)}, got {quoted(on_conflict)}")
        return cls(
            to_duration(window, "window"),
            to_duration(max_delay, "max_delay"),
            to_duration(max_lead, "max_lead"),
            on_conflict,
            None if gap is None else to_duration(gap, "gap"),
            tuple(sorted(set(stream_names(() if boundaries is None else boundaries, "boundaries")))),
        )
