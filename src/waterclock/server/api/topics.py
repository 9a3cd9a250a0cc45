"""Routes that create, show, change and remove topics."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from waterclock.message import Position
from waterclock.server.access import AnyClient, ManageTopic, ReadTopic
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import Body, DurationValue, Limit, TimeValue
from waterclock.server.shared_reads import shared
from waterclock.topics.model.topic_options import TopicChanges

router = APIRouter(tags=["topics"])


class TopicOptionsBody(Body):
    """Options of a topic, as in `Database.create_topic`."""

    roll_after: DurationValue | None = "1h"
    roll_size: int = 64 << 20
    retention: DurationValue | None = None
    max_ahead: DurationValue | None = None
    on_ahead: Literal["reject", "keep"] = "reject"

    def changes(self) -> TopicChanges:
        """Return the given options."""
        given = self.given()
        return TopicChanges(**{name: given[name] for name in TopicChanges.__annotations__ if name in given})


class ExpiryBody(Body):
    """An age above which messages expire."""

    ttl: DurationValue


class TruncationBody(Body):
    """Where to truncate: at a position or a time."""

    before: TimeValue | None = None
    before_position: str | None = None
    force: bool = Field(False, description="Also delete messages that a subscription has not read")


@router.get("/topics")
@shared
def list_topics(caller: AnyClient, request: Request) -> list[dict[str, Any]]:
    """List the topics that you may read."""
    infos = request.app.state.database.topic_infos()
    readable = set(caller.readable("topic", [info.name for info in infos]))
    return [shapes.topic_info(info) for info in infos if info.name in readable]


@router.put("/topics/{topic:name}")
def create_topic(act: ManageTopic, body: TopicOptionsBody, exist_ok: bool = False) -> dict[str, Any]:
    """Create a topic."""
    act.details = body.given()
    topic = act.database.create_topic(act.name, exist_ok=exist_ok, **body.changes())
    return shapes.topic_info(topic.info)


@router.get("/topics/{topic:name}")
@shared
def show_topic(act: ReadTopic) -> dict[str, Any]:
    """Describe a topic: its size, options and bounds."""
    topic = act.topic()
    return {**shapes.topic_info(topic.info), "bounds": shapes.bounds(topic.bounds)}


@router.patch("/topics/{topic:name}")
def alter_topic(act: ManageTopic, body: TopicOptionsBody) -> dict[str, Any]:
    """Change the given options."""
    act.details = body.given()
    topic = act.topic()
    topic.alter(**body.changes())
    return shapes.topic_info(topic.info)


@router.delete("/topics/{topic:name}")
def remove_topic(act: ManageTopic) -> dict[str, Any]:
    """Remove a topic with its messages, files and subscriptions."""
    topic = act.topic()
    act.rows = topic.info.messages
    topic.remove()
    return {"removed": act.name}


@router.get("/topics/{topic:name}/ledgers")
@shared
def list_ledgers(act: ReadTopic, start: int = Query(0, ge=0), limit: Limit = 100) -> list[dict[str, Any]]:
    """List ledgers from a number on."""
    return [shapes.ledger(info) for info in act.topic().ledgers(start, limit)]


@router.post("/topics/{topic:name}/roll")
def roll(act: ManageTopic) -> dict[str, Any]:
    """Close the open ledger."""
    act.topic().roll()
    return {"rolled": act.name}


@router.post("/topics/{topic:name}/seal")
def seal(act: ManageTopic) -> dict[str, Any]:
    """Write closed ledgers to files."""
    act.rows = act.topic().seal()
    return {"ledgers": act.rows}


@router.post("/topics/{topic:name}/compact")
def compact(act: ManageTopic) -> dict[str, Any]:
    """Join small files."""
    act.rows = act.topic().compact()
    return {"files_saved": act.rows}


@router.post("/topics/{topic:name}/expire")
def expire(act: ManageTopic, body: ExpiryBody) -> dict[str, Any]:
    """Move all subscriptions past messages older than ``ttl``, and delete expired ledgers."""
    act.details = body.given()
    expired = act.topic().expire(body.ttl)
    act.rows = expired.messages
    return {"position": str(expired.position), "messages": expired.messages, "ledgers": expired.ledgers}


@router.post("/topics/{topic:name}/truncate")
def truncate(act: ManageTopic, body: TruncationBody) -> dict[str, Any]:
    """Delete the ledgers before a position or a time."""
    act.details = body.given()
    before = body.before if body.before_position is None else Position.parse(body.before_position)
    act.rows = act.topic().truncate("" if before is None else before, force=body.force)
    return {"ledgers": act.rows}
