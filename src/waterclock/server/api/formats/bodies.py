"""The base class of request bodies, and the types of their fields."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

MOST_ITEMS = 1_000
"""Messages, ids and deliveries in one request or answer in JSON."""

_INT = re.compile(r"-?[0-9]{1,19}")

TimeValue = Annotated[
    StrictInt | StrictStr, Field(description="ISO 8601 with offset, or an int of nanoseconds since 1970")
]
DurationValue = Annotated[
    StrictInt | StrictStr, Field(description="Such as 500ms, 30s or 1d, or an int of nanoseconds")
]
IdValue = Annotated[StrictInt | StrictStr, Field(description="The message's id; a text for every type of id")]

Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS)]
"""How many items an answer holds at most."""


class Body(BaseModel):
    """A body without unknown fields."""

    model_config = ConfigDict(extra="forbid")

    def given(self) -> dict[str, Any]:
        """Return the fields that the request has."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def time_of(text: str | None) -> int | str | None:
    """Return a time of a query: digits are nanoseconds."""
    if text is not None and text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal():
        return int(text[:20])
    return text


def plain_id(id_type: str, value: int | str) -> Any:
    """Return an id in its table's type; every type of id may be passed as text."""
    if id_type == "bigint" and isinstance(value, str):
        if not _INT.fullmatch(value):  # int() would take "1_0" for 10
            raise InvalidArgumentError(f"id must be a 64-bit int, got {quoted(value)}")
        return int(value)
    return str(value) if id_type == "text" else value
