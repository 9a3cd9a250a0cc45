"""Routes of a topic's subscriptions: create, read, commit, seek, expire, remove."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from waterclock._support.quoting import unknown_name
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.ingest.files import message_to_json
from waterclock.message import Position
from waterclock.server.access import Act, ManageTopic, ReadTopic, ReceiveTopic
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import MOST_ITEMS, Body, TimeValue
from waterclock.server.api.topics import ExpiryBody
from waterclock.server.shared_reads import shared
from waterclock.topics.finding.subscription_rows import SubscriptionInfo
from waterclock.topics.topic import Topic

router = APIRouter(tags=["subscriptions"], prefix="/topics/{topic:name}/subscriptions")


class PlaceBody(Body):
    """A place in a topic: a time, "earliest" or "latest", or a position such as 3:17:0."""

    time: TimeValue | None = None
    position: str | None = None
    by: str = "publish_time"

    def start(self, default: str | None = None) -> Position | int | str:
        """Return the one that was given."""
        given = [one for one in (self.time, self.position) if one is not None]
        if len(given) != 1 and (given or default is None):
            raise InvalidArgumentError(f"exactly one of time and position must be given, got {len(given)}")
        if self.position is not None:
            return Position.parse(self.position)
        return default or "" if self.time is None else self.time


class SeekBody(PlaceBody):
    """Where to move a subscription."""

    filter_older: bool = False
    dry_run: bool = Field(False, description="Only return the position and how many messages would be unread")


class ReadBody(Body):
    """What to read. The cursor is that of the last answer; without it a new reader begins."""

    cursor: str | None = Field(None, max_length=100)
    limit: int = Field(100, ge=1, le=MOST_ITEMS)


class CommitBody(Body):
    """What to commit: everything up to the answer with this cursor, the last one."""

    cursor: str = Field(max_length=100)


@router.get("")
@shared
def list_subscriptions(act: ReadTopic) -> list[dict[str, Any]]:
    """List the subscriptions of a topic."""
    return [shapes.subscription(info) for info in act.topic().subscriptions()]


@router.put("/{subscription:name}")
def create_subscription(act: ManageTopic, subscription: str, body: PlaceBody) -> dict[str, Any]:
    """Create a subscription; one that exists stays as it is."""
    act.details = {"subscription": subscription, **body.given()}
    opened = act.topic().subscribe(subscription, body.start("earliest"), by=body.by)
    return shapes.subscription(opened.info)


@router.get("/{subscription:name}")
@shared
def show_subscription(act: ReadTopic, subscription: str) -> dict[str, Any]:
    """Describe a subscription."""
    return shapes.subscription(subscription_info(act.topic(), subscription))


@router.delete("/{subscription:name}")
def remove_subscription(act: ManageTopic, subscription: str) -> dict[str, Any]:
    """Remove a subscription."""
    act.topic().unsubscribe(subscription)
    return {"removed": subscription}


@router.post("/{subscription:name}/read")
def read(act: ReceiveTopic, request: Request, subscription: str, body: ReadBody) -> dict[str, Any]:
    """Read the next messages. Commit them with the answer's cursor, or they are read again after 30 s of silence."""
    cursor, messages = request.app.state.readers.read(act.topic(), subscription, body.cursor, body.limit)
    act.rows = len(messages)
    return {"cursor": cursor, "messages": [message_to_json(one) for one in messages]}


@router.post("/{subscription:name}/commit")
def commit(act: ReceiveTopic, request: Request, subscription: str, body: CommitBody) -> dict[str, Any]:
    """Commit the messages up to the answer with this cursor, the last one."""
    topic = act.topic()
    request.app.state.readers.commit(topic, subscription, body.cursor)
    return {"committed": True}


@router.post("/{subscription:name}/release")
def release(act: ReceiveTopic, request: Request, subscription: str, body: CommitBody) -> dict[str, Any]:
    """Release the subscription to other readers; uncommitted messages are read again."""
    request.app.state.readers.release(act.topic(), subscription, body.cursor)
    return {"released": True}


@router.post("/{subscription:name}/seek")
def seek(act: ManageTopic, subscription: str, body: SeekBody) -> dict[str, Any]:
    """Move a subscription to a place."""
    act.details = {"subscription": subscription, **body.given()}
    topic, info, to = act.topic(), subscription_info(act.topic(), subscription), body.start()
    if body.dry_run:
        if not isinstance(to, Position):
            to = topic.find(to, body.by).position if to not in ("earliest", "latest") else _end(act, str(to))
        to = min(to, topic.head)
        unread = topic.index(topic.head) - topic.index(to)
        return {"position": str(to), "unread": unread, "unread_now": info.unread, "moved": False}
    position = topic.subscribe(subscription).seek(to, by=body.by, filter_older=body.filter_older)
    after = subscription_info(act.topic(), subscription)
    act.rows = abs(after.unread - info.unread)
    return {"position": str(position), "unread": after.unread, "unread_now": after.unread, "moved": True}


@router.post("/{subscription:name}/expire")
def expire(act: ManageTopic, subscription: str, body: ExpiryBody) -> dict[str, Any]:
    """Move a subscription past messages older than ``ttl``."""
    act.details = {"subscription": subscription, **body.given()}
    subscription_info(act.topic(), subscription)
    expired = act.topic().subscribe(subscription).expire(body.ttl)
    act.rows = expired.messages
    return {"position": str(expired.position), "messages": expired.messages}


def _end(act: Act, which: str) -> Position:
    topic = act.topic()
    return topic.head if which == "latest" else topic.at(0)


def subscription_info(topic: Topic, name: str) -> SubscriptionInfo:
    """Describe a subscription; NotFoundError if missing."""
    found = {info.name: info for info in topic.subscriptions()}
    if name not in found:
        raise NotFoundError(unknown_name("subscription", name, found, "create it first", f"topic {topic.name!r}"))
    return found[name]
