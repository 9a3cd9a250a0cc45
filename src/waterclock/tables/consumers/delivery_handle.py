"""The handle of a delivery: a text with which another process can ack or return the message, or extend its lease.

A handle holds the id of its claim, a random number of 63 bits. Only the consumer that received the message knows this
number.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from typing import Any, NoReturn

from waterclock._support.quoting import quoted
from waterclock.database.schema.types import BIGINTS
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.messages.putting.putting import check_id
from waterclock.tables.model.claims.claim import Leased
from waterclock.tables.model.values.arguments import check_group

_LONGEST = 4_000
"""Maximum characters of a handle: an id and a group have up to 255 each, and JSON may write one as twelve."""

_ID, _GROUP, _POSITION = 1, 3, 4
_NUMBERS = (0, 2, 5, 6, 7, 8)
_FIELDS = 9


def handle_of(delivery: Delivery) -> str:
    leased = delivery.leased
    message_id = str(leased.id) if isinstance(leased.id, uuid.UUID) else leased.id
    fields = [*leased._replace(id=message_id), delivery.lease_until, delivery.since_claim()[0]]
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def delivery_of(context: TableContext, callers: CallerConnections, handle: str) -> Delivery:
    """Return the delivery of a handle; InvalidArgumentError if it is not one of the table's."""
    fields = _decoded(handle)
    if not isinstance(fields, list) or len(fields) != _FIELDS:
        _refuse(handle)
    known: list[Any] = fields
    if not all(type(known[at]) is int and known[at] in BIGINTS for at in _NUMBERS):
        _refuse(handle)
    position = known[_POSITION]
    if position is not None and (type(position) is not int or position not in BIGINTS):
        _refuse(handle)
    known[_ID], known[_GROUP] = check_id(context, known[_ID]), check_group(known[_GROUP])
    *leased, lease_until, claimed_at = known
    return Delivery.resumed(context, callers, Leased(*leased), lease_until, claimed_at)


def _decoded(handle: object) -> Any:
    if not isinstance(handle, str) or len(handle) > _LONGEST:
        _refuse(handle)
    try:
        return json.loads(base64.b64decode(handle + "=" * (-len(handle) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        _refuse(handle)


def _refuse(handle: object) -> NoReturn:
    raise InvalidArgumentError(f"delivery must be the handle of a delivery of this table, got {quoted(handle)}")
