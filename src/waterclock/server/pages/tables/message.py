"""The page of a message: why it is not sent, its attempts, and its payload on request."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from waterclock.server.access import ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import plain_id
from waterclock.server.pages.frame import page
from waterclock.server.pages.tables.table import found_message
from waterclock.server.shared_reads import shared
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.peeking import payloads_of
from waterclock.tables.messages.inspecting.searching import MessageFilter, find_messages

MOST_PAYLOAD = 64 << 10
"""Maximum characters of a payload on a page and in its JSON form."""

router = APIRouter(include_in_schema=False)


@router.get("/tables/{table:name}/messages/{message:name}")
@shared
def show_message(act: ReadTable, request: Request, message: str, payload: bool = False) -> Response:
    return page(request, "tables/message.html", message_data(act.table(), message, with_payload=payload))


def message_data(table: MessageTable, message: str, *, with_payload: bool) -> dict[str, Any]:
    """Explain a message."""
    context = table.context
    message_id = plain_id(context.options.id_type, message)
    explained = table.explain(message_id)
    with context.backend.snapshot(indexed=True) as connection:
        found = find_messages(context, connection, MessageFilter(id=message_id), 1).messages
    return {
        "table": table.name,
        **shapes.explanation(explained),
        "attempts": [
            {**shapes.attempt(one), "duration_seconds": shapes.seconds(one.duration)} for one in explained.attempts
        ],
        "attempts_kept": context.options.attempts_kept,
        "message": found_message(found[0]) if found else None,
        "payload": _payload(table, message_id) if with_payload else None,
    }


def _payload(table: MessageTable, message_id: Any) -> dict[str, Any]:
    payloads = payloads_of(table.context, [message_id])
    value = next(iter(payloads.values()), None)
    if isinstance(value, bytes):
        try:
            text, kind = value.decode(), "text in bytes"
        except UnicodeDecodeError:
            text, kind = value.hex(" "), "bytes, in hexadecimal"
    else:
        text, kind = (value, "text") if isinstance(value, str) else (shapes.as_json(value), "JSON")
    return {"kind": kind, "text": text[:MOST_PAYLOAD], "truncated": len(text) > MOST_PAYLOAD}
