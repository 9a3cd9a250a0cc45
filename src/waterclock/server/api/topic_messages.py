"""Routes that append, read and find messages of topics, in JSON or as Arrow IPC."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from waterclock.arrow import POSITIONED_SCHEMA, from_arrow, to_ipc
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.files import message_from_json, message_to_json
from waterclock.message import Position
from waterclock.server.access import AppendTopic, ReadTopic
from waterclock.server.api.formats.arrow_bodies import MEDIA_TYPE, table_of
from waterclock.server.api.formats.bodies import MOST_ITEMS, Body, time_of
from waterclock.server.shared_reads import shared
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import Appended

router = APIRouter(tags=["topics"])

MOST_ARROW = 100_000
"""Messages in one answer of Arrow."""

MOST_BYTES = 8 << 20
"""Bytes of messages after which a response ends, with the position of the next one: each thread may build one."""

_Names = Annotated[list[str] | None, Query(max_length=1_000)]


class AppendBody(Body):
    """Messages: source, stream, event_time and, optionally, publish_time, receive_time, headers and payload."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_ITEMS)
    producer: str | None = None
    sequence: int | None = None
    epoch: int | None = None


@router.post(
    "/topics/{topic:name}/messages",
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": AppendBody.model_json_schema()}}}},
)
def append_messages(act: AppendTopic, body: AppendBody) -> dict[str, Any]:
    """Append messages as one entry. A repeat with the same producer and sequence writes nothing."""
    act.rows = len(body.messages)
    messages = [message_from_json(one) for one in body.messages]
    topic = act.topic()
    return _appended(topic.append(messages, producer=body.producer, sequence=body.sequence, epoch=body.epoch))


@router.post("/topics/{topic:name}/arrow", openapi_extra={"requestBody": {"content": {MEDIA_TYPE: {}}}})
async def append_arrow(
    act: AppendTopic,
    request: Request,
    producer: str | None = None,
    sequence: int | None = None,
    epoch: int | None = None,
) -> dict[str, Any]:
    """Append an Arrow IPC stream of messages as one entry: uncompressed, times as int64 nanoseconds."""
    body = await request.body()
    topic = await request.app.state.asynchronous.topic(act.name)

    def append() -> Appended:
        table = table_of(body)
        act.rows = table.num_rows
        return topic.sync.append(table, producer=producer, sequence=sequence, epoch=epoch)

    return _appended(await topic.threads.call(append))


@router.get("/topics/{topic:name}/messages")
async def read_messages(
    act: ReadTopic,
    request: Request,
    start: str | None = None,
    stop: str | None = None,
    since: str | None = None,
    until: str | None = None,
    by: str = "publish_time",
    source: _Names = None,
    stream: _Names = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ARROW)] = 100,
) -> Response:
    """Read messages from a position or a time. ``next`` is the position at which the next answer starts.

    With the header ``Accept: application/vnd.apache.arrow.stream`` the answer is an Arrow IPC stream, and ``next`` the
    header ``Waterclock-Next``.
    """
    as_arrow = MEDIA_TYPE in request.headers.get("accept", "")
    if not as_arrow and limit > MOST_ITEMS:
        raise InvalidArgumentError(f"limit must be at most {MOST_ITEMS} in JSON, got {limit}. For more, request Arrow")
    times = {"since": time_of(since), "until": time_of(until)}
    first, last = (None if one is None else Position.parse(one) for one in (start, stop))

    def answer() -> Response:
        topic = act.topic()
        end = topic.head if last is None else min(topic.head, last)
        options = {"by": by, "source": source, "stream": stream, "limit": limit, **times}
        batches, following = _read(topic, first, end if until is None else None, options)
        following = str(end if following is None else following)
        if as_arrow:
            content = to_ipc(*(batches or [pa.RecordBatch.from_pylist([], POSITIONED_SCHEMA)]))
            return Response(content, media_type=MEDIA_TYPE, headers={"Waterclock-Next": following})
        messages = [message_to_json(message) for batch in batches for message in from_arrow(batch)]
        return JSONResponse({"messages": messages, "next": following})

    return await to_thread.run_sync(answer, limiter=request.app.state.large_reads if as_arrow else None)


def _read(
    topic: Topic, start: Position | None, stop: Position | None, options: dict[str, Any]
) -> tuple[list[pa.RecordBatch], Position | None]:
    """Read up to a limit, and return the position to go on from; None: everything was read."""
    batches: list[pa.RecordBatch] = []
    messages = size = 0
    for batch in topic.read_arrow(start, stop, **options):
        batches.append(batch)
        messages += batch.num_rows
        size += batch.nbytes
        if messages >= options["limit"] or size >= MOST_BYTES:
            last = Position(*(batch.column(name)[-1].as_py() for name in ("ledger", "entry", "index")))
            return batches, last._replace(index=last.index + 1)
    return batches, None


@router.get("/topics/{topic:name}/find")
@shared
def find(act: ReadTopic, time: str, by: str = "publish_time") -> dict[str, Any]:
    """Find the first message at or after a time, exactly."""
    found = act.topic().find(time_of(time) or "", by)
    return {"position": str(found.position), "found": found.found}


@router.get("/topics/{topic:name}/newest")
@shared
def newest(act: ReadTopic, by: str = "event_time") -> dict[str, Any]:
    """Find the message with the largest time."""
    found = act.topic().newest(by)
    return {"position": str(found.position), "found": found.found}


def _appended(done: Appended) -> dict[str, Any]:
    return {
        "first": None if done.first is None else str(done.first),
        "count": done.count,
        "duplicate": done.duplicate,
        "rejected": [{"index": one.index, "reason": one.reason} for one in done.rejected],
    }
