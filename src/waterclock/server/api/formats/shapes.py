"""Converts objects to JSON for responses. Times are in ISO 8601 (UTC, with nanoseconds).

Ids and durations (such as ``30s``) are strings.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.delivery_handle import handle_of
from waterclock.tables.groups.info import GroupInfo
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.explaining import Explanation
from waterclock.tables.messages.inspecting.peeking import Peeked
from waterclock.tables.messages.putting.scheduling import Schedule
from waterclock.tables.model.attempts import Attempt
from waterclock.tables.model.options import DURATIONS as TABLE_DURATIONS
from waterclock.time import MAX_NS, format_duration, format_time
from waterclock.topics.catalogue.ledgers import LedgerInfo
from waterclock.topics.catalogue.topic_info import TopicInfo
from waterclock.topics.finding.subscription_rows import SubscriptionInfo
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.model.topic_options import DURATIONS as TOPIC_DURATIONS

_SECOND = 1_000_000_000


def time(ns: int | None) -> str | None:
    """Return a time; "never" for the end of a pause without an end."""
    return None if ns is None else "never" if ns == MAX_NS else format_time(ns)


def facts(one: Any, *names: str) -> dict[str, Any]:
    """Return attributes, with those that the catalogue names as times in ISO 8601."""
    times = {name for name in names if name.endswith(("_at", "_until", "_tick")) or name.startswith("time_")}
    return {name: time(getattr(one, name)) if name in times else getattr(one, name) for name in names}


def duration(ns: int | None) -> str | None:
    return None if ns is None else format_duration(ns)


def seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _SECOND


def plain(value: Any) -> Any:
    """Return a value of a column as JSON has it."""
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def payload(kind: str, value: Any) -> dict[str, Any]:
    """Return the field of a payload: ``payload_base64`` in a table of bytes."""
    if kind != "bytes":
        return {"payload": value}
    return {"payload_base64": None if value is None else base64.b64encode(value).decode()}


def topic_info(info: TopicInfo) -> dict[str, Any]:
    durations = {name: duration(getattr(info, name)) for name in TOPIC_DURATIONS}
    return {**info._asdict(), **durations, "head": str(info.head), "created_at": time(info.created_at)}


def bounds(found: Bounds | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "begin": {name: format_time(ns) for name, ns in found.begin.items()},
        "end": {name: format_time(ns) for name, ns in found.end.items()},
    }


def ledger(info: LedgerInfo) -> dict[str, Any]:
    """Describe a ledger, without the place of its file."""
    counts = facts(info, "ledger", "state", "entries", "messages", "size", "first_ordinal")
    return counts | facts(info, "opened_at", "closed_at", "sealed_at") | {"bounds": bounds(info.bounds)}


def subscription(info: SubscriptionInfo) -> dict[str, Any]:
    """Describe a subscription, without its holder, which names a host."""
    return facts(info, "name", "unread", "epoch", "held_until") | {"position": str(info.position)}


def table_options(table: MessageTable) -> dict[str, Any]:
    options = asdict(table.options)
    return options | {name: duration(options[name]) for name in TABLE_DURATIONS}


def peeked(kind: str, message: Peeked) -> dict[str, Any]:
    return _sendable(_message(kind, message) | facts(message, "state", "due_at", "problem"))


def _message(kind: str, one: Peeked | Delivery) -> dict[str, Any]:
    return {
        "id": str(one.id),
        **payload(kind, one.payload),
        "headers": dict(one.headers),
        **facts(one, "group", "priority", "epoch", "time_created", "time_scheduled", "expires_at"),
        "columns": {name: plain(value) for name, value in one.columns.items()},
    }


def _sendable(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what a response cannot hold and plain SQL may write.

    NaN and infinities become strings. Halves of characters become question marks.
    """
    try:
        json.dumps(message, default=str, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:  # as for an encoding, too
        return _replaced(message)
    return message


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_replaced(one) for one in value]
    if isinstance(value, dict):
        return {_replaced(name): _replaced(one) for name, one in value.items()}
    return value


def explanation(found: Explanation) -> dict[str, Any]:
    return {
        "id": str(found.id),
        **facts(found, "state", "reason", "due_at", "consumer"),
        "blocking_id": None if found.blocking_id is None else str(found.blocking_id),
        "attempts": [attempt(one) for one in found.attempts],
    }


def attempt(one: Attempt) -> dict[str, Any]:
    return {**asdict(one), "claimed_at": time(one.claimed_at), "duration": duration(one.duration)}


def dead_letter(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in row.items() if name not in ("id", "payload")}
    times = {name: time(value) for name, value in others.items() if name.endswith("_at") or name.startswith("time_")}
    return _sendable({"id": str(row["id"]), **payload(kind, row["payload"]), **others, **times})


def group(info: GroupInfo) -> dict[str, Any]:
    described = asdict(info) | facts(info, "due_at", "paused_until")
    head_id, age = described.pop("head_id"), described.pop("head_age")
    return described | {"head_id": None if head_id is None else str(head_id), "head_age_seconds": seconds(age)}


def schedule(kind: str, one: Schedule) -> dict[str, Any]:
    described = asdict(one) | facts(one, "last_tick", "next_tick")
    ahead = described.pop("ahead")
    del described["payload"]
    return {
        **described,
        **payload(kind, one.payload),
        "within": duration(one.within),
        "last_id": None if one.last_id is None else str(one.last_id),
        "ahead_seconds": seconds(ahead),
        "history": past_ticks(one),
    }


def past_ticks(one: Schedule) -> list[dict[str, Any]]:
    return [{**asdict(each), "at": time(each.at)} for each in one.history]


def delivery(kind: str, one: Delivery) -> dict[str, Any]:
    lease = {"delivery": handle_of(one), **facts(one, "first_for_consumer", "lease_until", "progress")}
    return _sendable(lease | _message(kind, one))


def as_json(value: Any) -> str:
    """Return a payload as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)
