"""URLs as they may be shown, in logs, listings and errors: without credentials, query and fragment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote

HIDDEN = "…"
"""Stands where a secret was."""

# What stands before the @ there is part of the place and no secret: a container, or the user of a cluster.
_PLACE_BEFORE_AT = ("abfs", "abfss", "wasb", "wasbs", "hdfs", "viewfs")
_SHORTEST_SECRET = 3
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_SECRET_OPTION = re.compile(r"secret|key|token|pass|pwd|sig|credential", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """Give a URL without credentials, query and fragment; a path stays as it is.

    What cannot be a URL, because a secret in it is not quoted, rather loses too much than too little.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    before, rest = _split(rest)
    keep = scheme.lower() in _PLACE_BEFORE_AT and before and ":" not in before
    return f"{scheme}://{f'{before}@' if keep else ''}{re.split('[?#]', rest, maxsplit=1)[0]}"


def text_without_secrets(text: str, url: str) -> str:
    """Give a text, such as the error of a library that was handed the URL, without what is secret in it."""
    text = text.replace(url, without_secrets(url))
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL.sub(lambda found: without_secrets(found[0]), text)


def _split(rest: str) -> tuple[str, str]:
    """Split what follows the scheme into what stands before the @, and the place."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    before, at, _ = authority.rpartition("@")
    if at:
        return before, rest[len(before) + 1 :]
    name, colon, port = authority.partition(":")
    if not colon or port.isdigit() or not port or authority.startswith("["):
        return "", rest
    # A secret with a slash or a question mark in it: the place begins behind the last @, if there is one.
    before, at, place = rest.rpartition("@")
    return (before, place) if at else (rest, name)


def _secrets(url: str) -> Iterator[str]:
    rest = url.partition("://")[2]
    before, place = _split(rest)
    secrets = [before, *before.split(":")[1:], before.partition(":")[2]]
    query = place.partition("?")[2].partition("#")[0]
    secrets += [query, *(value for name, value in parse_qsl(query) if _SECRET_OPTION.search(name))]
    for secret in secrets:
        for form in (secret, unquote(secret)):
            if len(form) >= _SHORTEST_SECRET:
                yield form
