"""The SQL table behind a message table: the columns that *Vitess Messaging* has, our own, and the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.cache_key import NO_CACHE
from sqlalchemy.types import TypeEngine

from waterclock._support.quoting import quoted
from waterclock.database.engines.explicit_updates import EXPLICIT
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.types import BigInt, Key, LongText, Name, required
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.tables.model.column_types import COLUMN_TYPES, ID_TYPES, LOSSY_JSON, PAYLOADS
from waterclock.tables.model.options import IdType, Payload, TableOptions
from waterclock.tables.model.values.key_names import GROUP, KeySource
from waterclock.tables.model.values.reading import Guarded
from waterclock.tables.model.values.reflected_types import reflected_columns

IdItem = sa.Identity | sa.DefaultClause  # column options by which a database generates ids

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_OURS = "waterclock_"
_RESERVED = (_OURS, "sqlite_", "pg_")


def check_table_name(name: object) -> str:
    """Return the name if it is a valid message table name; raise InvalidArgumentError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower().startswith(_RESERVED):
        raise InvalidArgumentError(
            "name must consist of at most 48 letters, digits and underscores, not starting with a digit or with"
            f" {', '.join(_RESERVED)}, got {quoted(name)}"
        )
    return name


def user_columns(columns: Mapping[str, object] | None) -> list[sa.Column[Any]]:
    """Build columns from a user's dict: names, each with one of our type names or a SQLAlchemy type."""
    made: list[sa.Column[Any]] = []
    for name, kind in (columns or {}).items():
        if not _NAME.fullmatch(str(name)) or name in OWN_COLUMNS or is_reserved(name):
            raise InvalidArgumentError(
                f"columns must have valid names that Waterclock does not use itself, got {quoted(name)}"
            )
        column_type = COLUMN_TYPES.get(kind) if isinstance(kind, str) else kind
        if not isinstance(column_type, TypeEngine) and not (
            isinstance(column_type, type) and issubclass(column_type, TypeEngine)
        ):
            raise InvalidArgumentError(
                f"columns: the type of {quoted(name)} must be one of {', '.join(COLUMN_TYPES)} or a SQLAlchemy type,"
                f" got {quoted(kind)}"
            )
        made.append(sa.Column(name, column_type))
    return made


FURTHEST = 2**61
"""The maximum distance of a position from the first: values that claims compute from positions must be bigints."""


def message_rows(
    name: str, id_type: IdType, payload: Payload, columns: Sequence[sa.Column[Any]], id_items: Sequence[IdItem] = ()
) -> sa.Table:
    """Return the SQL table of a message table.

    The first seven columns are those of *Vitess Messaging* ("Creating a message table"), with its meaning. Times are in
    ns.
    """
    return sa.Table(
        name,
        sa.MetaData(),
        sa.Column("time_scheduled", BigInt, doc="When to deliver the message for the first time, ns."),
        sa.Column("id", ID_TYPES[id_type], *id_items, unique=True, doc="The message's unique id."),
        sa.Column(
            "time_next",
            BigInt,
            doc="When the message is delivered next, ns. While a consumer has the message: the end of the lease. NULL"
            " once acked.",
        ),
        required("epoch", BigInt, "0", doc="How many times the message has been delivered."),
        sa.Column("time_created", BigInt, doc="When the message was put, ns."),
        sa.Column("time_acked", BigInt, doc="When the message was acked, ns; NULL: not acked."),
        sa.Column("message", PAYLOADS[payload], doc="The payload."),
        required("priority", sa.Integer, "0", doc="Messages with a higher priority are delivered first."),
        sa.Column("group_id", Name, doc="The message's group; NULL: the put named no group."),
        sa.Column("headers", LongText, doc="The headers: a JSON object of strings; NULL: no headers."),
        sa.Column("last_error", LongText, doc="The error of the last failure; NULL: no failure yet."),
        sa.Column(
            "failed_attempts",
            LongText,
            doc="The last failed attempts, as a JSON array of [epoch, claimed at (ns), duration (ns), consumer,"
            " outcome, error]; NULL: no failed attempts.",
        ),
        sa.Column("saved_progress", LongText, doc="The progress that handlers saved, as JSON; NULL: nothing saved."),
        # An identity, if the database has them, because a role with INSERT may then use its numbers.
        sa.Column("seq", Key, sa.Identity(), primary_key=True, doc="The order of insertion."),
        sa.Column(
            "claim_id",
            BigInt,
            doc="The number of the claim that has the message; NULL: no consumer has it. The number stays after the"
            " lease has ended, until the next claim, and after an ack by plain SQL.",
        ),
        sa.Column("consumer", Name, doc="The consumer that has the message, or had it last."),
        sa.Column(
            "position",
            BigInt,
            sa.CheckConstraint(f"position BETWEEN {-FURTHEST} AND {FURTHEST}"),
            doc="The message's place in its group; NULL: not yet assigned.",
        ),
        required(
            "routed",
            sa.SmallInteger,
            "0",
            doc="In a table with groups or keys: 1 once a consumer has assigned the message's place or recorded its"
            " key; 0 before, and after a later change of the message's time, priority, group or key (on PostgreSQL, at"
            " least 2 after such a change). In a table without groups: 2 if the message was put or changed with a time"
            " in the past.",
        ),
        sa.Column(
            "ack_held_at",
            BigInt,
            doc="When the message was acked, ns, if the ack is held back until all earlier messages are acked;"
            " otherwise NULL.",
        ),
        sa.Column(
            "acked_by",
            BigInt,
            doc="The number of the claim whose delivery acked the message, even while the ack is held back. 0: the"
            " message expired or was cancelled before a consumer handled it. NULL: not acked, or acked by id or by"
            " plain SQL.",
        ),
        required(
            "closes_group",
            sa.SmallInteger,
            "0",
            doc="1 if the message is the last of its exclusive group, otherwise 0. Only an INSERT sets it.",
        ),
        sa.Column(
            "expires_at",
            BigInt,
            doc="When the message expires, ns; NULL: never. An expired message is not delivered; a consumer that"
            " already has it keeps it. The smallest bigint: the message was cancelled.",
        ),
        *columns,
        sqlite_autoincrement=True,
    )


OWN_COLUMNS = tuple(column.name for column in message_rows("t", "bigint", "bytes", []).columns)
"""The names of the first columns of every message table."""

DOCUMENT_COLUMNS = OWN_COLUMNS[:7]  # those that *Vitess Messaging* defines

REASON, SOURCE, DIED, ORDER = "dead_reason", "dead_source", "time_died", "dead_seq"

DEAD_COLUMNS = {REASON: "text", SOURCE: "text", DIED: "bigint", ORDER: "bigint"}
"""The additional columns of a dead-letter table: why, from where, when (ns), and the order in that table."""

INTERNAL_COLUMNS = ("seq", "claim_id", "consumer", "position", "routed", "ack_held_at", "acked_by")
"""Those that only Waterclock writes."""

ADOPTED = "Waterclock: order of insertion"  # marks a column that we added to a table that we did not create

PARTITIONED = "waterclock_partitioned"
"""Key in a table's ``info``: whether unacked messages have their own partition, selected by ``time_acked IS NULL``."""

WITH_DEFAULTS = "waterclock_with_defaults"
"""Key in a table's ``info``: whether NULL may be put, by the user's columns that have a default or are generated."""

GENERATED = "waterclock_generated"
"""Key in a table's ``info``: the user's columns whose values the database generates, and that no statement may set."""

LONGEST_REASON = "waterclock_longest_reason"
"""Key in a table's ``info``: the maximum length of its ``last_error``; None: unlimited."""

SEQ_INDEX = "waterclock_seq_index"
"""Key in a table's ``info``: the name of its index of ``seq``, for hints on MariaDB."""

ACKED_DAY = "acked_day"  # the column that determines a row's partition on MariaDB

MESSAGE_KEY = "message_key"
"""The generated column of a table whose keys take turns or are limited: a message's key, empty if it has none."""

LEASED_SINCE = "leased_since"
"""The column of such a table on MariaDB: the slot of time in which a message's lease was set; NULL if it is not leased.
A trigger sets it."""

UNROUTED_SINCE = "unrouted_since"
"""The column of such a table on MariaDB: the second since 1970 in which the message was put, or was changed in a way
that may concern its key; NULL once a consumer has recorded its key, or once it is acked. A trigger sets it."""

LATE_PRIORITY, LATE_DUE = LATE = "late_priority", "late_time_next"
"""The generated columns of a table without groups and keys on MariaDB: those of a late message, NULL in all others."""

DUE_SLOT = "due_slot"
"""The generated column of such a table: the slot of ``time_next``. Also the key in a table's ``info``: whether the
table has it.
"""

OF_PLAIN_TABLES = (*LATE, DUE_SLOT)

_UNSEEN = (ACKED_DAY, MESSAGE_KEY, LEASED_SINCE, UNROUTED_SINCE, *OF_PLAIN_TABLES)
"""Columns that only some tables have, and that are not the user's."""

_ARGUMENTS = ("self", "payload", "at", "delay", "group", "connection", "unique", "unique_until", "on_conflict")

_RESERVED_COLUMNS = (*_ARGUMENTS, *_UNSEEN)


def is_reserved(column: str) -> bool:
    """Return whether no column of a user may have this name, in addition to `OWN_COLUMNS`.

    Most of these names are arguments of a put. Those with our prefix name values that our statements add to a row.
    """
    return column in _RESERVED_COLUMNS or column.lower().startswith(_OURS)


def reflect_rows(connection: sa.Connection, name: str, options: TableOptions) -> sa.Table:
    """Return the SQL table as it is in the database now, with the users' columns.

    Raises `SchemaError` if the table is missing or lacks one of our columns.
    """
    inspector = sa.inspect(connection)
    try:
        columns = reflected_columns(connection, name)
    except exc.NoSuchTableError:
        raise SchemaError(
            f"message table {quoted(name)}: its SQL table is missing, because something other than Waterclock dropped"
            " the table"
        ) from None
    found = {column["name"]: column["type"] for column in columns}
    generated = {one["name"] for one in columns if "computed" in one or one.get("identity", {}).get("always")}
    # MariaDB reports NULL as the default of a column that has none.
    defaulted = {one["name"] for one in columns if one["default"] not in (None, "NULL") or one.get("identity")}
    nullable = {one["name"] for one in columns if one["nullable"]} - generated
    for column in (*OWN_COLUMNS, *([MESSAGE_KEY] if options.turns_by else [])):
        if column not in found:
            raise SchemaError(f"message table {quoted(name)}: its SQL table has no column {column!r}. Add the column")
    extra = tuple(
        UserColumn(
            column,
            _column_type(options.columns.get(column, ""), kind),
            has_default=column in defaulted | generated,
            is_nullable=column in nullable,
            is_generated=column in generated,
        )
        for column, kind in found.items()
        if column not in (*OWN_COLUMNS, *_UNSEEN)
    )
    return _described(
        name,
        options.id_type,
        options.payload,
        extra,
        # MariaDB selects the partition by another column, and with this condition it would not look up messages by seq.
        is_partitioned=options.purge_by == "partition" and connection.dialect.name == "postgresql",
        is_keyed=options.turns_by is not None,
        has_slots=DUE_SLOT in found,
        is_jsonb=isinstance(found["message"], postgresql.JSONB),
        seq_index=_seq_index(inspector, name) if connection.dialect.name in ("mysql", "mariadb") else "PRIMARY",
        longest_reason=getattr(found["last_error"], "length", None),
    )


def _seq_index(inspector: sa.Inspector, name: str) -> str:
    # In an adopted table, the server chose a name that no index of the user had. Read without another round trip.
    indexes = (
        () if inspector.get_pk_constraint(name)["constrained_columns"][:1] == ["seq"] else inspector.get_indexes(name)
    )
    return next((str(index["name"]) for index in indexes if index["column_names"][:1] == ["seq"]), "PRIMARY")


def _column_type(declared: str, found: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type of a user's column; MariaDB and SQLite report a column declared JSON as text."""
    if isinstance(found, LOSSY_JSON):
        return found
    return sa.types.to_instance(COLUMN_TYPES.get(declared, found))


class UserColumn:
    """A user's column in the database; equal to another of the same name, type and origin of its values."""

    def __init__(
        self,
        name: str,
        kind: TypeEngine[Any],
        *,
        has_default: bool = False,
        is_nullable: bool = True,
        is_generated: bool = False,
    ) -> None:
        self.name = name
        self.kind = kind
        self.is_generated = is_generated  # as of `GENERATED`
        self.has_default = has_default  # as of `WITH_DEFAULTS`
        self.is_nullable = is_nullable
        # Compared by SQLAlchemy's repr, which has all parameters of a type. A user's type without a key for
        # SQLAlchemy's caches may print less, and equals no other.
        known = getattr(kind, "cache_ok", True) and _has_key(kind._static_cache_key)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # no public one
        facts = (name, has_default, is_nullable and has_default, is_generated, type(kind))
        self._facts = (*facts, repr(kind) if known else object())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserColumn) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)


def _has_key(key: object) -> bool:
    return all(map(_has_key, key)) if isinstance(key, tuple) else key is not NO_CACHE


@built_once(maxsize=256)
def _described(
    name: str,
    id_type: IdType,
    payload: Payload,
    extra: tuple[UserColumn, ...],
    *,
    is_partitioned: bool,
    is_keyed: bool,
    has_slots: bool,
    is_jsonb: bool,
    seq_index: str,
    longest_reason: int | None,
) -> sa.Table:
    # Equal tables share one object, in all databases, so that statements are built once.
    rows = message_rows(name, id_type, payload, [sa.Column(one.name, Guarded(one.kind)) for one in extra])
    with_defaults = {one.name: one.is_nullable for one in extra if one.has_default}
    rows.info[WITH_DEFAULTS] = {name: with_defaults[name] for name in put_columns(rows) if name in with_defaults}
    rows.info[GENERATED] = {one.name for one in extra if one.is_generated}
    rows.info[PARTITIONED] = is_partitioned
    rows.info[EXPLICIT] = True
    if is_keyed:
        rows.append_column(sa.Column(MESSAGE_KEY, Name, sa.FetchedValue()))
    rows.info[DUE_SLOT] = has_slots
    rows.info[LONGEST_REASON] = longest_reason
    rows.info[SEQ_INDEX] = seq_index
    if is_jsonb:
        rows.c.message.type = Guarded(postgresql.JSONB())
    return rows


@built_once(maxsize=256)
def user_column_names(rows: sa.Table) -> tuple[str, ...]:
    """Return the names of the user's columns."""
    return tuple(column.name for column in rows.columns if column.name not in (*OWN_COLUMNS, MESSAGE_KEY))


@built_once(maxsize=256)
def put_columns(rows: sa.Table) -> tuple[str, ...]:
    """Return the names of the user's columns that a put can set: not those that plain SQL named like an argument."""
    return tuple(name for name in user_column_names(rows) if name not in _ARGUMENTS)


def settable(names: Iterable[str], rows: sa.Table) -> list[str]:
    """Return those of these columns that an insert into a table may set."""
    return [name for name in names if name not in rows.info[GENERATED]]


def key_source(name: str, columns: Sequence[sa.Column[Any]]) -> KeySource:
    """Return the column, or the header, that a key's name means in a table with these further columns.

    Raises `InvalidArgumentError` if it names one of our columns, or a column whose type cannot be a key.
    """
    if name == GROUP:
        return KeySource("group_id")
    if name in OWN_COLUMNS:
        raise InvalidArgumentError(
            f"limit, rate and fair_by must not name the column {name!r}, which Waterclock writes"
        )
    column = next((one for one in columns if one.name == name), None)
    if column is None:
        return KeySource("headers", name)
    if not isinstance(getattr(column.type, "impl_instance", column.type), (sa.Integer, sa.String, sa.Boolean)):
        raise InvalidArgumentError(
            f"limit, rate and fair_by must name a column of texts, integers or booleans, got {quoted(name)} of"
            f" type {quoted(str(column.type))}"
        )
    return KeySource(name)


def has_unique_id(connection: sa.Connection, name: str) -> bool:
    """Return whether a table's ids are unique without partitions."""
    inspector = sa.inspect(connection)
    keys = [
        inspector.get_pk_constraint(name)["constrained_columns"],
        *(key["column_names"] for key in inspector.get_unique_constraints(name)),
        *(
            index["column_names"]
            for index in inspector.get_indexes(name)
            if index["unique"] and not index.get("dialect_options", {}).get("postgresql_where")
        ),
    ]
    return ["id"] in keys
