"""Checks options that are lists of stream names."""

from __future__ import annotations

from collections.abc import Iterable

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError


def declared_streams(streams: Iterable[str]) -> list[str]:
    """Return the names of all streams of a source; raise InvalidArgumentError as `stream_names`, and if empty."""
    names = stream_names(streams, "streams")
    if not names:
        raise InvalidArgumentError(
            f"streams must name all streams of the source, got {quoted(streams)}. If they are unknown, pass None"
        )
    return names


def stream_names(streams: Iterable[str], option: str) -> list[str]:
    """Return the names; raise InvalidArgumentError unless they are a list of non-empty strings."""
    if isinstance(streams, str):
        raise InvalidArgumentError(
            f"{option} must be a list of names, got {quoted(streams)}. Write {option}=[{quoted(streams)}]"
        )
    try:
        names = list(streams)
    except TypeError:
        raise InvalidArgumentError(f"{option} must be a list of names or None, got {quoted(streams)}") from None
    for name in names:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
            raise InvalidArgumentError(f"{option} must hold non-empty strings, got {quoted(name)}")
    return names
