"""Routes that receive messages (by long poll or as a stream), extend their leases, ack them, and return them.

A handle names a delivery and holds its lease, so any server of the database can end the delivery.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse

from waterclock.aio.database import Database as AsyncDatabase
from waterclock.aio.deliveries import Delivery as AsyncDelivery
from waterclock.aio.tables import MessageTable as AsyncTable
from waterclock.errors import LeaseLostError, WaterclockError
from waterclock.server.access import Act, ReceiveTable
from waterclock.server.api.delivery_streams import DeliveryStream
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import MOST_ITEMS, Body, DurationValue
from waterclock.server.errors import error_response, http_error
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.time import to_duration

router = APIRouter(tags=["deliveries"], prefix="/tables/{table:name}")

LONGEST_WAIT = 60_000_000_000
"""How long a request for messages waits, ns: proxies end requests that are silent for longer."""

HEARTBEAT = 15.0
"""Seconds after which a stream without messages sends a comment, so that both ends notice a broken connection."""

_MOST_STREAMED = 100
_SECOND = 1_000_000_000

Consumer = Annotated[str, Query(min_length=1, max_length=255)]


class ReceiveBody(Body):
    """Which messages to take. Each consumer needs a name of its own."""

    consumer: str = Field(min_length=1, max_length=255)
    limit: int = Field(1, ge=1, le=MOST_ITEMS)
    wait: DurationValue = Field("0s", description="How long to wait if none is due, at most 60s")
    where: str | None = Field(None, max_length=10_000)
    order: str | None = Field(None, max_length=10_000)
    parameters: dict[str, Any] | None = None
    max_groups: int | None = Field(None, ge=1)


class DeliveriesBody(Body):
    """Deliveries by their handles."""

    deliveries: list[str] = Field(min_length=1, max_length=MOST_ITEMS)


class NackBody(DeliveriesBody):
    """Deliveries to give back, and why."""

    delay: DurationValue | None = Field(None, description="Instead of the back-off of the table")
    error: str | None = Field(None, max_length=100_000)


class SnoozeBody(DeliveriesBody):
    """Deliveries to give back without counting an attempt."""

    delay: DurationValue


class ExtendBody(DeliveriesBody):
    """Deliveries whose leases are extended to a duration from now."""

    duration: DurationValue


class SaveBody(Body):
    """Progress that the next attempt finds in its delivery."""

    delivery: str
    progress: Any = Field(description="JSON of at most 64 kB; it replaces earlier progress")


class DeadLetterBody(DeliveriesBody):
    """Deliveries to move to the dead-letter table, and why."""

    why: str = Field(max_length=100_000)


@router.post("/receive")
async def receive(act: ReceiveTable, request: Request, body: ReceiveBody) -> Any:
    """Take due messages, and wait for some if none is due."""
    wait = to_duration(body.wait, "wait", maximum=LONGEST_WAIT)
    chosen: dict[str, Any] = {"where": body.where, "order": body.order, "parameters": body.parameters}
    with request.app.state.stream_limit.one():
        table = await _open(act, request)
        receiving = table.receive(body.limit, wait or None, body.consumer, max_groups=body.max_groups, **chosen)
        found = await _unless_gone(request, table, receiving)
        try:
            await request.state.find_caller_again()
        except (WaterclockError, HTTPException):  # for example if the token was removed while the request waited
            _give_back(table, found)
            raise
    act.rows = len(found)
    kind = table.options.payload
    return JSONResponse({"deliveries": [shapes.delivery(kind, one.sync) for one in found]})


@router.get("/stream", response_class=StreamingResponse)
async def stream(
    act: ReceiveTable,
    request: Request,
    consumer: Consumer,
    limit: Annotated[int, Query(ge=1, le=_MOST_STREAMED)] = 1,
) -> StreamingResponse:
    """Take messages as server-sent events named ``delivery``, with at most ``limit`` unfinished messages at a time."""
    table = await _open(act, request)
    events = _events(act, request, table, consumer, limit)
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _open(act: Act, request: Request) -> AsyncTable:
    opened: AsyncDatabase = request.app.state.asynchronous
    return AsyncTable(await opened.threads.call(act.table), opened.threads, opened.waiting)


async def _events(act: Act, request: Request, table: AsyncTable, consumer: str, limit: int) -> AsyncGenerator[str]:
    state = request.app.state
    kind = table.options.payload
    act.rows = 0
    found: list[AsyncDelivery] = []
    with state.stream_limit.one():
        sent = DeliveryStream(state.delivery_streams, limit)
        try:
            yield ": ready\n\n"
            while True:
                room = await sent.room(HEARTBEAT)
                try:
                    found = await table.receive(room, f"{HEARTBEAT:g}s", consumer) if room > 0 else []
                    await request.state.find_caller_again()
                except (WaterclockError, HTTPException) as error:
                    yield _error_event(act, error)
                    return
                if not found:
                    yield ": waiting\n\n"
                    continue
                now = await table.threads.call(act.database.backend.now_about)
                while found:
                    one = found.pop(0)
                    sent.send(one.sync, (one.lease_until - now) / _SECOND)
                    act.rows += 1
                    yield f"event: delivery\ndata: {json.dumps(shapes.delivery(kind, one.sync))}\n\n"
        finally:
            sent.close()
            _give_back(table, found)


def _error_event(act: Act, error: WaterclockError | HTTPException) -> str:
    if isinstance(error, HTTPException):
        response = http_error(error)
    else:
        response = error_response(error, act.database.backend, suggests=False)
    return f"event: error\ndata: {bytes(response.body).decode()}\n\n"


def _give_back(table: AsyncTable, deliveries: list[AsyncDelivery]) -> None:
    """Return deliveries that were not sent. Does not wait: the request may be cancelled."""
    if deliveries:
        with suppress(WaterclockError):  # the server ends, and the leases soon after
            table.threads.submit(partial(table.sync.give_back, [one.sync for one in deliveries]))


@router.post("/ack")
def ack(act: ReceiveTable, request: Request, body: DeliveriesBody) -> Any:
    """Ack deliveries. Idempotent. 409 names those whose lease was lost; the others are acked."""
    table, deliveries = _opened(act, body)
    try:
        act.rows = table.ack(deliveries)
    except LeaseLostError:
        act.rows = sum(not one.lost for one in deliveries)
    return _ended(request, act, body, deliveries)


@router.post("/nack")
def nack(act: ReceiveTable, request: Request, body: NackBody) -> Any:
    """Return deliveries after a failure: they are sent again after their back-off, or after ``delay``."""
    table, deliveries = _opened(act, body)
    if body.error is None:
        act.rows = table.nack(deliveries, body.delay)
        return _ended(request, act, body, deliveries)
    return _each(request, act, body, deliveries, lambda one: one.nack(body.delay, error=body.error))


@router.post("/snooze")
def snooze(act: ReceiveTable, request: Request, body: SnoozeBody) -> Any:
    """Return deliveries without counting an attempt; they are sent again after ``delay``."""
    _, deliveries = _opened(act, body)
    return _each(request, act, body, deliveries, lambda one: one.snooze(body.delay))


@router.post("/dead-letter")
def dead_letter(act: ReceiveTable, request: Request, body: DeadLetterBody) -> Any:
    """Move deliveries to the dead-letter table."""
    _, deliveries = _opened(act, body)
    return _each(request, act, body, deliveries, lambda one: one.dead_letter(body.why))


@router.post("/extend")
def extend(act: ReceiveTable, request: Request, body: ExtendBody) -> Any:
    """Extend leases to ``duration`` from now: the heartbeat of a worker. Answers which messages were cancelled."""
    table, deliveries = _opened(act, body)
    act.rows = table.extend(deliveries, body.duration)
    streams = request.app.state.delivery_streams
    streams.note_extended((one for one in deliveries if not one.lost), to_duration(body.duration) / _SECOND)
    streams.note_ended(one for one in deliveries if one.lost)
    both = list(zip(body.deliveries, deliveries, strict=True))
    cancelled = [handle for handle, one in both if one.cancelled]
    lost = [handle for handle, one in both if one.lost]
    return {"extended": act.rows, "lost": lost, "cancelled": cancelled}


@router.post("/save")
def save(act: ReceiveTable, request: Request, body: SaveBody) -> Any:
    """Save a handler's progress, and extend the lease to ``ack_wait`` from now. 409 if the lease was lost."""
    table = act.table()
    delivery = table.delivery(body.delivery)
    streams = request.app.state.delivery_streams
    try:
        delivery.save(body.progress)
    except LeaseLostError:
        streams.note_ended([delivery])
        raise
    streams.note_extended([delivery], table.options.ack_wait / _SECOND)
    act.rows = 1
    return {"lease_until": shapes.time(delivery.lease_until), "cancelled": delivery.cancelled}


def _opened(act: Act, body: DeliveriesBody) -> tuple[MessageTable, list[Delivery]]:
    table = act.table()
    return table, [table.delivery(handle) for handle in body.deliveries]


def _each(
    request: Request, act: Act, body: DeliveriesBody, deliveries: list[Delivery], end: Callable[[Delivery], None]
) -> Any:
    for one in deliveries:
        try:
            end(one)
        except LeaseLostError:
            one.lost = True
    act.rows = sum(not one.lost for one in deliveries)
    return _ended(request, act, body, deliveries)


def _ended(request: Request, act: Act, body: DeliveriesBody, deliveries: list[Delivery]) -> Any:
    request.app.state.delivery_streams.note_ended(deliveries)
    lost = [handle for handle, one in zip(body.deliveries, deliveries, strict=True) if one.lost]
    if not lost:
        return {"ended": act.rows}
    text = "leases were lost: the messages were redelivered, acked or rescheduled. The other messages are done"
    return JSONResponse({"error": "lease_lost", "message": text, "lost": lost, "ended": act.rows}, 409)


async def _unless_gone(
    request: Request, table: AsyncTable, work: Coroutine[Any, Any, list[AsyncDelivery]]
) -> list[AsyncDelivery]:
    """Await messages, unless the client closes its connection first: they go back then."""

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(wait_until_gone())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            if working.done() and working.exception() is None:
                _give_back(table, working.result())
            raise HTTPException(499, "the client closed the connection")
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
