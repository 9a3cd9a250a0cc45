"""Reads payloads in requests: a JSON value, or bytes as base64."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError


def payload_of(fields: dict[str, Any]) -> Any:
    """Take the payload out of the given fields of a body."""
    encoded = fields.pop("payload_base64", None)
    if ("payload" in fields) == (encoded is not None):
        raise InvalidArgumentError("exactly one of payload and payload_base64 must be given")
    if encoded is None:
        return fields.pop("payload")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgumentError(f"payload_base64 must be base64, got {quoted(encoded)}") from None
