"""The catalogue of message tables: their options, and the state of their groups."""

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

groups = sa.Table(
    "waterclock_groups",
    metadata,
    sa.Column("table_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("group_id", Name, primary_key=True),  # "" is the group of messages that name none
    sa.Column("head", BigInt),  # position of the first message that is not acked
    sa.Column("tail", BigInt, nullable=False),  # position of the last message that was routed here
    sa.Column("priority", sa.Integer, nullable=False),  # the head's
    sa.Column("ready_at", BigInt),  # ns: the head's due time when nobody has the group, else the end of its lease
    sa.Column("owner", Name),  # the consumer that has the group, or had it last
    sa.Column("token", BigInt),  # fences the owner's acks; NULL when nobody has the group
    sa.Index("waterclock_groups_table_id_idx", "table_id", "priority", "ready_at", "group_id"),
)
"""One row for each group that has messages: who has it, and when it may be handed out next."""
