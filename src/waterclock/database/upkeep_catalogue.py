"""The catalogue of upkeep: what ran when, for which topic or message table, and who is at it."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.catalogue import metadata
from waterclock.database.types import BigInt, LongText, Name

upkeep = sa.Table(
    "waterclock_upkeep",
    metadata,
    sa.Column("kind", sa.String(16), primary_key=True, doc="`topic` or `table`."),
    sa.Column("name", Name, primary_key=True, doc="Name of the topic or message table."),
    sa.Column("task", sa.String(16), primary_key=True, doc="`seal`, `compact`, `purge`, `release` or `tick`."),
    sa.Column("owner", Name, doc="The runner that is at it; NULL: none."),
    sa.Column("lease_until", BigInt, doc="Until when no other runner begins it, ns; NULL: none is at it."),
    sa.Column("ran_at", BigInt, doc="When it ended last, ns; NULL: it never ran."),
    sa.Column("took", BigInt, doc="How long that took, ns."),
    sa.Column("did", BigInt, doc="How many ledgers, files, messages or groups it dealt with; NULL: it failed."),
    sa.Column("error", LongText, doc="Why it failed last; NULL: it did not."),
)
"""One row for each task of upkeep of each topic and message table."""
