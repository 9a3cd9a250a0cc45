"""Lists and changes the schedules of a message table, for operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import explaining
from waterclock.tables.messages.putting import scheduling
from waterclock.tables.messages.putting.putting import MessageId
from waterclock.tables.messages.putting.scheduling import Schedule, check_name
from waterclock.tables.model.values.arguments import many

_T = TypeVar("_T")


class MessageSchedules:
    """The schedules of one message table; calling it lists them. Each is in the database of its table or shard.

    Parameters
    ----------
    home
        Returns the table in the database of a schedule, by its name.
    everywhere
        Returns the table in each of its databases.
    """

    def __init__(self, home: Callable[[str], TableContext], everywhere: Callable[[], Sequence[TableContext]]) -> None:
        self._home = home
        self._everywhere = everywhere

    def __call__(self) -> list[Schedule]:
        """Return the table's schedules by name."""
        found: list[Schedule] = []
        for context in self._everywhere():
            with explaining(context):
                found += scheduling.list_schedules(context)
        return sorted(found, key=lambda one: one.name)

    def pause(self, name: str) -> None:
        """Pause a schedule until it is resumed; NotFoundError if missing."""
        self._on_home(name, lambda context: scheduling.pause_schedule(context, name, paused=True))

    def resume(self, name: str) -> None:
        """Resume a schedule with the next tick; NotFoundError if missing."""
        self._on_home(name, lambda context: scheduling.pause_schedule(context, name, paused=False))

    def reset(self, name: str) -> None:
        """Restart a schedule with the next tick, after the database's clock was ahead and has been set back.

        Raises
        ------
        NotFoundError
            If missing.
        """
        self._on_home(name, lambda context: scheduling.reset_schedule(context, name))

    def run(self, name: str) -> MessageId:
        """Put a schedule's message now, in addition to its ticks; return the id. NotFoundError if missing."""
        return self._on_home(name, lambda context: scheduling.run_schedule(context, name))

    def keep(self, names: Iterable[str]) -> list[str]:
        """Remove all schedules of the table except these; return the removed ones."""
        kept = [check_name(name) for name in many("names", names, "names")]
        removed: list[str] = []
        for context in self._everywhere():
            with explaining(context):
                removed += scheduling.keep_schedules(context, kept)
        return sorted(removed)

    def _on_home(self, name: str, work: Callable[[TableContext], _T]) -> _T:
        context = self._home(check_name(name))
        with explaining(context):
            return work(context)
