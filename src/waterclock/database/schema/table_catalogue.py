"""The catalogue of message tables: their options, totals and groups."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, Key, LongText, Name, key_part, required

message_tables = sa.Table(
    "waterclock_message_tables",
    metadata,
    sa.Column("table_id", Key, primary_key=True, doc="The message table's id in the other tables."),
    sa.Column(
        "name", Name, nullable=False, unique=True, doc="Name of the table, and of the SQL table with its messages."
    ),
    required("options", LongText, doc="The options, as JSON; durations in ns."),
    required("revision", BigInt, doc="Increases with each change of the options."),
    sa.Column(
        "paused_until", BigInt, doc="No message is delivered before this time, ns; NULL: the table is not paused."
    ),
    required("time_created", BigInt, doc="When the table was created, ns."),
    sa.Column(
        "bounds",
        LongText,
        doc="Starting points of searches, as JSON: the `seq` of the first message that may need a place in its group,"
        " and for each priority the time of the first group, or message without a group, that may be due; NULL: at"
        " the start. Also when all messages of groups were last checked.",
    ),
    sqlite_autoincrement=True,  # by its id an open table notices that it was dropped and created again
)
"""One row for each message table. The messages are in the SQL table of that name."""

totals = sa.Table(
    "waterclock_table_totals",
    metadata,
    key_part("table_id", BigInt, doc="The message table."),
    required("purged", BigInt, doc="Messages that were purged."),
    required(
        "sent",
        BigInt,
        doc="Deliveries that the rows do not count, because a row was removed or its epoch was set back.",
    ),
    required("rate_next", BigInt, doc="When the next message may be delivered under the `rate_limit`, ns."),
)
"""One row for each message table: totals that its messages' rows do not show.

Separate from `message_tables`, because a claim under a rate limit locks its row here until it commits.
"""


def _is_not_postgresql(*_: object, dialect: sa.Dialect, **__: object) -> bool:
    return dialect.name != "postgresql"


def _index_of(name: str, where: str, *columns: str) -> sa.Index:
    """Create an index of some groups; of all on MariaDB, which has no partial indexes."""
    some = sa.text(where)
    return sa.Index(f"waterclock_groups_{name}_idx", *columns, postgresql_where=some, sqlite_where=some)


groups = sa.Table(
    "waterclock_groups",
    metadata,
    sa.Column("table_id", BigInt, nullable=False, autoincrement=False, doc="The message table."),
    required("group_id", Name, doc="The group; empty for messages that name no group."),
    sa.Column("head", BigInt, doc="Position of the first unacked message; NULL: no unacked messages."),
    sa.Column(
        "next_position",
        BigInt,
        doc="Position of the next message to deliver. In a sequenced group, the same as `head`. NULL: no such message.",
    ),
    sa.Column(
        "closes_after",
        BigInt,
        doc="Position of the first unacked message with `closes_group`. Once all messages up to it are acked, the"
        " group is released. NULL: no such message.",
    ),
    required("tail", BigInt, doc="Position of the last message that has a place in the group."),
    required("priority", sa.Integer, doc="Priority of the head."),
    sa.Column(
        "ready_at",
        BigInt,
        doc="When the group next has a message to deliver, or the lease of one of its messages ends, ns; NULL: not"
        " until a message is put or changed.",
    ),
    sa.Column(
        "assigned",
        Name,
        nullable=False,
        server_default="",
        doc="The only consumer that may have the group; empty: any consumer.",
    ),
    sa.Column(
        "drain_to",
        Name,
        doc="The consumer that gets the group as soon as none of its messages is leased; NULL: the group stays.",
    ),
    required("pinned", sa.SmallInteger, "0", doc="1 if an operator pinned the group, otherwise 0."),
    sa.Column(
        "paused_until", BigInt, doc="No message of the group is delivered before this time, ns; NULL: not paused."
    ),
    sa.Column(
        "had_by", Name, doc="The consumer that last got a message of the exclusive group; NULL: no consumer yet."
    ),
    sa.Column("had_in", BigInt, doc="The session of that consumer."),
    sa.Column("had_first", BigInt, doc="Position of the first message of the group that this consumer got."),
    sa.Column(
        "idle_since",
        BigInt,
        doc="Since when the exclusive group of a consumer has had no messages, ns; NULL: it has messages.",
    ),
    sa.Column(
        "ended_at",
        BigInt,
        doc="On PostgreSQL, when a group without owner, pause and pin lost its last message, ns. The row is deleted"
        " some minutes later. NULL while the group has messages.",
    ),
    required(
        "first_seq",
        BigInt,
        "0",
        doc="`seq` of the message that began the group, even after its ack. Groups that are due at the same time are"
        " delivered in this order.",
    ),
    # No unique index on PostgreSQL. Each claim and each ack writes a new version of a row, and to enter it into a
    # unique index the server reads all earlier versions of the key: thousands, while a transaction holds an old
    # snapshot. Whoever adds a group holds the turn to route, and checks first whether it exists.
    sa.PrimaryKeyConstraint("table_id", "group_id").ddl_if(callable_=_is_not_postgresql),
    # By an expression: a planner without statistics may think any index with the table's id as good as that of the
    # groups that are due, and would scan all groups of the table. Without deduplication: a search marks the entry of a
    # row that no snapshot shows, and later ones skip it, but an entry of several rows only once none of them is shown.
    sa.Index(
        "waterclock_groups_key_idx", sa.text("(table_id + 0)"), "group_id", postgresql_with={"deduplicate_items": "off"}
    ).ddl_if(dialect="postgresql"),
    # Partial indexes: a planner that believes the catalogue empty, as it was when analyzed, thinks any index with the
    # table's id as good as the key, and would scan all groups for one. Groups that are due together are ordered by
    # their beginning: their messages are stored together, unlike those of neighbours by name.
    _index_of("due", "ready_at IS NOT NULL", "assigned", "table_id", "priority", "ready_at", "first_seq"),
    _index_of("assigned", "assigned <> ''", "assigned", "table_id", "group_id"),
    _index_of("draining", "drain_to IS NOT NULL", "drain_to", "table_id"),
    _index_of("unused", "idle_since IS NOT NULL", "idle_since", "table_id"),
    _index_of("ended", "ended_at IS NOT NULL", "table_id", "ended_at").ddl_if(dialect="postgresql"),
    # For monitoring. MariaDB would have to update it at each claim; there the index of due groups has these, too.
    _index_of("blocked", "ready_at IS NULL AND head IS NOT NULL", "table_id").ddl_if(
        callable_=lambda *_, dialect, **__: dialect.name in ("postgresql", "sqlite")
    ),
)
"""One row for each group that has, or recently had, messages or an owner: when its next message is due, and which
consumer may get it."""

LEASE_SLOT_BITS = 33  # leases that end within the same 8.6 s have the same slot: most renewals leave it as it is

consumers = sa.Table(
    "waterclock_consumers",
    metadata,
    key_part("table_id", BigInt, doc="The message table."),
    key_part("name", Name, doc="The consumer."),
    required("session", BigInt, doc="Number of the process that uses the name."),
    required(
        "lease_until",
        BigInt,
        doc="If no heartbeat comes before this time, ns, other consumers get the consumer's groups.",
    ),
    sa.Column("max_groups", BigInt, doc="The maximum number of groups of the consumer; NULL: unlimited."),
    sa.Column(
        "lease_slot",
        BigInt,
        sa.Computed(f"lease_until >> {LEASE_SLOT_BITS}", persisted=True),
        doc=f"`lease_until` in units of 2^{LEASE_SLOT_BITS} ns, for the index.",
    ),
    # Not lease_until: each claim changes that, and PostgreSQL would enter the row into all indexes again. So a row was
    # found among thousands of dead entries while a transaction held an old snapshot.
    sa.Index("waterclock_consumers_lease_idx", "table_id", "lease_slot"),
)
"""One row for each live consumer of a table with exclusive groups."""

heartbeats = sa.Table(
    "waterclock_heartbeats",
    metadata,
    key_part("table_id", BigInt, doc="The message table."),
    key_part("session", BigInt, doc="Number of the process."),
    required("subscribers", BigInt, doc="The number of open subscriptions."),
    required("sent", BigInt, doc="Messages that the process took in the minute before `beat_at`."),
    required(
        "beat_at",
        BigInt,
        doc="When the process wrote the row, ns. A row older than half a minute does not count.",
    ),
    required("failing", BigInt, "0", doc="The number of subscriptions whose claims fail."),
    sa.Column("failure", LongText, doc="The error of one subscription whose claims fail; NULL: all claims succeed."),
    required("stuck", BigInt, "0", doc="The number of handlers that are still running after their time limit."),
    sa.Column("handlers", LongText, doc="The longest-running handlers, as JSON; NULL: no handler is running."),
)
"""One row for each process that takes messages from a table: its last heartbeat."""

LOWEST = -(2**63) + 1
"""A bound below all leased messages. SQL has no literal for the lowest integer."""

message_keys = sa.Table(
    "waterclock_message_keys",
    metadata,
    sa.Column("table_id", BigInt, nullable=False, autoincrement=False, doc="The message table."),
    required("message_key", Name, doc="The key; empty for messages without one."),
    sa.Column(
        "level",
        BigInt,
        nullable=False,
        autoincrement=False,
        doc="The negated priority of the messages.",
    ),
    required(
        "tier",
        BigInt,
        doc="Keys in a lower tier have their turns first. 0 with `fair_by`, otherwise `level`, so that the highest"
        " priority comes first.",
    ),
    required(
        "is_due",
        sa.SmallInteger,
        doc="1: the key waits for its turn. 0: the key is due at `due_at`. 2: its `rate` is used up until `due_at`. 3:"
        " it had no messages at `due_at`, and the row will be deleted (PostgreSQL only). 4: another row of the key"
        " waits for the turn (`fair_by` only).",
    ),
    required("due_at", BigInt, doc="If `is_due` is 0 or 2, no message of the key is delivered before this time, ns."),
    required("first_at", BigInt, doc="No unacked message of the key with `routed` = 1 has an earlier `time_next`, ns."),
    required(
        "gap_from",
        BigInt,
        doc="No unacked message of the key with `routed` = 1 has a `time_next` between this time and `gap_to`, ns.",
    ),
    required("gap_to", BigInt, doc="The end of the gap that begins at `gap_from`, ns."),
    required("turn", BigInt, doc="Due keys take turns in this order."),
    required(
        "leased_from",
        BigInt,
        str(LOWEST),
        doc="The leases of messages of the key with `routed` = 1 do not end earlier, ns.",
    ),
    required(
        "leased_seq", BigInt, str(LOWEST), doc="Leased messages of the key with `routed` = 1 have no lower `seq`."
    ),
    required(
        "rate_next",
        BigInt,
        "0",
        doc="When the next message may be delivered under the `rate`, ns. The latest of the key's rows applies.",
    ),
    required(
        "had",
        sa.SmallInteger,
        "0",
        doc="Messages that the key has had in its current turn, if its weight allows more.",
    ),
    # No unique index on PostgreSQL, as for groups: only the consumer that holds the turn to route adds rows.
    sa.PrimaryKeyConstraint("table_id", "message_key", "level").ddl_if(callable_=_is_not_postgresql),
    sa.Index(
        "waterclock_message_keys_key_idx",
        sa.text("(table_id + 0)"),
        "message_key",
        "level",
        postgresql_with={"deduplicate_items": "off"},
    ).ddl_if(dialect="postgresql"),
    # Not from table_id on: a planner that believes the catalogue empty, as it was when analyzed, would think such an
    # index as good as the key, and would read all rows of the table for one.
    # Each of some rows: a planner that believes there are few would take either index for both searches.
    sa.Index(
        "waterclock_message_keys_turn_idx", "is_due", "table_id", "tier", "turn", sqlite_where=sa.text("is_due = 1")
    ).ddl_if(callable_=_is_not_postgresql),
    # PostgreSQL drops conditions that follow from that of the index. With is_due as the first column, it would search
    # from no place on, and so read the whole index. For a key, it uses no index with this condition.
    sa.Index(
        "waterclock_message_keys_next_idx", "table_id", "tier", "turn", postgresql_where=sa.text("is_due = 1")
    ).ddl_if(dialect="postgresql"),
    sa.Index(
        "waterclock_message_keys_due_idx",
        *("is_due", "table_id", "due_at"),
        postgresql_where=sa.text("is_due <> 1"),
        sqlite_where=sa.text("is_due <> 1"),
    ),
)
"""One row for each key and priority with unacked messages or a used rate, in tables with `limit`, `rate` or
`fair_by`.
"""

USED_SLOT_BITS = 40
"""Uses of a key within the same 18 minutes have the same slot: most puts leave it as it is."""

unique_keys = sa.Table(
    "waterclock_unique_keys",
    metadata,
    key_part("table_id", BigInt, doc="The message table."),
    key_part("unique_key", Name, doc="The key that was passed as `put(unique=)`."),
    sa.Column(
        "message_id", Name, doc="Id of the last message that was put with the key, as text; NULL: no message yet."
    ),
    required(
        "until_done",
        sa.SmallInteger,
        doc="1: the message keeps the key until it is acked or dead. 0: until it is claimed.",
    ),
    required("used_at", BigInt, doc="When a producer last used the key, or a purge last kept it, ns."),
    sa.Column(
        "used_slot",
        BigInt,
        sa.Computed(f"used_at >> {USED_SLOT_BITS}", persisted=True),
        doc=f"`used_at` in units of 2^{USED_SLOT_BITS} ns, for the index.",
    ),
    # Not used_at, as for consumers: before an entry of another version of a row goes into the primary key, the server
    # reads all versions of the row that an old snapshot shows.
    sa.Index("waterclock_unique_keys_used_idx", "used_slot", "table_id"),
)
"""One row for each unique key. A put with the key locks the row.

Whether the message still has its key follows from its own row, so that claims, acks and plain SQL need not use this
table.
"""

schedules = sa.Table(
    "waterclock_schedules",
    metadata,
    key_part("table_id", BigInt, doc="The message table."),
    key_part("name", Name, doc="Name of the schedule in its table."),
    required("cron", LongText, doc="When the schedule ticks: minute, hour, day, month, weekday."),
    required("timezone", Name, doc="The time zone of `cron`."),
    required("message", LongText, doc="The message to put, as JSON; a payload of bytes in base64."),
    required("catch_up", Name, doc="Which missed ticks are caught up: none, one or all."),
    sa.Column("within", BigInt, doc="The maximum age of a missed tick that is caught up, ns; NULL: any age."),
    required("overlap", Name, doc="`run`; or `skip`: ticks put nothing while the last message is unacked."),
    required("paused", sa.SmallInteger, doc="1 if the schedule is paused, otherwise 0."),
    required("seen_until", BigInt, doc="The time up to which ticks have been processed, ns."),
    sa.Column("last_tick", BigInt, doc="The last tick for which a message was put, ns; NULL: no such tick."),
    sa.Column("next_tick", BigInt, doc="The next tick, ns; NULL: the schedule is paused or has no more ticks."),
    sa.Column("last_id", Name, doc="Id of the last message, as text; NULL: no message yet."),
    sa.Column("history", LongText, doc="The last ten ticks with their outcomes, as JSON; NULL: no ticks yet."),
)
"""One row for each schedule. The process that puts a tick's message locks the row."""
