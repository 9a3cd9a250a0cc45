"""Reads the selection of messages from a page's URL, and converts it to a filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waterclock.server.api.formats.bodies import plain_id
from waterclock.tables.messages.inspecting.searching import MessageFilter

NAMES = ("id", "group", "state", "header", "where", "text", "error")
"""The parts of a selection, named as in the URL; an empty one counts as missing."""


def selection_of(query: Mapping[str, str]) -> dict[str, str]:
    """Return the given parts of a selection."""
    return {name: query[name] for name in NAMES if query.get(name)}


def message_filter(id_type: str, chosen: Mapping[str, str]) -> MessageFilter:
    """Return the filter of a selection; a header is ``name=value``."""
    parts: dict[str, Any] = dict(chosen)
    if "id" in parts:
        parts["id"] = plain_id(id_type, parts["id"])
    if "header" in parts:
        name, _, value = parts["header"].partition("=")
        parts["header"] = (name, value)
    return MessageFilter(**parts)
