"""Event names and fields of log lines, for programs that read logs.

`docs/how-to/operation/monitor.md` describes them for users.
"""

from __future__ import annotations

from typing import Any

NAME, FIELDS = "waterclock_event", "waterclock_fields"
"""Attributes of a log record."""


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log call."""
    return {NAME: name, FIELDS: fields}
