"""The page of one topic: ledgers on a time axis, subscriptions, lags, and a seek with a preview."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.message import Message, Position
from waterclock.server.access import AnyClient, ManageTopic, ReadTopic
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import time_of
from waterclock.server.api.subscriptions import subscription_info
from waterclock.server.pages.form_tokens import Form
from waterclock.server.pages.frame import name_url, page, see_other
from waterclock.server.pages.topics.lags import lags_data
from waterclock.server.pages.topics.time_range import TimeRange
from waterclock.server.shared_reads import shared
from waterclock.topics.catalogue.outline import Outline, outline
from waterclock.topics.catalogue.topic_info import list_topics
from waterclock.topics.finding.finding import check_by
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.topic import Topic

MOST_BLOCKS = 300
"""Maximum ledgers in the picture: more would be narrower than 3 px.

If there are more, every n-th is read, and represents those after it.
"""

PAYLOAD_SHOWN = 4_096
"""Bytes of a payload that a page shows: enough to recognise a message. The HTTP interface has all of it."""

_SLIDER = 1_000
_SECOND = 1_000_000_000
_TIMES = ("publish_time", "event_time", "receive_time")

router = APIRouter(include_in_schema=False)


@router.get("/topics")
@shared
def show_topics(request: Request, caller: AnyClient) -> Response:
    infos = {info.name: info for info in list_topics(request.app.state.database.backend)}
    topics = [shapes.topic_info(infos[name]) for name in caller.readable("topic", infos)]
    return page(request, "topics/topics.html", {"topics": topics})


@router.get("/topics/{topic:name}")
@shared
def show_topic(act: ReadTopic, request: Request) -> Response:
    return page(request, "topics/topic.html", topic_data(act.topic(), dict(request.query_params)))


@router.post("/topics/{topic:name}/seek")
def seek(act: ManageTopic, form: Form) -> Response:
    """Move a subscription to the position that was previewed."""
    name, to = form.get("subscription", ""), form.get("position", "")
    act.details = {"subscription": name, "position": to}
    topic = act.topic()
    before = subscription_info(topic, name)
    topic.subscribe(name).seek(Position.parse(to))
    act.rows = abs(subscription_info(topic, name).unread - before.unread)
    return see_other(f"/topics/{name_url(act.name)}", done=name)


def topic_data(topic: Topic, query: dict[str, str]) -> dict[str, Any]:
    """Describe a topic for its page.

    Parameters
    ----------
    query
        ``by``, ``since`` and ``until`` choose the axis. ``to`` or ``slide`` (per mille of the axis) asks for the
        preview of a seek of ``subscription``, and ``payload`` for its message's payload.
    """
    by = check_by(query.get("by", "publish_time"))
    if by not in _TIMES:
        raise InvalidArgumentError(f"'by' must be one of {', '.join(_TIMES)}, got {by!r}")
    bounds = topic.bounds
    axis = _axis(topic, bounds, by, query)
    is_zoomed = "since" in query or "until" in query
    limits = (axis.start, axis.end) if is_zoomed else (None, None)
    found = outline(topic.storage, by, *limits, most=MOST_BLOCKS)
    subscriptions = [
        {**shapes.subscription(info), "ordinal": found.head - info.unread} for info in topic.subscriptions()
    ]
    return {
        "topic": shapes.topic_info(topic.info),
        "bounds": shapes.bounds(bounds),
        "ahead_seconds": _ahead(bounds, by),
        "by": by,
        "times": list(_TIMES),
        "axis": axis.data(),
        "moves": axis.moves(),
        "is_zoomed": is_zoomed,
        **_outline_data(found),
        "subscriptions": subscriptions,
        "lags": lags_data(topic),
        "preview": _preview(topic, axis, by, query, subscriptions),
    }


def _axis(topic: Topic, bounds: Bounds | None, by: str, query: dict[str, str]) -> TimeRange:
    """Choose the range of the picture: that of the query, or all times except those of wrong clocks."""
    since, until = (
        None if not query.get(name) else topic.storage.time(time_of(query[name]) or "", name)
        for name in ("since", "until")
    )
    now = topic.storage.backend.now()
    start, end = now - _SECOND, now
    if bounds is not None:
        received = TimeRange(bounds.begin["receive_time"], bounds.end["receive_time"])
        reach = max(received.length, _SECOND)
        near = (max(bounds.begin[by], received.start - reach), min(bounds.end[by], received.end + reach))
        start, end = near if near[0] <= near[1] else (bounds.begin[by], bounds.end[by])
    start, end = (start if since is None else since), (end if until is None else until)
    if since is not None and until is not None and start >= end:
        raise InvalidArgumentError(
            f"the end (until) must be later than the start (since={query['since']!r}), got {query['until']!r}"
        )
    return TimeRange(start, max(end, start + 1))


def _ahead(bounds: Bounds | None, by: str) -> float:
    """Return how far the largest time is after the newest receive time, in seconds."""
    return 0 if bounds is None else max(bounds.end[by] - bounds.end["receive_time"], 0) / 1e9


def _outline_data(found: Outline) -> dict[str, Any]:
    blocks = [
        {**block._asdict(), **{name: shapes.time(getattr(block, name)) for name in ("begin", "end", "peak")}}
        for block in found.blocks
    ]
    missing = sum(block.messages for block in found.blocks if block.state == "missing")
    return {
        "ledgers": blocks,
        "ledgers_sampled": any(block.stands_for > 1 and block.state != "missing" for block in found.blocks),
        "lost_ledgers": found.lost,
        "missing_messages": missing,
        "trimmed": {"ledgers": found.trimmed_ledgers, "messages": found.trimmed_messages},
    }


def _preview(
    topic: Topic, axis: TimeRange, by: str, query: dict[str, str], subscriptions: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Find the place for a time from the form or the slider, and the message there."""
    wanted = query.get("to", "").strip()
    slide = query.get("slide", "")
    if not wanted and slide.isdecimal() and slide.isascii():
        wanted = shapes.time(axis.at(min(int(slide[:5]), _SLIDER) / _SLIDER)) or ""
    if not wanted:
        return None
    preview: dict[str, Any] = {"to": wanted, "by": by, "subscription": query.get("subscription") or None}
    try:
        position, time = _place(topic, wanted, by)
        message = next(topic.read(position, limit=1, on_damage="skip"), None)
        ordinal = topic.index(position)
    except WaterclockError as error:
        return {**preview, "problem": str(error)}
    preview |= {"problem": None, "position": str(position), "time": shapes.time(time), "ordinal": ordinal}
    preview["message"] = None if message is None else _described(message, shown=query.get("payload") == "true")
    chosen = next((one for one in subscriptions if one["name"] == preview["subscription"]), None)
    if chosen is not None:
        unread = topic.index(topic.head) - ordinal
        preview["seek"] = {
            "from": chosen["position"],
            "unread_now": chosen["unread"],
            "unread_after": unread,
            "held_until": chosen["held_until"],
        }
    else:
        preview["seek"] = None
    return preview


def _place(topic: Topic, wanted: str, by: str) -> tuple[Position, int | None]:
    if wanted == "earliest":
        return topic.at(0), None
    if wanted == "latest":
        return topic.head, None
    if wanted.count(":") == 2 and wanted.replace(":", "").isdecimal():  # noqa: PLR2004  # as 3:17:0
        return Position.parse(wanted), None
    time = topic.storage.time(time_of(wanted) or "", "to")
    return topic.find(time, by).position, time


def _described(message: Message, *, shown: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "position": str(message.position),
        "source": message.source,
        "stream": message.stream,
        **{name: shapes.time(getattr(message, name)) for name in ("event_time", "publish_time", "receive_time")},
        "headers": dict(message.headers or {}),
        "payload_bytes": len(message.payload),
        "payload": None,
    }
    if shown:
        beginning = message.payload[:PAYLOAD_SHOWN]
        described["payload"] = {
            "text": beginning.decode(errors="replace"),
            "truncated": len(message.payload) > PAYLOAD_SHOWN,
        }
    return described
