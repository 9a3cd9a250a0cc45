"""Finds long-running transactions. They slow the server down, because it keeps all row versions since they began."""

from __future__ import annotations

from dataclasses import dataclass

from waterclock._support.quoting import quoted
from waterclock.database.backend import Backend
from waterclock.errors import ForbiddenError
from waterclock.time import format_duration

LONG = 300  # seconds after which an open transaction is named: shorter ones do little harm, and most reports end sooner

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A transaction that has been open for long."""

    process: int  # number of the server's process or thread that runs it; 0: none, because it is prepared
    seconds: int  # for how long it has been open
    user: str | None
    program: str | None  # or the name of a prepared transaction

    def __str__(self) -> str:
        holder, named = (f"process {self.process}", "program") if self.process else ("prepared transaction", "name")
        who = "".join(
            f", {name} {quoted(value)}" for name, value in (("user", self.user), (named, self.program)) if value
        )
        return f"{holder}{who}: open for {format_duration(self.seconds * _NS)}"


def held_snapshots(backend: Backend, longest: int | None = None) -> list[HeldSnapshot] | None:
    """List the transactions that have been open for longer, in seconds, the oldest first; None without a server.

    Raises `ForbiddenError` if the server does not show them to this user.

    ``longest`` is in seconds; None: `LONG`.
    """
    question = backend.dialect.long_transactions
    if question is None:
        return None
    values = {"longest": LONG if longest is None else longest}
    with backend.snapshot() as connection:
        rows = connection.execute(question, values).all()
    shown = [HeldSnapshot(*row) for row in rows if row.seconds is not None]
    if rows and not shown:
        raise ForbiddenError(
            "the server does not show the transactions of other users. Grant the role pg_read_all_stats to the user of"
            " this URL"
        )
    return shown
