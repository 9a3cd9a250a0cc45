"""Message tables of each kind: without groups, with each policy, and with messages that are in none."""

from __future__ import annotations

from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "ungrouped": {},
    "sequenced": {"groups": "sequenced"},
    "exclusive": {"groups": "exclusive"},
    "free": {"groups": "sequenced", "ungrouped": "free"},
}


def group_of(kind: dict[str, Any]) -> dict[str, Any]:
    return {"group": "g"} if kind.get("groups") and kind.get("ungrouped") != "free" else {}
