"""Moves acked messages of a message table into a topic, each exactly once.

A process appends some messages to the topic, as a producer with numbered messages, and then deletes them from the
table. If the process is killed between the append and the deletion, the messages are in both the topic and the table.
The next process takes over the producer, so the killed process can append no more. The next process then reads the
producer's last append from the topic, deletes its messages from the table, and only then archives more. So no message
is archived twice, even if more rows are due by then, or if the table and the topic are in different databases.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from waterclock._support.log_events import event
from waterclock.message import Message
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.upkeep.archiving import acked_rows, delete_acked, further_columns
from waterclock.tables.model.values.reading import Unreadable, value_of
from waterclock.time import Duration, to_duration
from waterclock.topics.topic import Topic
from waterclock.topics.writing.producers import newest_append, take_over

PREFIX = "waterclock."
"""Prefix of the headers that an archived message has in addition to its own."""

_log = logging.getLogger(__name__)

_ROWS = 1000
_BYTES = 4 << 20  # payload bytes in one append; MariaDB takes 8 MB at once unless configured otherwise


def archive_table(
    table: MessageTable, topic: Topic, older_than: Duration = "0s", *, producer: str | None = None
) -> int:
    """Append messages that were acked long enough ago to a topic, each exactly once, and delete them from the table.

    They are appended in the order of their acks. In the topic, source is the group, or the table's name without a
    group; stream is the table's name; event_time is when it was scheduled for and publish_time when it was put, ns. Its
    own headers stay, and these are added: ``waterclock.id``, ``waterclock.group``, ``waterclock.acked`` and
    ``waterclock.epoch``, ``waterclock.priority`` and ``waterclock.last_error`` if it has them, and
    ``waterclock.columns``, a JSON object of the table's further columns.

    Parameters
    ----------
    older_than
        Minimum time since a message's ack. The table's ``purge_after`` must leave time for the archive.
    producer
        Name of the producer that appends; None: built from the names of the table and its shard. Two tables of the same
        name need different producers.

    Returns
    -------
    int
        Number of messages that this call archived.

    Raises
    ------
    ProducerFencedError
        If another process has begun to archive under the same name.
    """
    age = to_duration(older_than, "older_than")
    context = table.context
    name = producer or f"archive of {table.name} {table.options.key_range}"
    producer_epoch, last, _ = take_over(topic.storage, name)
    _finish(table, topic, name)
    sequence = 0 if last is None else last + 1
    archived = 0
    for piece in _pieces(context, context.backend.now() - age):
        messages = [_message(context, row) for row in piece]
        appended = topic.append(messages, producer=name, sequence=sequence, epoch=producer_epoch)
        refused = {each.index: each.reason for each in appended.rejected}
        for index, reason in refused.items():
            _log.warning(
                "message %r stays in table %r, because the topic rejected it: %s",
                piece[index].id,
                table.name,
                reason,
                extra=event("message_not_archived", table=table.name, id=piece[index].id),
            )
        delete_acked(context, {row.id: row.time_acked for i, row in enumerate(piece) if i not in refused})
        sequence += len(piece)
        archived += appended.count
    return archived


def _finish(table: MessageTable, topic: Topic, producer: str) -> None:
    """Delete rows that a killed archiver had appended already."""
    first = newest_append(topic.storage, producer)
    if first is None:
        return
    appended = topic.read(first, first._replace(entry=first.entry + 1))
    integers = table.context.options.id_type == "bigint"
    done: dict[Any, int] = {}
    for message in appended:
        headers = message.headers or {}
        identity = headers[f"{PREFIX}id"]
        done[int(identity) if integers else identity] = int(headers[f"{PREFIX}acked"])
    delete_acked(table.context, done)


def _pieces(context: TableContext, before: int) -> Iterator[Sequence[Any]]:
    after: tuple[int, int] | None = None
    while rows := acked_rows(context, before, after, _ROWS):
        after = (rows[-1].time_acked, rows[-1].seq)
        piece: list[Any] = []
        size = 0
        for row in rows:
            if isinstance(row.message, Unreadable) or isinstance(row.id, Unreadable):
                continue  # unreadable: it stays in the table for an operator to inspect
            if piece and size > _BYTES:
                yield piece
                piece, size = [], 0
            piece.append(row)
            size += len(_payload(context, row.message))
        if piece:
            yield piece


def _message(context: TableContext, row: Any) -> Message:
    headers = {**_own_headers(row.headers), f"{PREFIX}id": str(row.id), f"{PREFIX}acked": str(row.time_acked)}
    facts = {"group": row.group_id, "epoch": row.epoch, "priority": row.priority or None, "last_error": row.last_error}
    headers |= {f"{PREFIX}{name}": str(value) for name, value in facts.items() if value is not None}
    if further := further_columns(context):
        columns = {name: value_of(row, name) for name in further}
        headers[f"{PREFIX}columns"] = json.dumps(columns, default=str, ensure_ascii=False)
    put = row.time_acked if row.time_created is None else row.time_created
    return Message(
        source=row.group_id or context.name,
        stream=context.name,
        event_time=put if row.time_scheduled is None else row.time_scheduled,
        payload=_payload(context, row.message),
        publish_time=put,
        headers=headers,
    )


def _own_headers(text: str | None) -> Mapping[str, str]:
    try:
        own = json.loads(text or "{}")
        str(own).encode()  # JSON can escape half of a surrogate pair, but a message cannot hold it
    except (ValueError, RecursionError):
        own = None
    return (
        {name: str(value) for name, value in own.items()} if isinstance(own, dict) else {f"{PREFIX}headers": str(text)}
    )


def _payload(context: TableContext, value: Any) -> bytes:
    if context.options.payload == "json":
        try:
            return json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half of a surrogate pair: only its escape can be stored
            return json.dumps(value).encode()
    return value.encode() if isinstance(value, str) else value or b""
