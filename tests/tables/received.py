"""The messages that a table hands to a consumer."""

from __future__ import annotations

from typing import Any

from waterclock.tables.message_table import MessageTable


def payloads(table: MessageTable, limit: int = 100) -> list[Any]:
    return [delivery.payload for delivery in table.receive(limit)]
