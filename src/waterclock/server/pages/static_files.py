"""Serves styles, scripts and htmx. The name of a file contains a hash of its content, so that browsers can cache it."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from waterclock.figures.theme import style_sheet

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_KEPT = "public, max-age=31536000, immutable"
_FILES = {one.name: one.read_bytes() for one in files("waterclock.server.pages").joinpath("static").iterdir()}
_FILES["pictures.css"] = style_sheet().encode() + _FILES["pictures.css"]
_DIGESTS = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in _FILES.items()}

router = APIRouter(include_in_schema=False)


def static_url(name: str) -> str:
    """Return the URL of a file, which changes with its content."""
    return f"/static/{name}?v={_DIGESTS[name]}"


@router.get("/static/{file}")
async def static_file(file: str, v: str = "") -> Response:
    """Return a file."""
    if file not in _FILES:
        raise HTTPException(404, "no such file")
    headers = {"Cache-Control": _KEPT} if v == _DIGESTS[file] else {}
    return Response(_FILES[file], media_type=_TYPES[file.rpartition(".")[2]], headers=headers)
