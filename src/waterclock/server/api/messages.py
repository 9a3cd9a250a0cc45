"""Routes that put messages into tables, show them, and change waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field, StrictBool, StrictInt, StrictStr

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.server.access import Act, ManageTable, PutTable, ReadTable
from waterclock.server.api.formats import shapes
from waterclock.server.api.formats.bodies import MOST_ITEMS, Body, DurationValue, IdValue, Limit, TimeValue, plain_id
from waterclock.server.api.formats.payloads import payload_of
from waterclock.server.shared_reads import shared
from waterclock.tables.message_table import MessageTable

router = APIRouter(tags=["messages"], prefix="/tables/{table:name}")


class MessageBody(Body):
    """A message, as in `MessageTable.put`. In a table of bytes, the payload is ``payload_base64``."""

    payload: Any = None
    payload_base64: StrictStr | None = None
    id: IdValue | None = None
    at: TimeValue | None = None
    delay: DurationValue | None = None
    group: StrictStr | None = None
    headers: dict[str, StrictStr] | None = None
    priority: StrictInt = 0
    expires_at: TimeValue | None = None
    unique: StrictStr | None = None
    unique_until: Literal["claimed", "done"] | None = None
    on_conflict: Literal["existing", "replace"] | None = None
    closes_group: StrictBool = False
    columns: dict[str, Any] = Field({}, description="Values of the table's additional columns")


class PutBody(Body):
    """Messages that are put in one transaction."""

    messages: list[MessageBody] = Field(min_length=1, max_length=MOST_ITEMS)


class IdsBody(Body):
    """Messages by their ids."""

    ids: list[IdValue] = Field(min_length=1, max_length=MOST_ITEMS)

    def of(self, act: Act, table: MessageTable) -> list[Any]:
        """Return the ids as the table takes them, and note them for the audit log."""
        act.details = self.given()
        return [plain_id(table.options.id_type, each) for each in self.ids]


class CancelBody(IdsBody):
    """Which messages to cancel, and why."""

    reason: StrictStr | None = None


class DeadLetterIdsBody(IdsBody):
    """Which messages to move to the dead-letter table, and why."""

    reason: StrictStr = Field(max_length=100_000)


class RescheduleBody(IdsBody):
    """Which messages to send, and when."""

    at: TimeValue
    epoch: StrictInt | None = None


class RetryBody(Body):
    """Which messages to retry; without ids all that back off."""

    ids: list[IdValue] | None = Field(None, max_length=MOST_ITEMS)


class RedriveBody(RetryBody):
    """Which dead letters to redrive; without ids all, up to a limit."""

    limit: int | None = Field(None, ge=1)


@router.post("/messages")
def put_messages(act: PutTable, body: PutBody) -> dict[str, Any]:
    """Put messages. A message whose id exists, or whose unique key waits, changes nothing and is in ``existing``."""
    table = act.table()
    ids = table.put_many([_row(table, one) for one in body.messages])
    act.rows = len(ids) - len(ids.existing)
    return {"ids": [str(one) for one in ids], "existing": [str(one) for one in ids.existing]}


@router.get("/messages")
def peek(act: ReadTable, limit: Limit = 10, group: str | None = None) -> list[dict[str, Any]]:
    """Look at waiting messages in the order in which consumers would get them, without taking them."""
    table = act.table()
    return [shapes.peeked(table.options.payload, one) for one in table.peek(limit, group)]


@router.get("/messages/{message:name}")
@shared
def explain(act: ReadTable, message: str) -> dict[str, Any]:
    """Explain why a message is not sent."""
    table = act.table()
    return shapes.explanation(table.explain(plain_id(table.options.id_type, message)))


@router.get("/dead-letters")
def list_dead_letters(act: ReadTable, limit: Limit = 100) -> list[dict[str, Any]]:
    """Look at dead letters, latest first."""
    table = act.table()
    return [shapes.dead_letter(table.options.payload, row) for row in table.dead_letters(limit)]


@router.post("/messages/ack")
def ack(act: ManageTable, body: IdsBody) -> dict[str, Any]:
    """Ack messages by their ids, even if a consumer has them."""
    return _changed(act, body, lambda table, ids: table.ack(ids))


@router.post("/messages/cancel")
def cancel(act: ManageTable, body: CancelBody) -> dict[str, Any]:
    """Cancel messages: they are no longer sent."""
    return _changed(act, body, lambda table, ids: table.cancel(ids, body.reason))


@router.post("/messages/dead-letter")
def dead_letter(act: ManageTable, body: DeadLetterIdsBody) -> dict[str, Any]:
    """Move messages to the dead-letter table; those that consumers have stay with them."""
    return _changed(act, body, lambda table, ids: table.dead_letter(ids, body.reason))


@router.post("/messages/reschedule")
def reschedule(act: ManageTable, body: RescheduleBody) -> dict[str, Any]:
    """Set when messages are sent next."""
    return _changed(act, body, lambda table, ids: table.reschedule(ids, body.at, body.epoch))


@router.post("/messages/retry")
def retry(act: ManageTable, body: RetryBody) -> dict[str, Any]:
    """Send messages now, as if for the first time."""
    table = act.table()
    act.details = body.given()
    act.rows = table.retry(_ids(table, body))
    return {"changed": act.rows}


@router.post("/messages/redrive")
def redrive(act: ManageTable, body: RedriveBody) -> dict[str, Any]:
    """Move dead letters back into the table."""
    table = act.table()
    act.details = body.given()
    act.rows = table.redrive(_ids(table, body), limit=body.limit)
    return {"changed": act.rows}


def _changed(act: Act, body: IdsBody, change: Callable[[MessageTable, list[Any]], int]) -> dict[str, Any]:
    table = act.table()
    act.rows = change(table, body.of(act, table))
    return {"changed": act.rows}


def _ids(table: MessageTable, body: RetryBody) -> list[Any] | None:
    return None if body.ids is None else [plain_id(table.options.id_type, each) for each in body.ids]


def _row(table: MessageTable, body: MessageBody) -> dict[str, Any]:
    row = body.given()
    columns = row.pop("columns", {})
    if known := columns.keys() & set(MessageBody.model_fields):
        raise InvalidArgumentError(
            f"columns must not contain {quoted(min(known))}, which is a field of the message itself. Set that field"
        )
    payload = payload_of(row)
    if row.get("id") is not None:
        row["id"] = plain_id(table.options.id_type, row["id"])
    given = {name: value for name, value in row.items() if value is not None}
    return {**columns, **given, "payload": payload}
