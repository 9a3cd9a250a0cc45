"""The route for the caller's own account: its name and rights."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from waterclock.server.access import AnyClient

router = APIRouter(tags=["account"])


@router.get("/me")
async def who_am_i(caller: AnyClient) -> dict[str, Any]:
    """Return the name and the rights of your token; null: all rights, on this machine."""
    rights = None if caller.rights is None else sorted(map(str, caller.rights))
    return {"name": caller.name, "rights": rights}
