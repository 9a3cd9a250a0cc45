"""The catalogue of upkeep: the tasks of each topic and message table, when each last ran, and which process runs it."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, LongText, Name, key_part

Kind = Literal["topic", "table"]

upkeep = sa.Table(
    "waterclock_upkeep",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True, doc="`topic` or `table`."),
    key_part("name", Name, doc="Name of the topic or message table."),
    sa.Column("task", sa.String(16), primary_key=True, doc="`seal`, `compact`, `purge`, `release` or `tick`."),
    sa.Column("owner", Name, doc="The process that runs the task; NULL: no process."),
    sa.Column("lease_until", BigInt, doc="Until when no other process may start the task, ns; NULL: not running."),
    sa.Column("ran_at", BigInt, doc="When the task last ended, ns; NULL: it never ran."),
    sa.Column("took", BigInt, doc="How long the last run took, ns."),
    sa.Column(
        "did", BigInt, doc="How many ledgers, files, messages or groups the last run processed; NULL: the run failed."
    ),
    sa.Column("error", LongText, doc="The error of the last failure; NULL: no failure yet."),
)
"""One row for each task of upkeep of each topic and message table."""


def forget_upkeep(connection: sa.Connection, kind: Kind, name: str) -> None:
    """Delete the rows of a topic or table that is removed."""
    connection.execute(sa.delete(upkeep).where(upkeep.c.kind == kind, upkeep.c.name == name))


def rename_upkeep(connection: sa.Connection, kind: Kind, name: str, new_name: str) -> None:
    """Rename the rows of a topic or table, and end the leases of runners, which know the old name."""
    forget_upkeep(connection, kind, new_name)  # a runner may have added a topic of that name just after its removal
    renamed = sa.update(upkeep).where(upkeep.c.kind == kind, upkeep.c.name == name)
    connection.execute(renamed.values(name=new_name, owner=None, lease_until=None))
