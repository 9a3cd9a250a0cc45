"""MQTT topic filters: checks them, and matches topics against them (MQTT 5.0, section 4.7)."""

from __future__ import annotations

import re
from functools import lru_cache

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

LONGEST = 65_535
"""Bytes of a topic or filter: MQTT counts them with 16 bits."""

_SHARE = "$share"


def check_filter(text: str) -> str:
    """Return a filter, shared or not, if MQTT allows it.

    Raises `InvalidArgumentError` if a wildcard is not alone in its level, ``#`` is not the last level, or the name of a
    share is missing.
    """
    share, plain = split_share(text)
    if share is not None and (not share or set(share) & set("+#/")):
        raise InvalidArgumentError(f"filter must be $share/NAME/FILTER, got {quoted(text)}")
    levels = plain.split("/")
    if not plain or "\0" in plain or len(text.encode(errors="replace")) > LONGEST:
        raise InvalidArgumentError(f"filter must be 1 to {LONGEST} bytes of text without NUL, got {quoted(text)}")
    for at, level in enumerate(levels):
        if ("+" in level and level != "+") or ("#" in level and (level != "#" or at < len(levels) - 1)):
            raise InvalidArgumentError(
                f"filter must use + only for a whole level, and # only for the whole last level, got {quoted(text)}"
            )
    return text


def split_share(text: str) -> tuple[str | None, str]:
    """Split ``$share/NAME/FILTER`` into the name and the filter; the name is None if the filter is not shared."""
    if not text.startswith(f"{_SHARE}/"):
        return None, text
    _, name, *rest = text.split("/", 2)
    return name, rest[0] if rest else ""


def matches(filter_text: str, topic: str) -> bool:
    """Return whether a filter, without its share, matches a topic."""
    return _pattern(filter_text).fullmatch(topic) is not None


@lru_cache(maxsize=1024)
def _pattern(filter_text: str) -> re.Pattern[str]:
    levels = filter_text.split("/")
    # A wildcard in the first level matches no topic that begins with $.
    lead = r"(?!\$)" if levels[0] in ("+", "#") else ""
    if levels[-1] == "#":
        parent = "/".join(map(_level, levels[:-1]))
        body = f"{parent}(?:/.*)?" if parent or len(levels) > 1 else ".*"  # sport/# also matches sport itself
    else:
        body = "/".join(map(_level, levels))
    return re.compile(lead + body, re.DOTALL)


def _level(level: str) -> str:
    return "[^/]*" if level == "+" else re.escape(level)
