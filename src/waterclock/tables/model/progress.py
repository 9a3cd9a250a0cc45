"""The progress that a handler saves, as JSON in the message's row."""

from __future__ import annotations

import json
from typing import Any

from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.values.json_values import check_json

MOST_PROGRESS = 64 << 10
"""Bytes of UTF-8: every claim reads the progress with the message, so large results belong elsewhere."""


def progress_text(progress: Any) -> str:
    """Return the text that is saved.

    Raises `InvalidArgumentError` if the progress is not JSON, or larger than `MOST_PROGRESS`.
    """
    check_json("progress", progress)
    text = json.dumps(progress, separators=(",", ":"), ensure_ascii=False)
    if (size := len(text.encode())) > MOST_PROGRESS:
        raise InvalidArgumentError(f"progress must be JSON of at most {MOST_PROGRESS} bytes, got {size}")
    return text


def read_progress(text: str | None) -> Any:
    """Parse saved progress; None if nothing was saved, or if plain SQL has written invalid JSON."""
    if text is None:
        return None
    try:
        progress = json.loads(text)
        check_json("progress", progress)  # a server could not send NaN or half a character
    except (ValueError, RecursionError):
        return None
    return progress
