"""Refreshes open pages: a stream of server-sent events tells each page when to load its data again."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from waterclock.server.access import AnyClient

EVERY = 5.0
"""Seconds between refreshes. A page of a large table takes some 100 ms of the database's time."""

_MOST = 720
"""Maximum refreshes of one stream: an hour. The browser then opens another one, which checks its token again."""

router = APIRouter(include_in_schema=False)


@router.get("/events")
async def refresh_events(request: Request, caller: AnyClient) -> Response:  # noqa: ARG001  # no stream without a token
    """Stream an event whenever pages must refresh."""
    limit = request.app.state.stream_limit

    async def stream() -> AsyncGenerator[bytes]:
        with limit.one():
            yield b"retry: 3000\n\n"
            for _ in range(_MOST):
                await anyio.sleep(EVERY)
                yield b"event: refresh\ndata:\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")
