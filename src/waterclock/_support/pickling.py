"""Pickles databases, topics and tables as their addresses. Refuses to pickle objects that belong to one process."""

from __future__ import annotations

import warnings
from typing import NoReturn


def warn_of_secret(name: str, text: str, safe: str) -> None:
    """Warn if a pickle will hold a URL with credentials; ``safe`` is the URL without them."""
    if text != safe:
        warnings.warn(
            f"the pickle of {name} contains the credentials of {safe}; protect the pickle like a password", stacklevel=3
        )


def refuse_pickling(one: object, remedy: str) -> NoReturn:
    """Raise, because the object holds leases, threads or connections.

    Raises
    ------
    TypeError
        As Python raises it for a lock; pickling libraries expect this type.
    """
    raise TypeError(f"cannot pickle {type(one).__name__}: it belongs to the process that opened it. {remedy}")
