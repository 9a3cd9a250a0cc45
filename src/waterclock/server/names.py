"""Decodes names in paths. Names may contain any character, even a slash, in percent-encoded form.

Each name is decoded separately, after the path was matched. If the path were decoded first, a name with a slash would
be read as two names.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send


class NameConvertor(Convertor[str]):
    """One part of a path, percent-decoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Decode a name."""
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise HTTPException(400, "names in the path must be UTF-8, percent-encoded") from None

    def to_string(self, value: str) -> str:
        """Encode a name."""
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())


class RawPaths:
    """Match paths as they were sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: Any = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None:
            scope = {**scope, "path": raw.decode("ascii", "replace")}
        await self._app(scope, receive, send)
