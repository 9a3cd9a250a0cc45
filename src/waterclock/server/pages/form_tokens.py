"""Parses the fields of forms, and checks the token which proves that one of our own pages sent a form (CSRF)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

_FIELD = "form_token"
_MOST_FIELDS = 50
_LONGEST = 64 << 10  # bytes: every field is a name, a time or a filter


def form_token(request: Request) -> str:
    """Return the token of a request's sender: it follows from its cookie, or from a key of this process without one."""
    key: str = getattr(request.state, "credential", None) or request.app.state.form_key
    return hmac.new(key.encode(), b"waterclock form", hashlib.sha256).hexdigest()


async def _fields(request: Request) -> dict[str, str]:
    body = await request.body()
    if len(body) > _LONGEST:
        raise HTTPException(413, f"the form must have at most {_LONGEST} bytes")
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, f"the form must be URL-encoded UTF-8 of at most {_MOST_FIELDS} fields") from None
    given = fields.pop(_FIELD, "")
    if not hmac.compare_digest(given.encode(), form_token(request).encode()):
        raise HTTPException(400, "the form is out of date. Load the page again, and send the form from there")
    return fields


Form = Annotated[dict[str, str], Depends(_fields)]
"""The fields of a form that one of our own pages sent."""
