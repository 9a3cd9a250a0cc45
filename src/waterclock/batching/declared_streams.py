"""Checks the names of the streams that a source is said to have."""

from __future__ import annotations

from collections.abc import Iterable

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError


def declared_streams(streams: Iterable[str]) -> list[str]:
    """Return the names; raise InvalidArgumentError unless they are a list of non-empty strings."""
    if isinstance(streams, str):
        raise InvalidArgumentError(
            f"streams must be a list of names, got {quoted(streams)}. Write streams=[{quoted(streams)}]"
        )
    try:
        names = list(streams)
    except TypeError:
        raise InvalidArgumentError(f"streams must be a list of names or None, got {quoted(streams)}") from None
    if not names:
        raise InvalidArgumentError(
            f"streams must name every stream of the source, got {quoted(streams)}. Pass None if they are not known"
        )
    for name in names:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise InvalidArgumentError(f"streams must be non-empty strings, got {quoted(name)}")
    return names
