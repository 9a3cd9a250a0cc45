"""Passes a list as one JSON parameter, for databases without arrays."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import sqlalchemy as sa


def _plainly(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else list(value)


_as_json = json.JSONEncoder(default=_plainly).encode


class JsonList(sa.TypeDecorator[Any]):
    """A list as JSON text, with UUIDs as strings."""

    impl = sa.Text
    cache_ok = True

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        """Encode with a cached encoder, without an extra Python call."""
        del dialect  # there is one
        return _as_json
