"""The catalogue of message tables: their options, their totals, and the state of their groups."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.catalogue import metadata
from waterclock.database.types import BigInt, Key, LongText, Name

message_tables = sa.Table(
    "waterclock_message_tables",
    metadata,
    sa.Column("table_id", Key, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("options", LongText, nullable=False),  # JSON, durations in ns
    sa.Column("revision", BigInt, nullable=False),  # grows with every change of the options
    sa.Column("paused_until", BigInt),  # ns; no message is sent before then
    sa.Column("time_created", BigInt, nullable=False),
)
"""One row for each message table. The messages are in the SQL table of that name."""

totals = sa.Table(
    "waterclock_table_totals",
    metadata,
    sa.Column("table_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("purged", BigInt, nullable=False),  # messages that were purged
    sa.Column("sent", BigInt, nullable=False),  # deliveries that the rows do not tell (any more), see tables/totals.py
    sa.Column("rate_next", BigInt, nullable=False),  # ns: when the next message was due at a steady rate_limit
)
"""One row for each message table: what its rows do not tell.

Apart from the entry in `message_tables`, because a claim under a rate limit holds its row here until it commits.
"""


def _index_of(name: str, where: str, *columns: str) -> sa.Index:
    """Index some of the groups; all of them on MySQL and MariaDB, which have no such indexes."""
    some = sa.text(where)
    return sa.Index(f"waterclock_groups_{name}_idx", *columns, postgresql_where=some, sqlite_where=some)


groups = sa.Table(
    "waterclock_groups",
    metadata,
    sa.Column("table_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("group_id", Name, primary_key=True),  # "" is the group of messages that name none
    sa.Column("head", BigInt),  # position of the first message that is not acked
    sa.Column("next_position", BigInt),  # of the first message that nobody has
    sa.Column("tail", BigInt, nullable=False),  # position of the last message that was routed here
    sa.Column("priority", sa.Integer, nullable=False),  # the head's
    sa.Column("ready_at", BigInt),  # ns: when there is something to hand out, or a lease ends; NULL: never by itself
    sa.Column("assigned", Name, nullable=False, server_default=""),  # who alone may have the group; "": anybody
    sa.Column("drain_to", Name),  # who it is assigned to as soon as nothing of it is out; NULL: it stays
    sa.Column("pinned", sa.SmallInteger, nullable=False, server_default="0"),  # 1: assigned by hand
    sa.Column("paused_until", BigInt),  # ns
    sa.Column("idle_since", BigInt),  # ns; NULL while it has messages
    sa.Column("came", BigInt, nullable=False, server_default="0"),  # seq of the message that began it
    # Each holds only the groups that it is for: a planner that takes the catalogue for empty, as it was when analysed,
    # thinks any index with the table's number as good as the key, and would go through all groups for one.
    # Groups that are due together go as they came: their messages lie together, unlike those of neighbours by name.
    _index_of("due", "ready_at IS NOT NULL", "assigned", "table_id", "priority", "ready_at", "came"),
    _index_of("assigned", "assigned <> ''", "assigned", "table_id", "group_id"),
    _index_of("unused", "idle_since IS NOT NULL", "idle_since", "table_id"),
)
"""One row for each group that has messages, or an owner: when it may be handed out next, and to whom."""

consumers = sa.Table(
    "waterclock_consumers",
    metadata,
    sa.Column("table_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("name", Name, primary_key=True),
    sa.Column("session", BigInt, nullable=False),  # the process that goes by the name
    sa.Column("lease_until", BigInt, nullable=False),  # ns: without a sign of life until then its groups go to others
    sa.Column("max_groups", BigInt),  # how many it takes at the most
    sa.Index("waterclock_consumers_lease_idx", "table_id", "lease_until"),
)
"""One row for each consumer of a table with exclusive groups that lives."""

attendance = sa.Table(
    "waterclock_attendance",
    metadata,
    sa.Column("table_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("session", BigInt, primary_key=True, autoincrement=False),  # the process
    sa.Column("subscribers", BigInt, nullable=False),  # subscriptions that it has open
    sa.Column("sent", BigInt, nullable=False),  # messages that it took in the minute before told_at
    sa.Column("told_at", BigInt, nullable=False),  # ns; a row that is not told anew counts only for a while
)
"""One row for each process that takes messages from a table, as it told last; see tables/attendance.py."""
