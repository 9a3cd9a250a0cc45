"""Appends the messages of an inbox, in one thread. Retries while the database is unavailable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError
from waterclock.ingest.inbox import Inbox, Receivable
from waterclock.ingest.progress import Event, IngestProgress, Tell
from waterclock.ingest.storing.append_plan import Stored
from waterclock.ingest.stream_lags import StreamLags

_APPEND_PATIENCE = 5.0
"""Seconds after which an append is abandoned and retried, and so the maximum delay of a stop if the database is
unavailable.
"""

_FIRST_PAUSE = 0.2  # s
_LONGEST_PAUSE = 5.0

_LOOK_AT_LAGS_EVERY = 10.0


T = TypeVar("T", bound=Receivable)


class Appender(Generic[T]):
    """Appends the messages of an inbox until it is closed.

    Parameters
    ----------
    backend
        The database.
    inbox
        The messages.
    append
        Appends some of them; after an UnavailableError it is called again with the same ones.
    progress, tell
        The counts, and the function that receives events.
    """

    def __init__(
        self,
        backend: Backend,
        inbox: Inbox[T],
        append: Callable[[Sequence[T]], Stored],
        progress: IngestProgress,
        tell: Tell,
    ) -> None:
        self.lags = StreamLags()
        self._backend = backend
        self._inbox = inbox
        self._append = append
        self._progress = progress
        self._tell = tell
        self._wishes_stop = False
        self._look_at_lags = moments.monotonic() + _LOOK_AT_LAGS_EVERY

    def stop(self) -> None:
        """Abandon an append that fails because the database is unavailable."""
        self._wishes_stop = True

    def run(self) -> None:
        """Append until the inbox is closed and empty, or until it must stop while the database is unavailable."""
        while batch := self._inbox.take():
            stored = self._append_patiently(batch)
            if stored is None:
                return
            self._note(stored, len(batch))

    def report_lags(self) -> None:
        """Report streams that have become late or are ahead, if a check is due."""
        if moments.monotonic() >= self._look_at_lags:
            self._look_at_lags = moments.monotonic() + _LOOK_AT_LAGS_EVERY
            for name, text in self.lags.look():
                self._tell(Event(name, text, is_warning=True))

    def _append_patiently(self, batch: Sequence[T]) -> Stored | None:
        pause = _FIRST_PAUSE
        while True:
            try:
                with self._backend.patience(_APPEND_PATIENCE):
                    return self._append(batch)
            except UnavailableError as error:
                if not self._progress.is_database_away:
                    self._progress.is_database_away = True
                    self._tell(Event("database_away", f"cannot append messages, retrying: {error}", is_warning=True))
                if self._wishes_stop:
                    return None
                moments.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _note(self, stored: Stored, received: int) -> None:
        progress = self._progress
        if progress.is_database_away:
            progress.is_database_away = False
            self._tell(Event("database_back", "appends again"))
        progress.appended += stored.appended
        progress.appends += bool(stored.appended or stored.dead)
        progress.dead += stored.dead
        progress.repeats += stored.repeats
        progress.skipped += stored.skipped
        self.lags.note(stored.lags)
        if stored.dead:
            text = f"{stored.dead} of {received} messages became dead letters, the last one: {stored.last_reason}"
            self._tell(Event("dead_letter", text, {"messages": stored.dead}, is_warning=True))
        if stored.rejected:
            text = f"the topic rejected {stored.rejected} messages whose times are too far ahead"
            self._tell(Event("rejected", text, {"messages": stored.rejected}, is_warning=True))
